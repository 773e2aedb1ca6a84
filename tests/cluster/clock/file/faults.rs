//! A disk that fails while the mark is written: generation stops before the durable mark and resumes by itself.

use idgen_testkit::Cluster;
use idgen_testkit::high_water::{directory, mark_ms};
use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::{check, expect_error, ids, value};

use super::shim::{Call, Shim, WINDOW_MS, with_shim};
use super::{
    NEXT, assert_after, assert_decoding_works, assert_names_file_and_remedy, assert_no_generation, clock_ms,
    draw_until, draw_until_refused, last_time_ms, next, time_ms,
};

/// For each fault: ids stop before the mark, resume without the fault, and stop again. Then the server crashes.
fn assert_stops_and_recovers(faults: &[(&str, &str)]) {
    let (cluster, shim) = with_shim(WINDOW_MS);
    let mut seen = vec![next(&mut cluster.client())];
    for (fault, words) in faults {
        // Shown if an assertion fails.
        println!("{fault}");
        assert_stops_resumes_and_stops(&cluster, &shim, fault, words, &mut seen);
        cluster.kill9_postmaster();
        shim.order("none");
        cluster.start_again();
        let mut client = cluster.client();
        let after = ids(&mut client, "SELECT snowflake_next() FROM generate_series(1, 1000)");
        assert_after(&seen, &after);
        assert!(check(&mut client, "mark").0);
        assert!(last_time_ms(&after) < mark_ms(&cluster));
        seen.extend(after);
    }
}

