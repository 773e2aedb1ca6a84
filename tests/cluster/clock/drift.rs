//! The lead of ids over the wall clock: the drift, and beyond it only the lead left by a crash or a step of the clock, which
//! is paid back for good.

use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Cluster, rounds};
use postgres::Client;

use crate::{builder, draw_one, wait_until_past_checkpoint};

/// 256 ids in a tick of 10 ms.
const LAYOUT: &str = "sonyflake";
const PER_SECOND: i64 = 25_600;
const DRIFT_MS: f64 = 1000.0;
const WINDOW_MS: f64 = 3000.0;
/// The lead that ids may keep: a tick, and the ids that others issue before the clock is read again.
const GRAIN_MS: f64 = 10.0 + 20.0;

fn cluster(max_drift: &str) -> Cluster {
    let builder = builder().conf("idgen.clock_window", &format!("{WINDOW_MS}ms"));
    let cluster = builder.conf("idgen.max_drift", max_drift).start_with_extension();
    wait_until_past_checkpoint(&cluster);
    cluster
}

fn lead_ms(client: &mut Client) -> f64 {
    draw_one(client, LAYOUT).lead_ms
}

/// Crashes the server and returns the lead of its first id.
fn lead_after_crash_ms(cluster: &Cluster, drift_ms: f64) -> f64 {
    let before_ms = lead_ms(&mut cluster.client());
    cluster.kill9_postmaster();
    cluster.start_again();
    let lead_ms = lead_ms(&mut cluster.client());
    let most_ms = before_ms.max(0.0) + drift_ms + 1.5 * WINDOW_MS + GRAIN_MS;
    assert!(lead_ms <= most_ms, "{lead_ms} ms ahead after a crash, may be {most_ms}");
    lead_ms
}

/// Draws slowly until the clock has caught up.
fn pay_back(cluster: &Cluster, client: &mut Client) {
    cluster.wait_for(PATIENCE, "the clock to catch up with the ids", || lead_ms(client) <= 0.0);
}

/// Draws three seconds' worth of ids as fast as possible, and asserts that they end at the drift. Without the limit they
/// would end nearly three seconds ahead.
fn assert_burst_ends_at_the_drift(client: &mut Client, when: &str) {
    let sum = "SELECT coalesce(sum(borrowed), 0)::bigint FROM idgen.stat_snowflake";
    let before: i64 = value(client, sum);
    execute(client, &format!("SELECT count(*) FROM snowflake_next_many({}, '{LAYOUT}')", 3 * PER_SECOND));
    let lead_ms = lead_ms(client);
    assert!(lead_ms <= DRIFT_MS + GRAIN_MS, "{lead_ms} ms ahead after a burst {when}");
    let borrowed = value::<i64>(client, sum) - before;
    assert!(borrowed > PER_SECOND / 4, "{borrowed} borrowed: no burst {when}");
}

#[test]
fn lead_after_a_crash_is_no_room_for_bursts_once_paid_back() {
    for _ in 0..rounds(1, 10) {
        let cluster = cluster("1s");
        let lead_ms = lead_after_crash_ms(&cluster, DRIFT_MS);
        assert!(lead_ms > WINDOW_MS / 2.0, "{lead_ms} ms ahead: nothing to pay back");
        let mut client = cluster.client();
        pay_back(&cluster, &mut client);
        assert_burst_ends_at_the_drift(&mut client, "after a crash");
    }
}

#[test]
fn lead_after_a_clock_step_is_no_room_for_bursts_once_paid_back() {
    const BACK_MS: i64 = 10_000;
    for _ in 0..rounds(1, 10) {
        let cluster = cluster("1s");
        let mut client = cluster.client();
        lead_ms(&mut client);
        cluster.clock().set_offset_ms(-BACK_MS);
        let lead_ms = lead_ms(&mut client);
        assert!(lead_ms <= BACK_MS as f64 + GRAIN_MS, "{lead_ms} ms ahead after a step");
        assert!(lead_ms > BACK_MS as f64 / 2.0, "{lead_ms} ms ahead: nothing to pay back");
        pay_back(&cluster, &mut client);
        assert_burst_ends_at_the_drift(&mut client, "after a step");
    }
}

