//! The life of leases on real servers: over crashes, promotions, dumps, other clocks, and in transactions of every kind.
//!
//! No test goes by the time that it takes itself. When a lease was granted stands in its row, by the clock of leases, which
//! the test reads too.

mod another_clock;
mod crash;
mod dump;
mod extension;
mod failover;
mod prepared;
mod snapshots;
mod start;
mod wall_clock;

use idgen_cluster_tests::sql::{PATIENCE, execute, row, value};
use idgen_cluster_tests::{Builder, Cluster};
use nix::time::{ClockId, clock_gettime};
use postgres::Client;

const SECOND_US: i64 = 1_000_000;
const HOUR_US: i64 = 3_600 * SECOND_US;

/// The kernel says when a process was started to one of its ticks, and the extension takes the end of it.
const TICK_US: i64 = 10_000;

/// A server on which nobody waits for ever: a test that finds a lease taken that should be free fails, and does not hang.
fn builder() -> Builder {
    Cluster::builder().conf("statement_timeout", "1min")
}

/// The clock that leases go by, here as in every server that the test starts.
fn boot_us() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has this clock");
    now.tv_sec() * SECOND_US + now.tv_nsec() / 1_000
}

/// What the row of a lease with one slot says.
#[derive(Clone, Debug, PartialEq)]
struct Term {
    token: i64,
    depth: i32,
    ttl_us: i64,
    ends_us: i64,
}

impl Term {
    /// When it was acquired, or renewed last.
    fn began_us(&self) -> i64 {
        self.ends_us - self.ttl_us
    }
}

/// The term of a name that must have a row.
fn term(client: &mut Client, name: &str) -> Term {
    let row = row(client, &format!("SELECT token, depth, ttl_us, ends_us FROM idgen.lease WHERE name = '{name}'"));
    Term { token: row.get(0), depth: row.get(1), ttl_us: row.get(2), ends_us: row.get(3) }
}

/// Acquires, after waiting for it; returns the token.
fn acquire(client: &mut Client, args: &str) -> i64 {
    value(client, &format!("SELECT token FROM lease_acquire({args})"))
}

/// Acquires if the lease is free now; returns the token.
fn try_acquire(client: &mut Client, name: &str) -> Option<i64> {
    let sql = format!("SELECT max(token) FROM lease_try_acquire('{name}', ttl => '1 hour')");
    value(client, &sql)
}

/// Somebody holds it, by what the view says and by trying.
fn assert_held(client: &mut Client, name: &str) {
    let state = format!("SELECT state FROM idgen.leases WHERE name = '{name}'");
    assert_eq!(value::<String>(client, &state), "held", "{name}");
    assert_eq!(try_acquire(client, name), None, "{name}");
}

/// The lease must not be had before the one time, and must be had from the other on. Tries again and again, and has it
/// then; returns the token.
fn assert_free_between(cluster: &Cluster, name: &str, earliest_us: i64, latest_us: i64) -> i64 {
    let mut client = cluster.client();
    let mut token = None;
    cluster.wait_for(PATIENCE, &format!("lease \"{name}\" to be free"), || {
        let is_time = boot_us() >= latest_us;
        token = try_acquire(&mut client, name);
        assert!(token.is_some() || !is_time, "lease \"{name}\" is late: {:?}", term(&mut client, name));
        token.is_some()
    });
    let granted_us = term(&mut client, name).began_us();
    assert!(granted_us >= earliest_us, "lease \"{name}\" was granted {} us early", earliest_us - granted_us);
    token.expect("waited for")
}

/// Waits until a session waits for this: `SyncRep`, a kind of lock such as `transactionid`, or at the head of a lease's
/// queue, which is of the type `Extension`.
fn await_event(cluster: &Cluster, pid: i32, event: &str) {
    let mut client = cluster.client();
    let sql = format!(
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {pid} AND '{event}' IN (wait_event, wait_event_type)"
    );
    cluster.wait_for(PATIENCE, &format!("session {pid} to wait for {event}"), || value(&mut client, &sql));
}

/// Makes rows say that another clock has written them: before the machine was started again, or on another one. Times by
/// it mean nothing here, however early or late they look.
fn by_another_clock(client: &mut Client, name: &str, ends_us: i64) {
    let sql = format!("UPDATE idgen.lease SET clock = 'another', ends_us = {ends_us} WHERE name = '{name}'");
    execute(client, &sql);
}

/// Waits until the server writes, which is when terms begin whose end it cannot know.
fn await_writer(cluster: &Cluster) {
    let mut client = cluster.client();
    let sql = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'walwriter'";
    cluster.wait_for(PATIENCE, "the server to write", || value(&mut client, sql));
}
