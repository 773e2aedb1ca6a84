//! Crashes and restarts, with the clock unchanged or set back: no id that a client has seen is issued again, and the lead of
//! ids over the clock that is left by a crash or a step of the clock is paid back for good.

use idgen_testkit::ids::{count_repeated, last};
use idgen_testkit::sql::{PATIENCE, execute, row, value};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;

use crate::{
    builder, draw_not_above, draw_one, ms, set_clock, time_of, wait_for_end_of_worker, wait_until_past_checkpoint,
};

/// Two id spaces.
const LAYOUTS: [&str; 2] = ["snowflake", "js53"];

/// Draws a hundred thousand ids of each layout in a transaction, crashes, and sets the clock back so that it passes the same
/// instants again. Returns per layout the ids seen, and the later ones that are not above them.
fn replay_instants(kill: fn(&Cluster), with_the_mark: bool) -> [(Vec<i64>, Vec<i64>); 2] {
    const SEEN: usize = 100_000;
    let cluster = builder().start_with_extension();
    wait_until_past_checkpoint(&cluster);
    let mut client = cluster.client();
    execute(&mut client, "BEGIN");
    let seen = LAYOUTS.map(|layout| -> Vec<i64> {
        value(&mut client, &format!("SELECT array_agg(id) FROM snowflake_next_many({SEEN}, '{layout}') AS id"))
    });
    let spans: [(i64, i64); 2] = std::array::from_fn(|n| {
        let (layout, ids) = (LAYOUTS[n], &seen[n]);
        (time_of(&mut client, ids[0], layout), time_of(&mut client, last(ids), layout))
    });
    let begin_ms = spans[0].0.min(spans[1].0);
    if !with_the_mark {
        // Otherwise the label would stand in for the mark.
        wait_for_end_of_worker(&cluster, &mut cluster.client());
        cluster.execute("DELETE FROM pg_shseclabel WHERE provider = 'idgen'");
    }
    kill(&cluster);
    if !with_the_mark {
        std::fs::remove_dir_all(cluster.data_dir().join("idgen")).expect("the mark's directory");
    }
    // Recovery ends with a checkpoint, whose time must be earlier than the ids.
    set_clock(&cluster, begin_ms - 10_000);
    cluster.start_again();
    let mut client = cluster.client();
    let checkpoint_ms = ms(&mut client, "(SELECT checkpoint_time FROM pg_control_checkpoint())");
    assert!(checkpoint_ms + 1000 < begin_ms, "checkpoint at {checkpoint_ms}, first id at {begin_ms}");
    std::array::from_fn(|n| {
        // Enough ids without a gap from a second before the first one to past the last one.
        let ((begin_ms, end_ms), per_ms) = (spans[n], [4096, 512][n]);
        set_clock(&cluster, begin_ms - 1000);
        let count = usize::try_from((end_ms - begin_ms + 1100) * per_ms).expect("a count");
        let again = draw_not_above(&mut client, LAYOUTS[n], count.max(2 * SEEN), last(&seen[n]));
        (seen[n].clone(), again)
    })
}

#[test]
fn replayed_instants_repeat_no_id_smoke() {
    for round in 0..rounds(2, 20) {
        let kill = [|cluster: &Cluster| cluster.stop(Stop::Immediate), Cluster::kill9_postmaster][round % 2];
        for (layout, (seen, again)) in LAYOUTS.into_iter().zip(replay_instants(kill, true)) {
            assert_eq!(again.len(), 0, "{layout}: later ids are not above {}", last(&seen));
        }
    }
}

/// The control: the same test without the mark, as on a first start. It shows that the mark prevents the repeats.
#[test]
fn replayed_instants_repeat_ids_without_the_mark() {
    for (layout, (seen, again)) in LAYOUTS.into_iter().zip(replay_instants(Cluster::kill9_postmaster, false)) {
        let again = count_repeated(&seen, &again);
        assert!(again > seen.len() / 4, "{layout}: {again} of {} ids were issued again", seen.len());
    }
}

/// The number of ids drawn, at most a second's worth, and the tick in milliseconds of each layout.
const BORROWERS: [(&str, i64, i64); 4] =
    [("snowflake", 4_096_000, 1), ("sonyflake", 25_600, 10), ("js53", 512_000, 1), ("seconds", 1_000_000, 1000)];

#[test]
fn clean_restart_after_borrowing_continues_where_the_ids_were() {
    let cluster = builder().conf("idgen.max_drift", "1s").start_with_extension();
    // The coarsest layout last: after a restart all layouts begin after its tick.
    for (layout, per_second, tick_ms) in BORROWERS {
        for _ in 0..rounds(2, 10) {
            let mut client = cluster.client();
            let sql = format!("SELECT max(id), count(*) FROM snowflake_next_many({per_second}, '{layout}') AS id");
            let drawn = row(&mut client, &sql);
            let highest: i64 = drawn.get(0);
            assert_eq!(drawn.get::<_, i64>(1), per_second);
            let end_ms = time_of(&mut client, highest, layout) + tick_ms;
            let lead = "(extract(epoch FROM lead) * 1000)::float8";
            let lead_ms: f64 = value(&mut client, &format!("SELECT {lead} FROM idgen.stat_clock"));
            let borrowed = format!("SELECT sum(borrowed)::bigint FROM idgen.stat_snowflake WHERE last_id = {highest}");
            let borrowed: i64 = value(&mut client, &borrowed);
            assert!(layout == "seconds" || borrowed >= per_second / 2, "{layout}: {borrowed} borrowed");
            cluster.restart();

            let mut client = cluster.client();
            let first = draw_one(&mut client, layout);
            assert!(first.id > highest, "{layout}: {} after {highest}", first.id);
            // Exactly there, or at the clock if that is later.
            let expected_ms = first.clock_ms.max(end_ms as f64);
            assert!(first.time_ms as f64 <= expected_ms, "{layout}: {} after {end_ms}", first.time_ms);
            let most_ms = lead_ms + tick_ms as f64;
            assert!(first.lead_ms <= most_ms, "{layout}: {} ms ahead, was {lead_ms}", first.lead_ms);
            for other in LAYOUTS {
                let other = draw_one(&mut client, other);
                assert!(other.lead_ms <= most_ms + tick_ms as f64, "{} ms ahead, was {lead_ms}", other.lead_ms);
            }
        }
    }
}

