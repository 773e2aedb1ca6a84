//! A clock that is wrong for a moment and is set right: nothing of it is left where no id was issued under it.

use idgen_testkit::high_water::{directory, mark_ms};
use idgen_testkit::sql::{PATIENCE, check, execute, expect_error, value};
use idgen_testkit::{Cluster, Stop};
use postgres::Client;

use crate::recovery::{insert, primary};
use crate::{builder, draw_one, time_of, wait_until_past_checkpoint};

const DAY_MS: i64 = 86_400_000;
const YEAR_MS: i64 = 365 * DAY_MS;

/// How far ids may be ahead of the clock after a crash: drift and one and a half windows are 5.5 s.
const AFTER_CRASH_MS: f64 = 10_000.0;

/// A wrong clock under which a call has no id, and that call.
#[derive(Clone, Copy, Debug)]
struct Wrong {
    offset_ms: i64,
    sql: &'static str,
    words: &'static str,
}

const WRONGS: [Wrong; 3] = [
    Wrong { offset_ms: 73 * YEAR_MS, sql: "SELECT snowflake_next()", words: "time bits" },
    Wrong { offset_ms: 73 * YEAR_MS, sql: "SELECT count(*) FROM snowflake_next_many(9)", words: "time bits" },
    Wrong {
        offset_ms: 30 * YEAR_MS,
        sql: "SELECT snowflake_next('time:41 worker:10 sequence:12 epoch:2100-01-01')",
        words: "before the epoch",
    },
];

/// Calls under the wrong clock, and sets it right.
fn refused_under(wrong: Wrong, cluster: &Cluster, client: &mut Client) {
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
fn a_refused_call_under_a_wrong_clock_moves_no_mark_at_the_first_generation() {
    for wrong in WRONGS {
        let cluster = builder().start_with_extension();
        refused_under(wrong, &cluster, &mut cluster.client());
        assert!(!directory(&cluster).exists(), "{wrong:?}: nothing was issued, so there is nothing to promise");
        assert_near_the_clock(&cluster, "after the first call ever");
        // The file is there now, and its mark is read again.
        cluster.restart();
        let before_ms = mark_ms(&cluster);
        refused_under(wrong, &cluster, &mut cluster.client());
        assert_eq!(mark_ms(&cluster), before_ms, "{wrong:?}");
        cluster.stop(Stop::Immediate);
        cluster.start_again();
        assert_near_the_clock(&cluster, "after an immediate stop");
    }
}

#[test]
fn a_refused_call_under_a_wrong_clock_moves_no_mark_in_a_session_that_has_drawn() {
    for wrong in WRONGS {
        let cluster = builder().start_with_extension();
        let mut client = cluster.client();
        draw_one(&mut client, "snowflake");
        refused_under(wrong, &cluster, &mut client);
        refused_under(wrong, &cluster, &mut cluster.client());
        cluster.kill9_postmaster();
        cluster.start_again();
        assert_near_the_clock(&cluster, &format!("{wrong:?}"));
    }
}

#[test]
fn an_observed_id_moves_the_mark_past_itself_and_not_past_a_wrong_clock() {
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

/// Ids of the wrong time are there, so it stays with them.
#[test]
fn an_id_that_was_issued_under_a_wrong_clock_keeps_its_place_after_a_crash() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    cluster.clock().set_offset_ms(3 * DAY_MS);
    let ahead = draw_one(&mut client, "snowflake");
    cluster.clock().set_offset_ms(0);
    cluster.kill9_postmaster();
    cluster.start_again();
    assert!(draw_one(&mut cluster.client(), "snowflake").id > ahead.id);
}

/// The worker after recovery issues nothing. Its clock is the true one: see `Behind`. So the mark that it writes is compared
/// with the clock instead: it is where ids begin, and no window further.
#[test]
fn the_worker_after_recovery_promises_no_time_of_its_own_clock() {
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
    // Drift, one and a half windows and the margin past what was replayed. Ids would need as much again.
    assert!(ahead_ms <= 1000 + WINDOW_MS * 3 / 2 + 10_000, "the mark is {ahead_ms} ms ahead");
    // A moment of a wrong clock before the first id.
    for wrong in WRONGS {
        refused_under(wrong, &standby, &mut standby.client());
    }
    assert_eq!(mark_ms(&standby), floor_ms);
    standby.kill9_postmaster();
    standby.start_again();
    let mut client = standby.client();
    let first = draw_one(&mut client, "snowflake");
    assert!(time_of(&mut client, first.id, "snowflake") >= floor_ms, "ids begin at the mark");
    assert!(first.time_ms <= floor_ms + 1000, "{} ms past the mark", first.time_ms - floor_ms);
}

/// The lines of the log about steps forward.
fn told(cluster: &Cluster) -> Vec<String> {
    cluster.log().lines().filter(|line| line.contains("stepped forward")).map(str::to_owned).collect()
}

#[test]
fn a_step_forward_of_more_than_a_day_is_told_and_shown_until_the_clock_is_set_right() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    draw_one(&mut client, "snowflake");
    // Less than a day is no matter.
    cluster.clock().set_offset_ms(DAY_MS - 60_000);
    draw_one(&mut client, "snowflake");
    assert_eq!(told(&cluster), Vec::<String>::new());
    assert!(check(&mut client, "clock").0);

    cluster.clock().set_offset_ms(74 * YEAR_MS);
    for _ in 0..3 {
        expect_error(&mut client, "SELECT snowflake_next()", "22003");
    }
    let lines = told(&cluster);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("27009 days"), "{lines:?}");
    let (ok, message) = check(&mut client, "clock");
    assert!(!ok && message.contains("forward") && message.contains("27009 days"), "{message}");
    assert!(message.contains("reset_stats"), "{message}");

    // Set right: seen at once, also before the next id.
    cluster.clock().set_offset_ms(DAY_MS - 60_000);
    let (ok, message) = check(&mut client, "clock");
    assert!(ok, "{message}");
    draw_one(&mut client, "snowflake");
    assert!(check(&mut client, "clock").0);
}

#[test]
fn a_step_forward_that_is_right_is_acknowledged_by_resetting_the_statistics() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    draw_one(&mut client, "snowflake");
    for times in 1..=2 {
        cluster.clock().set_offset_ms(times * 3 * DAY_MS);
        draw_one(&mut client, "snowflake");
        let (ok, message) = check(&mut client, "clock");
        assert!(!ok && message.contains(&format!("in {times} step")), "{message}");
    }
    assert_eq!(told(&cluster).len(), 2);
    execute(&mut client, "SELECT idgen.reset_stats()");
    let (ok, message) = check(&mut client, "clock");
    assert!(ok, "{message}");
    assert!(draw_one(&mut client, "snowflake").lead_ms <= 1.0, "ids go by the clock");
}
