//! Leases over crashes, restarts, promotions and steps of the clock.
//!
//! No test measures time itself. The row of a lease says when the lease was granted, by the clock of leases, which the
//! test reads too.

mod another_clock;
mod crash;
mod failover;
mod restart;
mod wall_clock;

use idgen_testkit::lease::{take_if_free, term};
use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;

use crate::boot_us;

const SECOND_US: i64 = 1_000_000;
const HOUR_US: i64 = 3_600 * SECOND_US;

/// The kernel says when a process was started to one of its ticks, and the extension takes the end of it.
const TICK_US: i64 = 10_000;

/// A server on which nobody waits for ever: a test that finds a lease taken that should be free fails, and does not hang.
fn builder() -> Builder {
    Cluster::builder().conf("statement_timeout", "1min")
}

/// The lease must not be had before the one time, and must be had from the other on. Tries again and again, and has it
/// then; returns the token.
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

/// Makes rows say that another clock has written them: before the machine was started again, or on another one. Times by
/// it mean nothing here, however early or late they look.
fn by_another_clock(client: &mut Client, name: &str, ends_us: i64) {
    let sql = format!("UPDATE idgen.lease SET clock = 'another', ends_us = {ends_us} WHERE name = '{name}'");
    execute(client, &sql);
}

/// Waits until the server writes, which is when terms begin whose end it cannot know.
fn wait_for_walwriter(cluster: &Cluster) {
    let mut client = cluster.client();
    let sql = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'walwriter'";
    cluster.wait_for(PATIENCE, "the server to write", || value(&mut client, sql));
}