#[test]
fn clean_restart_keeps_the_lead_and_a_crash_adds_at_most_the_window() {
    const PROMISED_MS: f64 = 91_000.0;
    let cluster = builder().conf("idgen.max_drift", "1s").conf("idgen.clock_window", "60s").start_with_extension();
    wait_until_past_checkpoint(&cluster);
    let draw = || draw_one(&mut cluster.client(), "snowflake");
    let mut before = draw();
    for _ in 0..rounds(3, 20) {
        cluster.restart();
        let first = draw();
        assert!(first.id > before.id);
        assert!(first.lead_ms <= 0.0, "{} ms ahead after a clean restart", first.lead_ms);
        before = first;
    }
    for crash in 1..=rounds(2, 10) {
        cluster.kill9_postmaster();
        cluster.start_again();
        let first = draw();
        assert!(first.id > before.id);
        // The mark was written just before the crash, one and a half windows ahead.
        let most_ms = before.lead_ms.max(0.0) + PROMISED_MS;
        assert!(first.lead_ms <= most_ms, "crash {crash}: {} ms ahead, may be {most_ms}", first.lead_ms);
        let least_ms = 60_000.0;
        assert!(first.lead_ms > before.lead_ms + least_ms / 2.0, "crash {crash}: {} ms ahead", first.lead_ms);
        before = first;
        // A clean restart does not add to the lead of a crash.
        for _ in 0..2 {
            cluster.restart();
            let first = draw();
            assert!(first.id > before.id);
            assert!(first.lead_ms <= before.lead_ms + 1.0, "{} ms ahead after {}", first.lead_ms, before.lead_ms);
            before = first;
        }
    }
}

#[test]
fn evicted_layout_repeats_no_id_after_a_crash() {
    // idgen.layout has one generator, and all other layouts share the second one.
    let cluster = builder().conf("idgen.max_generators", "2").start_with_extension();
    for round in 0..rounds(2, 20) {
        let mut client = cluster.client();
        // Ahead of the clock, so that the clock alone would repeat ids.
        let drawn = row(&mut client, "SELECT min(id), max(id) FROM snowflake_next_many(400000, 'js53') AS id");
        let (first, highest): (i64, i64) = (drawn.get(0), drawn.get(1));
        let begin_ms = time_of(&mut client, first, "js53");
        let others = ["pgedge", "instagram"].map(|layout| draw_one(&mut client, layout).id);
        let left = "SELECT count(*) FROM idgen.stat_snowflake WHERE last_id BETWEEN $1 AND $2";
        assert_eq!(client.query_one(left, &[&first, &highest]).unwrap().get::<_, i64>(0), 0, "js53 was evicted");
        match round % 2 {
            0 => cluster.kill9_postmaster(),
            _ => cluster.stop(Stop::Fast),
        }
        set_clock(&cluster, begin_ms);
        cluster.start_again();
        let mut client = cluster.client();
        assert!(draw_one(&mut client, "js53").id > highest);
        assert_eq!(draw_not_above(&mut client, "js53", 500_000, highest), Vec::<i64>::new());
        assert!(draw_one(&mut client, "pgedge").id > others[0]);
        assert!(draw_one(&mut client, "instagram").id > others[1]);
    }
}

/// 256 ids in a tick of 10 ms.
const SLOW: &str = "sonyflake";
const PER_SECOND: i64 = 25_600;
const DRIFT_MS: f64 = 1000.0;
const WINDOW_MS: f64 = 3000.0;
/// The lead that ids may keep: a tick, and the ids that others issue before the clock is read again.
const GRAIN_MS: f64 = 10.0 + 20.0;

fn with_a_short_window() -> Cluster {
    let builder = builder().conf("idgen.clock_window", &format!("{WINDOW_MS}ms"));
    let cluster = builder.conf("idgen.max_drift", &format!("{DRIFT_MS}ms")).start_with_extension();
    wait_until_past_checkpoint(&cluster);
    cluster
}

fn lead_ms(client: &mut Client) -> f64 {
    draw_one(client, SLOW).lead_ms
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
    execute(client, &format!("SELECT count(*) FROM snowflake_next_many({}, '{SLOW}')", 3 * PER_SECOND));
    let lead_ms = lead_ms(client);
    assert!(lead_ms <= DRIFT_MS + GRAIN_MS, "{lead_ms} ms ahead after a burst {when}");
    let borrowed = value::<i64>(client, sum) - before;
    assert!(borrowed > PER_SECOND / 4, "{borrowed} borrowed: no burst {when}");
}

#[test]
fn lead_after_a_crash_or_a_step_is_no_room_for_bursts_once_paid_back() {
    const BACK_MS: i64 = 10_000;
    for (round, when) in ["after a crash", "after a step"].into_iter().cycle().take(2 * rounds(1, 10)).enumerate() {
        let cluster = with_a_short_window();
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
