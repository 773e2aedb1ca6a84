//! A disk that fails while the mark is written: generation stops before the durable mark, and goes on by itself.

use std::sync::atomic::{AtomicBool, Ordering};

use idgen_cluster_tests::Cluster;
use idgen_cluster_tests::high_water::{directory, mark_ms};
use idgen_cluster_tests::ids::assert_increasing;
use idgen_cluster_tests::sql::{PATIENCE, await_wait, backend_pid, check, ids, refused, value};
use postgres::Client;
use postgres::error::DbError;

use crate::shim::{Call, Shim};
use crate::{
    NEXT, assert_after, assert_decoding_works, assert_names_file_and_way_out, assert_no_generation, assert_no_repeats,
    clock_ms, draw_until, next, start, time_ms,
};

/// Half of it is between the time when the mark is due and the mark: long beside any pause of a busy machine.
const WINDOW_MS: i64 = 400;

fn with_shim(window_ms: i64) -> (Cluster, Shim) {
    let builder = Cluster::builder().conf("idgen.max_drift", "0");
    let cluster = start(builder.conf("idgen.clock_window", &format!("{window_ms}ms")));
    let shim = Shim::install(&cluster);
    (cluster, shim)
}

/// Draws until it is refused.
fn draw_until_refused(cluster: &Cluster, client: &mut Client, code: &str) -> (Vec<i64>, DbError) {
    let mut drawn = Vec::new();
    let mut refusal = None;
    cluster.wait_for(PATIENCE, "an error", || {
        for _ in 0..10 {
            match client.query_one(NEXT, &[]) {
                Ok(row) => drawn.push(row.get(0)),
                Err(error) => {
                    refusal = Some(error.as_db_error().expect("the server's error").clone());
                    return true;
                }
            }
        }
        false
    });
    let error = refusal.unwrap();
    assert_eq!(error.code().code(), code, "{error:?}");
    assert_increasing(&drawn);
    (drawn, error)
}

fn last_time_ms(ids: &[i64]) -> i64 {
    time_ms(*ids.iter().max().expect("some were drawn"))
}

/// Under each fault in turn: stops before the mark, goes on when the fault is lifted, stops again, and is killed.
fn fails_and_recovers(faults: &[(&str, &str)]) {
    let (cluster, shim) = with_shim(WINDOW_MS);
    let mut seen = vec![next(&mut cluster.client())];
    for (fault, words) in faults {
        // Shown when an assertion fails.
        println!("{fault}");
        stops_goes_on_and_stops(&cluster, &shim, fault, words, &mut seen);
        cluster.kill9_postmaster();
        shim.order("none");
        cluster.start_again();
        let mut client = cluster.client();
        let after = ids(&mut client, "SELECT snowflake_next() FROM generate_series(1, 1000)");
        assert_no_repeats(&seen, &after);
        assert_after(&seen, &after);
        assert!(check(&mut client, "mark").0);
        assert!(last_time_ms(&after) < mark_ms(&cluster));
        seen.extend(after);
    }
}

fn stops_goes_on_and_stops(cluster: &Cluster, shim: &Shim, fault: &str, words: &str, seen: &mut Vec<i64>) {
    let mut client = cluster.client();
    let mut other = cluster.client();
    seen.extend([next(&mut client), next(&mut other)]);
    let since = shim.calls().len();
    shim.order(fault);
    let (drawn, error) = draw_until_refused(cluster, &mut client, "58030");
    assert_names_file_and_way_out(&error);
    assert!(error.message().contains(words), "{error:?}");
    let durable_ms = shim.durable_mark_ms();
    assert!(last_time_ms(&drawn) < durable_ms, "{} is past {durable_ms}", last_time_ms(&drawn));
    // It went on while the mark was not in the way yet, though it was due.
    let due_ms = durable_ms - WINDOW_MS / 2;
    assert!(last_time_ms(&drawn) >= due_ms, "it ended at {}, and {due_ms} is not reached", last_time_ms(&drawn));
    seen.extend(drawn);

    // Nobody else gets past it, by no way, and reading goes on.
    assert_no_generation(&mut other, "58030");
    assert_no_generation(&mut cluster.client(), "58030");
    assert_decoding_works(&mut client);
    let (ok, message) = check(&mut client, "mark");
    assert!(!ok && message.contains("idgen/clock") && message.contains(words), "{message}");
    assert_eq!(shim.durable_mark_ms(), durable_ms);
    let shown: i64 = value(&mut client, "SELECT round(extract(epoch FROM mark) * 1000)::bigint FROM idgen.stat_clock");
    assert_eq!(shown, durable_ms, "the mark that is shown is the durable one");

    // One that works is enough, in the session that was refused and in others.
    shim.order("none");
    let after = [next(&mut client), next(&mut other), next(&mut cluster.client())];
    assert_after(seen, &after);
    seen.extend(after);
    let (ok, message) = check(&mut client, "mark");
    assert!(ok, "{message}");
    // And stops again.
    shim.order(fault);
    seen.extend(draw_until_refused(cluster, &mut client, "58030").0);
    assert!(last_time_ms(seen) < shim.durable_mark_ms());
    if fault.starts_with("fsync") {
        shim.assert_rewritten_after_failed_sync(since);
    }
}