fn assert_stops_resumes_and_stops(cluster: &Cluster, shim: &Shim, fault: &str, words: &str, seen: &mut Vec<i64>) {
    let mut client = cluster.client();
    let mut other = cluster.client();
    seen.extend([next(&mut client), next(&mut other)]);
    let since = shim.calls().len();
    shim.order(fault);
    let (drawn, error) = draw_until_refused(cluster, &mut client, "58030");
    assert_names_file_and_remedy(&error);
    assert!(error.message().contains(words), "{error:?}");
    let durable_ms = shim.durable_mark_ms();
    assert!(last_time_ms(&drawn) < durable_ms, "{} is past {durable_ms}", last_time_ms(&drawn));
    // Ids continued after the mark was due, up to the mark.
    let due_ms = durable_ms - WINDOW_MS / 2;
    assert!(last_time_ms(&drawn) >= due_ms, "ids ended at {}, before {due_ms}", last_time_ms(&drawn));
    seen.extend(drawn);

    // No session gets past the mark by any call, and decoding works.
    assert_no_generation(&mut other, "58030");
    assert_no_generation(&mut cluster.client(), "58030");
    assert_decoding_works(&mut client);
    let (ok, message) = check(&mut client, "mark");
    assert!(!ok && message.contains("idgen/clock") && message.contains(words), "{message}");
    assert_eq!(shim.durable_mark_ms(), durable_ms);
    let shown: i64 = value(&mut client, "SELECT round(extract(epoch FROM mark) * 1000)::bigint FROM idgen.stat_clock");
    assert_eq!(shown, durable_ms, "the view shows the durable mark");

    // Ids resume once a write succeeds, in the failed session and in others.
    shim.order("none");
    let after = [next(&mut client), next(&mut other), next(&mut cluster.client())];
    assert_after(seen, &after);
    seen.extend(after);
    let (ok, message) = check(&mut client, "mark");
    assert!(ok, "{message}");
    // Ids stop again.
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
fn failing_writes_stop_ids_before_the_mark() {
    assert_stops_and_recovers(&[("write EIO", EIO), ("write ENOSPC", ENOSPC)]);
}

#[test]
fn read_only_file_system_and_torn_writes_stop_ids_before_the_mark() {
    // The torn write last: after it ids begin ten seconds ahead, and would take as long to reach the next mark.
    assert_stops_and_recovers(&[("open EROFS", "Read-only file system"), ("tear ENOSPC", ENOSPC)]);
}

#[test]
fn failing_syncs_stop_ids_before_the_mark() {
    assert_stops_and_recovers(&[("fsync EIO", EIO), ("fsync ENOSPC", ENOSPC)]);
}

/// After a failed sync the kernel drops the dirty pages, and a second sync would succeed. So idgen writes the record again,
/// and no caller gets an error.
#[test]
fn single_failed_sync_is_repaired_without_an_error() {
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

/// If the first mark cannot be written, nothing is left that would look like a damaged file.
#[test]
fn failed_creation_of_the_file_leaves_nothing() {
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
    // The last checkpoint's time has a resolution of a second.
    assert!(lead_ms <= 1000, "ids begin {lead_ms} ms ahead of the clock");
    assert!(check(&mut client, "mark").0);
    assert!(!cluster.data_dir().join("idgen.tmp").exists());
}

/// A crash of the machine can lose the name of the new file until the data directory is synced. No id is issued before that.
#[test]
fn failed_sync_of_the_data_directory_is_repeated_before_the_first_id() {
    let (cluster, shim) = with_shim(WINDOW_MS);
    let mut client = cluster.client();
    shim.order("syncdir EIO");
    for _ in 0..3 {
        expect_error(&mut client, NEXT, "58030");
        expect_error(&mut cluster.client(), NEXT, "58030");
    }
    assert!(directory(&cluster).exists(), "the directory exists");
    shim.order("none");
    let since = shim.calls().len();
    next(&mut client);
    assert_synced_directory(&shim.calls()[since..]);
    let since = shim.calls().len();
    let until_ms = clock_ms(&mut client) + 4 * WINDOW_MS;
    draw_until(&cluster, &mut client, until_ms);
    let again = shim.calls()[since..].iter().filter(|call| matches!(call, Call::SyncDirectory { .. })).count();
    assert_eq!(again, 0, "a successful sync of the directory is not repeated");
}

#[test]
fn failed_sync_of_the_data_directory_is_repeated_after_a_restart() {
    let (cluster, shim) = with_shim(WINDOW_MS);
    shim.order("syncdir EIO");
    expect_error(&mut cluster.client(), NEXT, "58030");
    cluster.kill9_postmaster();
    shim.order("none");
    cluster.start_again();
    let since = shim.calls().len();
    next(&mut cluster.client());
    assert_synced_directory(&shim.calls()[since..]);
}

/// The calls include a successful sync of the data directory.
fn assert_synced_directory(calls: &[Call]) {
    let is_synced = calls.iter().any(|call| matches!(call, Call::SyncDirectory { outcome } if outcome == "ok"));
    assert!(is_synced, "{calls:?}");
}

/// The disk fails at the start of a server: every attempt begins where the first one began.
#[test]
fn failed_attempts_after_a_start_do_not_move_the_ids_ahead() {
    for fault in ["write EIO", "fsync EIO"] {
        let (cluster, shim) = with_shim(WINDOW_MS);
        let seen = ids(&mut cluster.client(), "SELECT snowflake_next() FROM generate_series(1, 100)");
        cluster.kill9_postmaster();
        let promised_ms = mark_ms(&cluster);
        cluster.start_again();
        shim.order(fault);
        let mut client = cluster.client();
        for _ in 0..20 {
            expect_error(&mut client, NEXT, "58030");
        }
        assert_decoding_works(&mut client);
        shim.order("none");
        let before_ms = clock_ms(&mut client);
        let id = next(&mut client);
        assert_after(&seen, &[id]);
        // Ids continue from the mark that the crash left, or from the clock if that is later. One attempt may have added one
        // and a half windows.
        let bound_ms = promised_ms.max(before_ms) + 3 * WINDOW_MS / 2 + 1000;
        assert!(
            time_ms(id) <= bound_ms,
            "{fault}: 20 attempts have moved the ids {} ms ahead",
            time_ms(id) - promised_ms.max(before_ms)
        );
    }
}

/// The rule about failed syncs also applies right after a start.
#[test]
fn record_with_a_failed_sync_after_a_start_is_written_again() {
    let (cluster, shim) = with_shim(WINDOW_MS);
    next(&mut cluster.client());
    cluster.restart();
    shim.order("fsync EIO");
    let mut client = cluster.client();
    for _ in 0..3 {
        expect_error(&mut client, NEXT, "58030");
    }
    shim.order("none");
    next(&mut client);
    shim.assert_rewritten_after_failed_sync(0);
}
