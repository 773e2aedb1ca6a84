//! Leases over crashes, restarts, promotions and steps of the clock.
//!
//! The tests do not measure elapsed time. They compare the row of a lease with the clock of leases, which they can read.

mod another_clock;
mod crash;
mod failover;
mod wall_clock;

use idgen_testkit::lease::{take_if_free, term};
use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;

use crate::boot_us;

const SECOND_US: i64 = 1_000_000;
const HOUR_US: i64 = 3_600 * SECOND_US;

/// The kernel rounds the start of a process to a tick, and the extension takes the end of the tick.
const TICK_US: i64 = 10_000;

/// A server with a statement timeout, so that a test that finds a lease taken fails and does not hang.
fn builder() -> Builder {
    Cluster::builder().conf("statement_timeout", "1min")
}

/// Tries to acquire a lease until it is free, which it must be no earlier and no later than these times. Returns the token.
fn assert_free_between(cluster: &Cluster, name: &str, earliest_us: i64, latest_us: i64) -> i64 {
    let mut client = cluster.client();
    let mut token = None;
    cluster.wait_for(PATIENCE, &format!("lease \"{name}\" to be free"), || {
        let is_time = boot_us() >= latest_us;
        token = take_if_free(&mut client, name);
        assert!(token.is_some() || !is_time, "lease \"{name}\" is late: {:?}", term(&mut client, name));
        token.is_some()
    });
    let granted_us = term(&mut client, name).began_us();
    assert!(granted_us >= earliest_us, "lease \"{name}\" was granted {} us early", earliest_us - granted_us);
    token.expect("waited for")
}

/// Makes the rows of a name look written under another clock: on another machine, or before a reboot. Such times mean
/// nothing here, however early or late they look.
fn by_another_clock(client: &mut Client, name: &str, ends_us: i64) {
    let sql = format!("UPDATE idgen.lease SET clock = 'another', ends_us = {ends_us} WHERE name = '{name}'");
    execute(client, &sql);
}

/// Waits until the server can write. Terms whose end it cannot know begin then.
fn wait_for_walwriter(cluster: &Cluster) {
    let mut client = cluster.client();
    let sql = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'walwriter'";
    cluster.wait_for(PATIENCE, "the WAL writer", || value(&mut client, sql));
}
