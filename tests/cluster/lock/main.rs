//! Named locks on real servers: every way in which a call ends, queues, full tables, and poolers.

mod endings;
mod limits;
mod messages;
mod modes;
mod pooler;
mod queue;
mod scopes;
mod timeout_race;

use idgen_testkit::sql::{PATIENCE, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;

/// A server with a statement timeout, so that a test that finds an unexpected lock fails and does not hang.
fn builder() -> Builder {
    Cluster::builder().conf("statement_timeout", "1min")
}

/// The number of advisory locks that a process holds or waits for, by the lock manager and not by idgen's registry.
fn locks_of(client: &mut Client, pid: i32) -> i64 {
    value(client, &format!("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = {pid}"))
}

/// The same for all processes.
fn locks(client: &mut Client) -> i64 {
    value(client, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
}

/// Waits until a process is in the queue of a lock.
fn wait_until_queued(cluster: &Cluster, pid: i32) {
    let mut client = cluster.client();
    let sql = format!("SELECT count(*) = 1 FROM pg_locks WHERE pid = {pid} AND NOT granted AND waitstart IS NOT NULL");
    cluster.wait_for(PATIENCE, "the session to queue", || value(&mut client, &sql));
}
