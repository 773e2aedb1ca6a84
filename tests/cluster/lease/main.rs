//! Leases on real servers: holders that disconnect or are late; queues, waits, costs and poolers; crashes, promotions,
//! other clocks, and all kinds of transactions.

mod abandoned;
mod cost;
mod definition;
mod extension;
mod fairness;
mod fence;
mod guard;
mod linear;
mod many;
mod multixacts;
mod notify;
mod pooler;
mod prepared;
mod process;
mod recovery;
mod rows;
mod session;
mod shared;
mod slots;
mod snapshots;
mod stale_reads;
mod terms;
mod unpreloaded;
mod waits;
mod wake;

use idgen_testkit::script::play;
use idgen_testkit::sql::{PATIENCE, column, value, wait_for_one};
use idgen_testkit::{Builder, Cluster, Paused, pause};
use nix::time::{ClockId, clock_gettime};
use postgres::Client;

/// A server with a statement timeout, so that no test hangs, and without fsync: these tests do not crash the machine.
fn builder() -> Builder {
    Cluster::builder().conf("statement_timeout", "1min").conf("fsync", "off")
}

/// Runs a script on a server of its own.
fn scenario(script: &str) {
    play(&builder().start_with_extension(), script);
}

fn renew(client: &mut Client, name: &str, token: i64) {
    let sql = format!("SELECT lease_renew('{name}', {token}) IS NOT NULL");
    assert!(value::<bool>(client, &sql));
}

fn release(client: &mut Client, name: &str, token: i64) -> bool {
    value(client, &format!("SELECT lease_release('{name}', {token})"))
}

/// The slots of a name in the view, such as "0 held".
fn states(client: &mut Client, name: &str) -> Vec<String> {
    column(client, &format!("SELECT slot || ' ' || state FROM idgen.leases WHERE name = '{name}' ORDER BY slot"))
}

fn wait_for_state(cluster: &Cluster, name: &str, state: &str) {
    let mut client = cluster.client();
    cluster.wait_for(PATIENCE, &format!("{name} to be \"{state}\""), || states(&mut client, name) == [state]);
}

/// A counter of `idgen.stat_lease`.
fn counter(client: &mut Client, column: &str) -> i64 {
    value(client, &format!("SELECT {column} FROM idgen.stat_lease"))
}

/// CLOCK_BOOTTIME in microseconds, the clock of leases.
fn boot_us() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has this clock");
    now.tv_sec() * 1_000_000 + now.tv_nsec() / 1_000
}

/// Waits until a process queues behind the head.
fn wait_until_queued(cluster: &Cluster, pid: i32) {
    wait_for_one(
        cluster,
        "the session to queue",
        &format!("pg_locks WHERE pid = {pid} AND NOT granted AND locktype = 'advisory'"),
    );
}

/// Waits until a process waits for a transaction that has locked or written a row.
fn wait_until_waiting_for_row(cluster: &Cluster, pid: i32) {
    let waiting = "NOT granted AND locktype = 'transactionid'";
    wait_for_one(cluster, "the session to wait for a row", &format!("pg_locks WHERE pid = {pid} AND {waiting}"));
}

/// Waits until a process sleeps at the head of a queue.
fn wait_until_head(cluster: &Cluster, pid: i32) {
    wait_for_one(cluster, "the session to be at the head", &asleep(pid));
}

fn asleep(pid: i32) -> String {
    let waits = "state = 'active' AND query LIKE '%lease_%' AND (wait_event, wait_event_type) IN (VALUES ('IdgenLease', 'Extension'), \
                 ('Extension', 'Extension'))";
    format!("pg_stat_activity WHERE pid = {pid} AND {waits}")
}

/// Pauses a process while it sleeps at the head of a queue, not while it reads the rows.
fn pause_asleep(cluster: &Cluster, pid: i32) -> Paused {
    let mut client = cluster.client();
    let sql = format!("SELECT count(*) = 1 FROM {}", asleep(pid));
    let mut paused = None;
    cluster.wait_for(PATIENCE, "the session to sleep", || {
        paused = Some(pause(pid)).filter(|_| value(&mut client, &sql));
        paused.is_some()
    });
    paused.expect("waited for")
}
