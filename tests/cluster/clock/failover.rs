//! The mark in a standby's file, and crashes at the end of recovery. PostgreSQL has then forgotten to what time it had
//! replayed: the file is all there is.

use idgen_testkit::ids::{count_repeated, last};
use idgen_testkit::sql::{PATIENCE, execute, value};
use idgen_testkit::{Cluster, Stop, high_water, rounds};

use crate::recovery::{Behind, HOUR_MS, SECOND_MS, insert, primary, primary_of, standby_of, stored};
use crate::{builder, draw_not_above, ms, set_clock, time_of, true_ms};

/// How a standby becomes an ordinary server without a mark of its own.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// It is promoted, and its postmaster is killed as soon as it is no standby any more.
    Crash,
    /// It is stopped in order, and its standby.signal is deleted by hand.
    SignalDeleted,
}

struct Outcome {
    replicated: usize,
    /// How many ids were not past the last of them.
    below: usize,
    /// How many of them came again.
    again: usize,
    /// The new server has written a mark before its end: this was no crash before the first mark.
    marked: bool,
}

/// The time of the last commit that a standby has replayed, by its primary's clock.
fn replayed_ms(standby: &Cluster) -> i64 {
    ms(&mut standby.client(), "pg_last_xact_replay_timestamp()")
}

fn wait_for_mark_past(standby: &Cluster, replayed_ms: i64) {
    standby.wait_for(PATIENCE, "the mark to be past what was replayed", || high_water::mark_ms(standby) > replayed_ms);
}

/// A hundred thousand ids of a primary, the end of its standby, and a clock of the new server that then goes through
/// the same instants. Without the mark, the new server has the file that it was copied with.
fn live_through_the_same_instants(primary: Cluster, ending: Ending, with_the_mark: bool) -> Outcome {
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

    // Not past the instants when it has started, however long that takes.
    set_clock(&standby, true_ms() + HOUR_MS / 2);
    standby.start_again();
    let mut client = standby.client();
    assert!(value::<bool>(&mut client, "SELECT NOT pg_is_in_recovery()"), "{ending:?}");
    let replicated = stored(&mut client).split_off(early.len());
    assert_eq!(replicated.len(), 100_000);
    let [begin_ms, end_ms] = [replicated[0], last(&replicated)].map(|id| time_of(&mut client, id, "snowflake"));
    // From a second before the first of them to beyond the last of them, in ids without a gap.
    let count = usize::try_from((end_ms - begin_ms + SECOND_MS + 100) * 4096).expect("a count");
    set_clock(&standby, begin_ms - SECOND_MS);
    let again = draw_not_above(&mut client, "snowflake", count, last(&replicated));
    Outcome { replicated: replicated.len(), below: again.len(), again: count_repeated(&replicated, &again), marked }
}

#[test]
fn a_crash_before_the_first_mark_of_a_promoted_server_brings_no_id_back_smoke() {
    for _ in 0..rounds(1, 10) {
        // The worker may find the end of recovery, for which it looks five times a second, before the server is killed. Nothing
        // may come again then either, but the crash before the mark is yet to be met.
        let met = (0..10).any(|_| {
            let outcome = live_through_the_same_instants(primary(), Ending::Crash, true);
            assert_eq!(outcome.below, 0, "of {} ids", outcome.replicated);
            !outcome.marked
        });
        assert!(met, "ten promoted servers have all written a mark before they were killed");
    }
}

#[test]
fn a_standby_started_without_its_signal_brings_no_id_back() {
    for _ in 0..rounds(1, 10) {
        let outcome = live_through_the_same_instants(primary(), Ending::SignalDeleted, true);
        assert!(!outcome.marked, "a standby has no mark of its own to write at its shutdown");
        assert_eq!(outcome.below, 0, "of {} ids", outcome.replicated);
    }
}

/// A prepared transaction may be newer than the last commit by any time, and the mark that recovery keeps does not know of
/// it. The record says that it was written in recovery, so the new server looks for such transactions itself.
#[test]
fn a_prepared_transaction_newer_than_the_mark_brings_no_id_back() {
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
    assert!(high_water::mark_ms(&standby) < begin_ms, "the mark alone does not cover it");
    primary.kill9_postmaster();
    standby.stop(Stop::Fast);
    std::fs::remove_file(standby.data_dir().join("standby.signal")).expect("a standby's data directory");

    set_clock(&standby, true_ms() + HOUR_MS / 2);
    standby.start_again();
    let mut client = standby.client();
    let known = "SELECT mark IS NOT NULL FROM idgen.stat_clock";
    standby.wait_for(PATIENCE, "the worker to make the mark known", || value(&mut standby.client(), known));
    execute(&mut client, "COMMIT PREPARED 'newer'");
    let count = usize::try_from((end_ms - begin_ms + SECOND_MS + 100) * 4096).expect("a count");
    set_clock(&standby, begin_ms - SECOND_MS);
    let again = draw_not_above(&mut client, "snowflake", count, last(&prepared));
    assert_eq!(again.len(), 0, "of {} ids", prepared.len());
}

/// The control: it is the mark kept during recovery that does the work, and the tests above would see it if it did not.
#[test]
fn without_the_mark_of_the_recovery_ids_come_back() {
    for ending in [Ending::Crash, Ending::SignalDeleted] {
        let Outcome { replicated, again, .. } = live_through_the_same_instants(primary(), ending, false);
        assert!(again > replicated / 4, "{ending:?}: {again} of {replicated} ids came again");
    }
}

/// The label says in which timeline it was written, so a server knows that it was promoted since.
#[test]
fn a_label_does_without_the_mark_of_the_recovery() {
    // As above. A mark that was written is one that this takes away.
    let met = (0..10).any(|_| {
        let outcome = live_through_the_same_instants(primary_of(builder()), Ending::Crash, false);
        assert!(outcome.marked || outcome.below == 0, "{} ids below one that was replicated", outcome.below);
        !outcome.marked
    });
    assert!(met, "ten promoted servers have all written a mark before they were killed");
}

#[test]
fn the_mark_of_a_standby_follows_what_is_replayed_and_not_each_commit() {
    /// What an id can be ahead of the clock that it was issued by: the drift, and one and a half windows after a crash.
    const AHEAD_MS: i64 = 5500;
    /// Half of the margin: how much of it may be used up before the mark is moved.
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
    assert!(value::<bool>(&mut standby.client(), unknown), "nothing can be issued by it yet");

    // Commits all the while, under a clock that is at most three times as fast as time: the worker's looks, a fifth
    // of a second apart, are closer to one another than the room.
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
    // One that was set far ahead does not go back with the primary's clock.
    let mark_ms = high_water::mark_ms(&standby);
    primary.clock().set_offset_ms(HOUR_MS);
    insert(&mut client, 1);
    standby.wait_until_replayed(&primary);
    standby.restart();
    assert!(high_water::mark_ms(&standby) >= mark_ms);
}