const EIO: &str = "Input/output error";
const ENOSPC: &str = "No space left on device";

#[test]
fn writes_that_fail() {
    fails_and_recovers(&[("write EIO", EIO), ("write ENOSPC", ENOSPC)]);
}

#[test]
fn a_file_system_that_is_read_only_and_writes_that_are_torn() {
    // The torn one last: ids begin ten seconds ahead after it, and would take as long to come to the next mark.
    fails_and_recovers(&[("open EROFS", "Read-only file system"), ("tear ENOSPC", ENOSPC)]);
}

#[test]
fn syncs_that_fail() {
    fails_and_recovers(&[("fsync EIO", EIO), ("fsync ENOSPC", ENOSPC)]);
}

/// The system forgets what it could not write: a second sync would say that all is well. So one failure is not shown to
/// anybody, and the record is written again.
#[test]
fn one_failed_sync_is_made_good_unseen() {
    let (cluster, shim) = with_shim(WINDOW_MS);
    let mut client = cluster.client();
    let mut drawn = vec![next(&mut client)];
    for failures in 1..=3 {
        shim.order("fsync EIO once");
        let until_ms = clock_ms(&mut client) + 2 * WINDOW_MS;
        drawn.extend(draw_until(&cluster, &mut client, until_ms));
        assert_eq!(shim.failures(), failures);
    }
    assert_increasing(&drawn);
    shim.assert_rewritten_after_failed_sync(0);
    assert!(last_time_ms(&drawn) < shim.durable_mark_ms());
    assert!(check(&mut client, "mark").0);
}

/// Nothing can be promised at the first generation ever: no trace is left that would look like a lost file.
#[test]
fn the_file_cannot_be_made() {
    let (cluster, shim) = with_shim(WINDOW_MS);
    let mut client = cluster.client();
    for fault in ["write ENOSPC", "tear ENOSPC", "fsync EIO", "open EROFS"] {
        shim.order(fault);
        for _ in 0..3 {
            assert_no_generation(&mut client, "58030");
            assert!(!directory(&cluster).exists(), "{fault}");
        }
        assert!(!check(&mut client, "mark").0);
    }
    cluster.kill9_postmaster();
    cluster.start_again();
    assert_no_generation(&mut cluster.client(), "58030");

    shim.order("none");
    let mut client = cluster.client();
    let id = next(&mut client);
    let lead_ms = time_ms(id) - clock_ms(&mut client);
    // The last checkpoint's time is known to the second.
    assert!(lead_ms <= 1000, "ids begin at the clock, not {lead_ms} ms ahead of it");
    assert!(check(&mut client, "mark").0);
    assert!(!cluster.data_dir().join("idgen.tmp").exists());
}

/// The name of the file in the data directory may be lost in a crash of the machine until that directory is synced. Until it
/// is, nothing is promised.
#[test]
fn a_failed_sync_of_the_data_directory_is_repeated_before_anything_is_issued() {
    let (cluster, shim) = with_shim(WINDOW_MS);
    let mut client = cluster.client();
    shim.order("syncdir EIO");
    for _ in 0..3 {
        refused(&mut client, NEXT, "58030");
        refused(&mut cluster.client(), NEXT, "58030");
    }
    assert!(directory(&cluster).exists(), "it has its name");
    shim.order("none");
    let since = shim.calls().len();
    next(&mut client);
    assert_synced_directory(&shim.calls()[since..]);
    let since = shim.calls().len();
    let until_ms = clock_ms(&mut client) + 4 * WINDOW_MS;
    draw_until(&cluster, &mut client, until_ms);
    let again = shim.calls()[since..].iter().filter(|call| matches!(call, Call::SyncDirectory { .. })).count();
    assert_eq!(again, 0, "once it has succeeded it is not repeated");
}

