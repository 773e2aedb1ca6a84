//! A clock that is wrong for a moment leaves no effect if no id was issued under it.

use idgen_testkit::high_water::{directory, mark_ms};
use idgen_testkit::sql::{PATIENCE, check, execute, expect_error, value};
use idgen_testkit::{Cluster, Stop};
use postgres::Client;

use crate::recovery::{insert, primary};
use crate::{builder, draw_one, time_of, wait_until_past_checkpoint};

const DAY_MS: i64 = 86_400_000;
const YEAR_MS: i64 = 365 * DAY_MS;

/// The largest lead after a crash. Drift and one and a half windows are 5.5 s.
const AFTER_CRASH_MS: f64 = 10_000.0;

/// A wrong clock and a call that fails under it.
#[derive(Clone, Copy, Debug)]
struct WrongClock {
    offset_ms: i64,
    sql: &'static str,
    words: &'static str,
}

const WRONG_CLOCKS: [WrongClock; 3] = [
    WrongClock { offset_ms: 73 * YEAR_MS, sql: "SELECT snowflake_next()", words: "time bits" },
    WrongClock { offset_ms: 73 * YEAR_MS, sql: "SELECT count(*) FROM snowflake_next_many(9)", words: "time bits" },
    WrongClock {
        offset_ms: 30 * YEAR_MS,
        sql: "SELECT snowflake_next('time:41 worker:10 sequence:12 epoch:2100-01-01')",
        words: "before the epoch",
    },
];

/// Makes the call under the wrong clock, and sets the clock right.
fn fail_under(wrong: WrongClock, cluster: &Cluster, client: &mut Client) {
    cluster.clock().set_offset_ms(wrong.offset_ms);
    let error = expect_error(client, wrong.sql, "22003");
    assert!(error.message().contains(wrong.words), "{wrong:?}: {error:?}");
    cluster.clock().set_offset_ms(0);
}

fn assert_near_the_clock(cluster: &Cluster, when: &str) {
    let drawn = draw_one(&mut cluster.client(), "snowflake");
    assert!(drawn.lead_ms <= AFTER_CRASH_MS, "{when}: ids are {} ms ahead of the clock", drawn.lead_ms);
}

#[test]
fn failed_first_call_under_a_wrong_clock_moves_no_mark() {
    for wrong in WRONG_CLOCKS {
        let cluster = builder().start_with_extension();
        fail_under(wrong, &cluster, &mut cluster.client());
        assert!(!directory(&cluster).exists(), "{wrong:?}: the failed call created the file");
        assert_near_the_clock(&cluster, "after the first call ever");
        // The file exists now, and its mark is read again.
        cluster.restart();
        let before_ms = mark_ms(&cluster);
        fail_under(wrong, &cluster, &mut cluster.client());
        assert_eq!(mark_ms(&cluster), before_ms, "{wrong:?}");
        cluster.stop(Stop::Immediate);
        cluster.start_again();
        assert_near_the_clock(&cluster, "after an immediate stop");
    }
}

#[test]
fn failed_later_call_under_a_wrong_clock_moves_no_mark() {
    for wrong in WRONG_CLOCKS {
        let cluster = builder().start_with_extension();
        let mut client = cluster.client();
        draw_one(&mut client, "snowflake");
        fail_under(wrong, &cluster, &mut client);
        fail_under(wrong, &cluster, &mut cluster.client());
        cluster.kill9_postmaster();
        cluster.start_again();
        assert_near_the_clock(&cluster, &format!("{wrong:?}"));
    }
}

#[test]
fn observed_id_moves_the_mark_past_itself_and_not_past_a_wrong_clock() {
    for has_drawn in [false, true] {
        let cluster = builder().start_with_extension();
        wait_until_past_checkpoint(&cluster);
        if has_drawn {
            draw_one(&mut cluster.client(), "snowflake");
        }
        let mut dba = cluster.client();
        let id: i64 = value(&mut dba, "SELECT snowflake_make(clock_timestamp(), 9, 77)");
        cluster.clock().set_offset_ms(73 * YEAR_MS);
        execute(&mut dba, &format!("SELECT snowflake_observe({id})"));
        cluster.clock().set_offset_ms(0);
        let drawn = draw_one(&mut dba, "snowflake");
        assert!(drawn.id > id && drawn.lead_ms < 1000.0, "{} ms ahead of the clock", drawn.lead_ms);
        cluster.kill9_postmaster();
        cluster.start_again();
        assert_near_the_clock(&cluster, "after a crash");
    }
}

