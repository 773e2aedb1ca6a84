//! The mark in a standby's file, and crashes at the end of recovery. PostgreSQL no longer knows the time up to which it has
//! replayed: only the file does.

use idgen_testkit::ids::{count_repeated, last};
use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Cluster, Stop, high_water, rounds};

use crate::recovery::{Behind, HOUR_MS, SECOND_MS, insert, primary, primary_of, standby_of, stored};
use crate::{builder, draw_not_above, ms, set_clock, time_of, true_ms};

/// The ways in which a standby becomes an ordinary server without writing its own mark.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// Its postmaster is killed right after the promotion.
    Crash,
    /// It is stopped cleanly, and standby.signal is deleted by hand.
    SignalDeleted,
}

struct Outcome {
    replicated: usize,
    /// The number of new ids that are not above the last replicated one.
    below: usize,
    /// The number of replicated ids that were issued again.
    again: usize,
    /// The new server wrote a mark, so it did not crash before its first one.
    marked: bool,
}

/// The time of the last commit that a standby has replayed, by its primary's clock.
fn replayed_ms(standby: &Cluster) -> i64 {
    ms(&mut standby.client(), "pg_last_xact_replay_timestamp()")
}

fn wait_for_mark_past(standby: &Cluster, replayed_ms: i64) {
    standby.wait_for(PATIENCE, "a mark past the replayed commits", || high_water::mark_ms(standby) > replayed_ms);
}

/// Draws a hundred thousand ids on a primary, turns its standby into a server, and lets the new server's clock pass the same
/// instants. Without the mark, the new server has the file of the base backup.
fn replay_instants(primary: Cluster, ending: Ending, with_the_mark: bool) -> Outcome {
    let standby = standby_of(&primary, Behind::Hour);
    let copied = high_water::bytes(&primary);
    let early = stored(&mut primary.client());
    primary.execute("INSERT INTO t SELECT id FROM snowflake_next_many(100000) AS id");
    standby.wait_until_replayed(&primary);
    wait_for_mark_past(&standby, replayed_ms(&standby));
    primary.kill9_postmaster();
    let turn = high_water::newest_record(&standby).record.turn;
    let signal = standby.data_dir().join("standby.signal");
    match ending {
        Ending::Crash => {
            standby.execute("SELECT pg_promote(false)");
            standby.wait_for(PATIENCE, "the end of recovery", || !signal.exists());
            standby.kill9_postmaster();
        }
        Ending::SignalDeleted => {
            standby.stop(Stop::Fast);
            std::fs::remove_file(signal).expect("a standby's data directory");
        }
    }
    let marked = high_water::newest_record(&standby).record.turn > turn;
    if !with_the_mark {
        std::fs::write(high_water::file(&standby), copied).expect("the standby's file");
    }

    // Far enough back that the start of the server ends before these instants.
    set_clock(&standby, true_ms() + HOUR_MS / 2);
    standby.start_again();
    let mut client = standby.client();
    assert!(value::<bool>(&mut client, "SELECT NOT pg_is_in_recovery()"), "{ending:?}");
    let replicated = stored(&mut client).split_off(early.len());
    assert_eq!(replicated.len(), 100_000);
    let [begin_ms, end_ms] = [replicated[0], last(&replicated)].map(|id| time_of(&mut client, id, "snowflake"));
    // Enough ids without a gap from a second before the first one to past the last one.
    let count = usize::try_from((end_ms - begin_ms + SECOND_MS + 100) * 4096).expect("a count");
    set_clock(&standby, begin_ms - SECOND_MS);
    let again = draw_not_above(&mut client, "snowflake", count, last(&replicated));
    Outcome { replicated: replicated.len(), below: again.len(), again: count_repeated(&replicated, &again), marked }
}

#[test]
fn crash_before_the_first_mark_of_a_promoted_server_repeats_no_id_smoke() {
    for _ in 0..rounds(1, 10) {
        // The worker checks for the end of recovery five times a second. If it writes the mark before the kill, no id may
        // repeat either, but the test must try again.
        let met = (0..10).any(|_| {
            let outcome = replay_instants(primary(), Ending::Crash, true);
            assert_eq!(outcome.below, 0, "of {} ids", outcome.replicated);
            !outcome.marked
        });
        assert!(met, "all ten promoted servers wrote a mark before they were killed");
    }
}

#[test]
fn standby_started_without_standby_signal_repeats_no_id() {
    for _ in 0..rounds(1, 10) {
        let outcome = replay_instants(primary(), Ending::SignalDeleted, true);
        assert!(!outcome.marked, "a standby writes no mark at its shutdown");
        assert_eq!(outcome.below, 0, "of {} ids", outcome.replicated);
    }
}