#[test]
fn a_failed_sync_of_the_data_directory_is_repeated_after_a_restart() {
    let (cluster, shim) = with_shim(WINDOW_MS);
    shim.order("syncdir EIO");
    refused(&mut cluster.client(), NEXT, "58030");
    cluster.kill9_postmaster();
    shim.order("none");
    cluster.start_again();
    let since = shim.calls().len();
    next(&mut cluster.client());
    assert_synced_directory(&shim.calls()[since..]);
}

/// Among the calls for an id is a sync of the data directory.
fn assert_synced_directory(calls: &[Call]) {
    let is_synced = calls.iter().any(|call| matches!(call, Call::SyncDirectory { outcome } if outcome == "ok"));
    assert!(is_synced, "{calls:?}");
}

/// A server that starts while its disk fails: each try begins where the first began, however many there are.
#[test]
fn tries_under_a_fault_after_a_start_do_not_run_ahead() {
    for fault in ["write EIO", "fsync EIO"] {
        let (cluster, shim) = with_shim(WINDOW_MS);
        let seen = ids(&mut cluster.client(), "SELECT snowflake_next() FROM generate_series(1, 100)");
        cluster.kill9_postmaster();
        let promised_ms = mark_ms(&cluster);
        cluster.start_again();
        shim.order(fault);
        let mut client = cluster.client();
        for _ in 0..20 {
            refused(&mut client, NEXT, "58030");
        }
        assert_decoding_works(&mut client);
        shim.order("none");
        let before_ms = clock_ms(&mut client);
        let id = next(&mut client);
        assert_after(&seen, &[id]);
        // Ids go on from the mark that the crash has left, or from the clock if that is later by now. One window and a
        // half more is what one try may have promised.
        let bound_ms = promised_ms.max(before_ms) + 3 * WINDOW_MS / 2 + 1000;
        assert!(
            time_ms(id) <= bound_ms,
            "{fault}: 20 tries have moved the ids {} ms ahead of where they had to begin",
            time_ms(id) - promised_ms.max(before_ms)
        );
    }
}

/// The rule about a failed sync holds from the start on.
#[test]
fn a_record_whose_sync_failed_at_the_first_try_after_a_start_is_written_again() {
    let (cluster, shim) = with_shim(WINDOW_MS);
    next(&mut cluster.client());
    cluster.restart();
    shim.order("fsync EIO");
    let mut client = cluster.client();
    for _ in 0..3 {
        refused(&mut client, NEXT, "58030");
    }
    shim.order("none");
    next(&mut client);
    shim.assert_rewritten_after_failed_sync(0);
}

/// While one session sits in a sync that does not return, every other wait for the same can be ended.
fn assert_waits_can_be_ended(cluster: &Cluster, shim: &Shim, waiter: &mut Client) {
    waiter.batch_execute("SET statement_timeout = '200ms'").unwrap();
    refused(waiter, NEXT, "57014");
    refused(waiter, "SELECT count(*) FROM snowflake_next_many(10)", "57014");
    // In a transaction that goes on.
    waiter.batch_execute("BEGIN; SAVEPOINT s").unwrap();
    refused(waiter, NEXT, "57014");
    waiter.batch_execute("ROLLBACK TO s").unwrap();
    assert_decoding_works(waiter);
    waiter.batch_execute("COMMIT; RESET statement_timeout").unwrap();
    assert!(shim.is_held(), "the sync has not returned");

    let pid = backend_pid(waiter);
    for signal in ["pg_cancel_backend", "pg_terminate_backend"] {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.simple_query(NEXT).is_err());
            await_wait(cluster, pid);
            assert!(value::<bool>(&mut cluster.client(), &format!("SELECT {signal}({pid})")));
            assert!(waiting.join().unwrap());
        });
        assert!(shim.is_held(), "the sync has not returned");
        if signal == "pg_cancel_backend" {
            assert_decoding_works(waiter);
        }
    }
    assert!(waiter.simple_query("SELECT 1").is_err(), "the session was terminated");
}

