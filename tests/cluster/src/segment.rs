//! What tests of segments look at: the refill worker, and what it has reported.

use postgres::Client;

use crate::cluster::Cluster;
use crate::sql::{PATIENCE, column, value};

/// The refill worker of the session's database, if there is one.
pub fn worker(client: &mut Client) -> Option<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idgen refill' AND datname = current_database()";
    let found: Vec<i32> = column(client, sql);
    assert!(found.len() <= 1, "{} refill workers for one database", found.len());
    found.first().copied()
}

/// Waits until the refill worker waits for this: a kind of lock such as `relation`, or `SyncRep`.
pub fn await_worker_wait(cluster: &Cluster, event: &str) -> i32 {
    let mut client = cluster.client();
    let sql =
        format!("SELECT pid FROM pg_stat_activity WHERE backend_type = 'idgen refill' AND wait_event = '{event}'");
    let mut found: Vec<i32> = Vec::new();
    cluster.wait_for(PATIENCE, &format!("the refill worker to wait for {event}"), || {
        found = column(&mut client, &sql);
        !found.is_empty()
    });
    found[0]
}

/// Waits until the refill worker has gone. Then no refill is under way, and none is wanted.
pub fn await_no_worker(cluster: &Cluster) {
    let mut client = cluster.client();
    cluster.wait_for(PATIENCE, "the refill worker to go", || worker(&mut client).is_none());
}

/// Waits until the worker's last report on a tag begins like this, and returns all of it.
pub fn await_report(cluster: &Cluster, tag: &str, beginning: &str) -> String {
    let mut client = cluster.client();
    let mut report = String::new();
    cluster.wait_for(PATIENCE, &format!("the refill worker to report \"{beginning}...\""), || {
        report = value(
            &mut client,
            &format!("SELECT coalesce(max(last_error), '') FROM idgen.stat_segment WHERE tag = '{tag}'"),
        );
        report.starts_with(beginning)
    });
    report
}