/// A prepared transaction can be much newer than the last commit, which the mark of the recovery does not cover. The record
/// tells that it was written in recovery, so the new server looks for prepared transactions itself.
#[test]
fn prepared_transaction_newer_than_the_mark_repeats_no_id() {
    let primary = primary();
    let standby = standby_of(&primary, Behind::Hour);
    primary.execute("INSERT INTO t DEFAULT VALUES");
    primary.clock().set_offset_ms(HOUR_MS + 120 * SECOND_MS);
    let mut client = primary.client();
    execute(&mut client, "BEGIN; INSERT INTO t SELECT id FROM snowflake_next_many(100000) AS id");
    let own = "SELECT array_agg(id ORDER BY id) FROM t WHERE xmin = pg_current_xact_id()::xid";
    let prepared: Vec<i64> = value(&mut client, own);
    execute(&mut client, "PREPARE TRANSACTION 'newer'");
    standby.wait_until_replayed(&primary);
    let [begin_ms, end_ms] = [prepared[0], last(&prepared)].map(|id| time_of(&mut standby.client(), id, "snowflake"));
    wait_for_mark_past(&standby, replayed_ms(&standby));
    assert!(high_water::mark_ms(&standby) < begin_ms, "the mark does not cover the transaction");
    primary.kill9_postmaster();
    standby.stop(Stop::Fast);
    std::fs::remove_file(standby.data_dir().join("standby.signal")).expect("a standby's data directory");

    set_clock(&standby, true_ms() + HOUR_MS / 2);
    standby.start_again();
    let mut client = standby.client();
    let known = "SELECT mark IS NOT NULL FROM idgen.stat_clock";
    standby.wait_for(PATIENCE, "the mark", || value(&mut standby.client(), known));
    execute(&mut client, "COMMIT PREPARED 'newer'");
    let count = usize::try_from((end_ms - begin_ms + SECOND_MS + 100) * 4096).expect("a count");
    set_clock(&standby, begin_ms - SECOND_MS);
    let again = draw_not_above(&mut client, "snowflake", count, last(&prepared));
    assert_eq!(again.len(), 0, "of {} ids", prepared.len());
}

/// The control: without the mark of the recovery the tests above would fail.
#[test]
fn ids_repeat_without_the_mark_of_the_recovery() {
    for ending in [Ending::Crash, Ending::SignalDeleted] {
        let Outcome { replicated, again, .. } = replay_instants(primary(), ending, false);
        assert!(again > replicated / 4, "{ending:?}: {again} of {replicated} ids were issued again");
    }
}

/// The label has the timeline in which it was written, so a server knows that it was promoted since.
#[test]
fn label_prevents_repeats_without_the_mark_of_the_recovery() {
    // Try until the server crashes before its first mark, as above.
    let met = (0..10).any(|_| {
        let outcome = replay_instants(primary_of(builder()), Ending::Crash, false);
        assert!(outcome.marked || outcome.below == 0, "{} ids below one that was replicated", outcome.below);
        !outcome.marked
    });
    assert!(met, "all ten promoted servers wrote a mark before they were killed");
}

#[test]
fn mark_of_a_standby_follows_replayed_commits_in_steps() {
    /// The largest lead of an id: the drift plus, after a crash, one and a half windows.
    const AHEAD_MS: i64 = 5500;
    /// Half of the margin, after which the mark is moved.
    const ROOM_MS: i64 = 5000;
    let primary = primary();
    let standby = standby_of(&primary, Behind::Hour);
    let mut client = primary.client();
    for hours in [1, 3, 50] {
        primary.clock().set_offset_ms(hours * HOUR_MS);
        insert(&mut client, 1);
        standby.wait_until_replayed(&primary);
        let replayed_ms = replayed_ms(&standby);
        assert!(replayed_ms > true_ms() + hours * HOUR_MS - 60 * SECOND_MS, "{hours} hours ahead");
        wait_for_mark_past(&standby, replayed_ms);
        let mark_ms = high_water::mark_ms(&standby);
        assert!(mark_ms >= replayed_ms + AHEAD_MS, "the mark is {} ms past the commit", mark_ms - replayed_ms);
    }
    let unknown = "SELECT mark IS NULL FROM idgen.stat_clock";
    assert!(value::<bool>(&mut standby.client(), unknown), "a standby shows no mark for its own ids");

    // Commits continuously while the clock runs at most three times too fast: the worker checks every fifth of a second,
    // more often than the room is used up.
    let mut records = vec![high_water::newest_record(&standby).record];
    let mut offset_ms = 50 * HOUR_MS;
    let mut commits = 0;
    standby.wait_for(PATIENCE, "the mark to be moved twice", || {
        offset_ms += 20;
        primary.clock().set_offset_ms(offset_ms);
        insert(&mut client, 1);
        commits += 1;
        let newest = high_water::newest_record(&standby).record;
        if newest.turn > records[records.len() - 1].turn {
            records.push(newest);
        }
        commits >= 200 && records.len() >= 3
    });
    for pair in records.windows(2) {
        let turns = i64::try_from(pair[1].turn - pair[0].turn).expect("a count");
        let moved_ms = pair[1].mark_ms - pair[0].mark_ms;
        assert!(moved_ms >= turns * ROOM_MS, "the mark was moved by {moved_ms} ms in {turns} turns");
    }
    // A mark far ahead does not go back with the primary's clock.
    let mark_ms = high_water::mark_ms(&standby);
    primary.clock().set_offset_ms(HOUR_MS);
    insert(&mut client, 1);
    standby.wait_until_replayed(&primary);
    standby.restart();
    assert!(high_water::mark_ms(&standby) >= mark_ms);
}