#[test]
fn bursts_between_clean_restarts_do_not_add_up() {
    let cluster = cluster("1s");
    for restarts in 0..=rounds(5, 50) {
        let mut client = cluster.client();
        assert_burst_ends_at_the_drift(&mut client, &format!("after {restarts} restarts"));
        cluster.restart();
    }
}

/// A layout with long ticks draws one id before each restart.
#[test]
fn clean_restarts_add_no_lead_of_a_longer_tick() {
    let cluster = cluster("0");
    for _ in 0..rounds(4, 40) {
        execute(&mut cluster.client(), "SELECT snowflake_next('seconds')");
        cluster.restart();
    }
    let lead_ms = draw_one(&mut cluster.client(), "snowflake").lead_ms;
    assert!(lead_ms <= GRAIN_MS, "{lead_ms} ms ahead");
}

/// The same lead costs the same, whatever it is from. The time limits are far below the lead.
#[test]
fn ids_ahead_continue_at_once_when_the_limit_drops() {
    for back_ms in [0, 15_000] {
        let cluster = builder().conf("idgen.max_drift", "20s").start_with_extension();
        let mut client = cluster.client();
        execute(&mut client, &format!("SELECT count(*) FROM snowflake_next_many({}, '{LAYOUT}')", 19 * PER_SECOND));
        match back_ms {
            0 => {
                cluster.set_conf("idgen.max_drift", "1s");
                cluster.reload();
            }
            _ => cluster.clock().set_offset_ms(-back_ms),
        }
        let mut client = cluster.client();
        execute(&mut client, "SET statement_timeout = '5 s'");
        let before_ms = lead_ms(&mut client);
        assert!(before_ms > 15_000.0, "{before_ms} ms ahead");
        for _ in 0..300 {
            let lead_ms = lead_ms(&mut client);
            assert!(lead_ms <= before_ms + GRAIN_MS, "{lead_ms} ms ahead, was {before_ms}");
        }
    }
}

#[test]
fn lead_of_a_layout_at_its_full_rate_is_no_room_for_another_one() {
    let cluster = cluster("1s");
    // Both layouts are attached when the crash takes them ahead.
    draw_one(&mut cluster.client(), "js53");
    lead_after_crash_ms(&cluster, DRIFT_MS);
    let mut client = cluster.client();
    let full_rate = format!("SELECT count(*) FROM snowflake_next_many({}, '{LAYOUT}')", PER_SECOND / 10);
    cluster.wait_for(PATIENCE, "the clock to catch up with the other layout", || {
        execute(&mut client, &full_rate);
        draw_one(&mut client, "js53").lead_ms <= 0.0
    });
    assert!(lead_ms(&mut client) > DRIFT_MS, "the layout has lost its lead: nothing to test");
    execute(&mut client, "SELECT count(*) FROM snowflake_next_many(2000000, 'js53')");
    let lead_ms = draw_one(&mut client, "js53").lead_ms;
    assert!(lead_ms <= DRIFT_MS + GRAIN_MS, "{lead_ms} ms ahead");
}

#[test]
fn lead_after_a_crash_only_shrinks_without_a_drift() {
    for _ in 0..rounds(1, 10) {
        let cluster = cluster("0");
        let mut least_ms = lead_after_crash_ms(&cluster, 0.0);
        assert!(least_ms > WINDOW_MS / 2.0, "{least_ms} ms ahead: nothing to shrink");
        let mut client = cluster.client();
        // A quarter of a second's ids at once, and then a pause.
        let burst = format!("SELECT count(*) FROM snowflake_next_many({}, '{LAYOUT}')", PER_SECOND / 4);
        let mut draws = 0;
        cluster.wait_for(PATIENCE, "the clock to catch up with the ids", || {
            if draws % 100 == 0 {
                execute(&mut client, &burst);
            }
            draws += 1;
            let lead_ms = lead_ms(&mut client);
            assert!(lead_ms <= least_ms + GRAIN_MS, "{lead_ms} ms ahead, was {least_ms}");
            least_ms = least_ms.min(lead_ms);
            lead_ms <= 0.0
        });
        execute(&mut client, &burst);
        let lead_ms = lead_ms(&mut client);
        assert!(lead_ms <= GRAIN_MS, "{lead_ms} ms ahead without a drift");
    }
}
