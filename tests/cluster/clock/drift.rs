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

fn cluster() -> Cluster {
    let builder = builder().conf("idgen.clock_window", &format!("{WINDOW_MS}ms"));
    let cluster = builder.conf("idgen.max_drift", &format!("{DRIFT_MS}ms")).start_with_extension();
    wait_until_past_checkpoint(&cluster);
    cluster
}

fn lead_ms(client: &mut Client) -> f64 {
    draw_one(client, LAYOUT).lead_ms
}

/// Crashes the server and returns the lead of its first id.
fn lead_after_crash_ms(cluster: &Cluster) -> f64 {
    let before_ms = lead_ms(&mut cluster.client());
    cluster.kill9_postmaster();
    cluster.start_again();
    let lead_ms = lead_ms(&mut cluster.client());
    let most_ms = before_ms.max(0.0) + DRIFT_MS + 1.5 * WINDOW_MS + GRAIN_MS;
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
fn lead_after_a_crash_or_a_step_is_no_room_for_bursts_once_paid_back() {
    const BACK_MS: i64 = 10_000;
    for (round, when) in ["after a crash", "after a step"].into_iter().cycle().take(2 * rounds(1, 10)).enumerate() {
        let cluster = cluster();
        lead_ms(&mut cluster.client());
        let (lead_ms, least_ms) = if round % 2 == 0 {
            (lead_after_crash_ms(&cluster), WINDOW_MS / 2.0)
        } else {
            cluster.clock().set_offset_ms(-BACK_MS);
            let lead_ms = lead_ms(&mut cluster.client());
            assert!(lead_ms <= BACK_MS as f64 + GRAIN_MS, "{lead_ms} ms ahead {when}");
            (lead_ms, BACK_MS as f64 / 2.0)
        };
        assert!(lead_ms > least_ms, "{lead_ms} ms ahead {when}: nothing to pay back");
        let mut client = cluster.client();
        pay_back(&cluster, &mut client);
        assert_burst_ends_at_the_drift(&mut client, when);
    }
}