/// Ids with the wrong time exist, so later ids follow them.
#[test]
fn ids_continue_after_one_issued_under_a_wrong_clock() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    cluster.clock().set_offset_ms(3 * DAY_MS);
    let ahead = draw_one(&mut client, "snowflake");
    cluster.clock().set_offset_ms(0);
    cluster.kill9_postmaster();
    cluster.start_again();
    assert!(draw_one(&mut cluster.client(), "snowflake").id > ahead.id);
}

/// The worker after recovery issues no ids. It has the true clock (see `Behind`), so the test compares its mark with the
/// clock: the mark is where ids begin, without a window.
#[test]
fn worker_after_recovery_adds_no_window_to_the_mark() {
    const WINDOW_MS: i64 = 60_000;
    let primary = primary();
    let standby = primary.standby_builder().fake_clock().conf("idgen.clock_window", "60s");
    let standby = standby.conf("max_worker_processes", "8").start();
    insert(&mut primary.client(), 1);
    standby.wait_until_replayed(&primary);
    primary.kill9_postmaster();
    standby.promote();
    let mut client = standby.client();
    let known = "SELECT mark IS NOT NULL FROM idgen.stat_clock";
    standby.wait_for(PATIENCE, "the mark after recovery", || value(&mut client, known));
    let floor_ms = mark_ms(&standby);
    let ahead_ms = floor_ms - crate::true_ms();
    // Drift, one and a half windows and the margin past the replayed time. A window for ids would double that.
    assert!(ahead_ms <= 1000 + WINDOW_MS * 3 / 2 + 10_000, "the mark is {ahead_ms} ms ahead");
    // A wrong clock for a moment before the first id.
    for wrong in WRONG_CLOCKS {
        fail_under(wrong, &standby, &mut standby.client());
    }
    assert_eq!(mark_ms(&standby), floor_ms);
    standby.kill9_postmaster();
    standby.start_again();
    let mut client = standby.client();
    let first = draw_one(&mut client, "snowflake");
    assert!(time_of(&mut client, first.id, "snowflake") >= floor_ms, "ids begin at the mark");
    assert!(first.time_ms <= floor_ms + 1000, "{} ms past the mark", first.time_ms - floor_ms);
}

/// The log lines about steps forward.
fn steps_forward_logged(cluster: &Cluster) -> Vec<String> {
    cluster.log().lines().filter(|line| line.contains("stepped forward")).map(str::to_owned).collect()
}

#[test]
fn step_forward_beyond_a_day_is_reported_until_the_clock_is_right() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    draw_one(&mut client, "snowflake");
    // A step of less than a day is not reported.
    cluster.clock().set_offset_ms(DAY_MS - 60_000);
    draw_one(&mut client, "snowflake");
    assert_eq!(steps_forward_logged(&cluster), Vec::<String>::new());
    assert!(check(&mut client, "clock").0);

    cluster.clock().set_offset_ms(74 * YEAR_MS);
    for _ in 0..3 {
        expect_error(&mut client, "SELECT snowflake_next()", "22003");
    }
    let lines = steps_forward_logged(&cluster);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("27009 days"), "{lines:?}");
    let (ok, message) = check(&mut client, "clock");
    assert!(!ok && message.contains("forward") && message.contains("27009 days"), "{message}");
    assert!(message.contains("reset_stats"), "{message}");

    // The check is ok at once, before the next id.
    cluster.clock().set_offset_ms(DAY_MS - 60_000);
    let (ok, message) = check(&mut client, "clock");
    assert!(ok, "{message}");
    draw_one(&mut client, "snowflake");
    assert!(check(&mut client, "clock").0);
}

#[test]
fn reset_stats_acknowledges_a_correct_step_forward() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    draw_one(&mut client, "snowflake");
    for times in 1..=2 {
        cluster.clock().set_offset_ms(times * 3 * DAY_MS);
        draw_one(&mut client, "snowflake");
        let (ok, message) = check(&mut client, "clock");
        assert!(!ok && message.contains(&format!("in {times} step")), "{message}");
    }
    assert_eq!(steps_forward_logged(&cluster).len(), 2);
    execute(&mut client, "SELECT idgen.reset_stats()");
    let (ok, message) = check(&mut client, "clock");
    assert!(ok, "{message}");
    assert!(draw_one(&mut client, "snowflake").lead_ms <= 1.0, "ids follow the clock");
}