#[test]
fn a_slow_sync_holds_up_nobody_before_the_mark_and_waits_for_it_can_be_ended() {
    // Half a window of room after the mark is due.
    let (cluster, shim) = with_shim(4000);
    let mut waiter = cluster.client();
    let mut late = cluster.client();
    let mut seen = vec![next(&mut waiter), next(&mut late)];
    shim.order("fsync hold");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // One of its calls finds the mark due, and sits in the sync.
        let mover = scope.spawn(|| {
            let mut client = cluster.client();
            let mut drawn = Vec::new();
            while !done.load(Ordering::Relaxed) {
                drawn.push(next(&mut client));
            }
            drawn
        });
        cluster.wait_for(PATIENCE, "the sync", || shim.is_held());
        let durable_ms = shim.durable_mark_ms();
        for _ in 0..50 {
            seen.push(next(&mut waiter));
            seen.extend(ids(&mut late, "SELECT snowflake_next_many(20)"));
            seen.push(value(&mut late, "SELECT snowflake_next('snowflake')"));
        }
        seen.push(next(&mut cluster.client()));
        assert!(shim.is_held(), "all of that was drawn during the sync");
        assert_increasing(&seen);

        // Then the mark is reached, and there is nothing but to wait: without a word, for there is no error.
        waiter.batch_execute("SET statement_timeout = '500ms'").unwrap();
        let (drawn, _) = draw_until_refused(&cluster, &mut waiter, "57014");
        seen.extend(drawn);
        assert!(last_time_ms(&seen) < durable_ms, "{} is past {durable_ms}", last_time_ms(&seen));
        assert_eq!(shim.durable_mark_ms(), durable_ms);
        assert_waits_can_be_ended(&cluster, &shim, &mut waiter);

        // A wait that is not ended gets its id as soon as the mark has moved.
        let pid = backend_pid(&mut late);
        let waiting = scope.spawn(move || next(&mut late));
        await_wait(&cluster, pid);
        done.store(true, Ordering::Relaxed);
        shim.order("none");
        let id = waiting.join().unwrap();
        assert_after(&seen, &[id]);
        let moved = mover.join().unwrap();
        assert_no_repeats(&seen, &moved);
        assert!(last_time_ms(&moved) < shim.durable_mark_ms());
        assert!(next(&mut cluster.client()) > id);
    });
}

#[test]
fn a_slow_first_read_after_a_start_can_be_ended_by_who_waits_for_it() {
    let (cluster, shim) = with_shim(WINDOW_MS);
    let seen = [next(&mut cluster.client())];
    cluster.restart();
    shim.order("fsync hold");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| next(&mut cluster.client()));
        cluster.wait_for(PATIENCE, "the sync", || shim.is_held());
        assert_waits_can_be_ended(&cluster, &shim, &mut cluster.client());
        shim.order("none");
        assert_after(&seen, &[reader.join().unwrap()]);
    });
    let after = next(&mut cluster.client());
    assert_after(&seen, &[after]);
}

/// A server is killed while a record is written and not synced: nothing beyond the old mark was issued.
#[test]
fn killed_during_a_sync() {
    let (cluster, shim) = with_shim(WINDOW_MS);
    let mut seen = vec![next(&mut cluster.client())];
    shim.order("fsync hold");
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let mut client = cluster.client();
            let mut drawn: Vec<i64> = Vec::new();
            while let Ok(row) = client.query_one(NEXT, &[]) {
                drawn.push(row.get(0));
            }
            drawn
        });
        cluster.wait_for(PATIENCE, "the sync", || shim.is_held());
        let mut client = cluster.client();
        client.batch_execute("SET statement_timeout = '200ms'").unwrap();
        seen.extend(draw_until_refused(&cluster, &mut client, "57014").0);
        let durable_ms = shim.durable_mark_ms();
        assert!(last_time_ms(&seen) < durable_ms);
        // The session in the sync does not notice that its postmaster is gone.
        let release = scope.spawn(|| {
            cluster.wait_for(PATIENCE, "the death of the postmaster", || cluster.try_client().is_err());
            shim.order("none");
        });
        cluster.kill9_postmaster();
        release.join().unwrap();
        seen.extend(mover.join().unwrap());
    });
    let writes = shim.calls().iter().filter(|call| matches!(call, Call::Write { .. })).count();
    assert!(writes >= 2, "the mark was moved");
    cluster.start_again();
    let after = ids(&mut cluster.client(), "SELECT snowflake_next() FROM generate_series(1, 1000)");
    assert_no_repeats(&seen, &after);
    assert_after(&seen, &after);
}
