//! The refill worker of a database, as tests see it.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, column, value};
use postgres::Client;

/// The process id of a database's refill worker.
pub(crate) fn worker(client: &mut Client, database: &str) -> Option<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idgen refill' AND datname";
    let pids: Vec<i32> = column(client, &format!("{sql} = '{database}'"));
    assert!(pids.len() <= 1, "{pids:?} refill {database}");
    pids.first().copied()
}

/// Waits for the refill worker of a database and returns its process id.
pub(crate) fn wait_for_worker(cluster: &Cluster, database: &str) -> i32 {
    let mut client = cluster.client();
    let mut found = None;
    cluster.wait_for(PATIENCE, "a refill worker", || {
        found = worker(&mut client, database);
        found.is_some()
    });
    found.expect("waited for")
}

/// Waits until the refill worker waits for an event, such as the lock type `relation`, or `SyncRep`.
pub(crate) fn wait_until_worker_waits(cluster: &Cluster, event: &str) -> i32 {
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

/// Waits until the refill worker has exited and its slot is free, so that no refill is running or requested. The postmaster
/// frees the slot after it has reaped the process, and before it accepts another connection.
pub(crate) fn wait_until_no_worker(cluster: &Cluster, database: &str) {
    let mut client = cluster.client();
    let mut seen = Vec::new();
    cluster.wait_for(PATIENCE, "the end of the refill worker", || {
        let now = worker(&mut client, database);
        seen.extend(now);
        now.is_none()
    });
    let is_reaped = |pid: &i32| !std::fs::exists(format!("/proc/{pid}")).unwrap_or(true);
    cluster.wait_for(PATIENCE, "the postmaster to reap the refill worker", || seen.iter().all(is_reaped));
    drop(cluster.client());
}

/// Waits until the worker's last error of a tag begins like this, and returns it.
pub(crate) fn wait_for_report(cluster: &Cluster, tag: &str, beginning: &str) -> String {
    let mut client = cluster.client();
    let sql = format!("SELECT coalesce(max(last_error), '') FROM idgen.stat_segment WHERE tag = '{tag}'");
    let mut report = String::new();
    cluster.wait_for(PATIENCE, &format!("the refill worker to report \"{beginning}...\""), || {
        report = value(&mut client, &sql);
        report.starts_with(beginning)
    });
    report
}
