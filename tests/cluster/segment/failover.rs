//! Standbys: a synchronous one has every refill whose values were used, an asynchronous one those of its replicated rows.

use std::sync::atomic::{AtomicUsize, Ordering};

use idgen_testkit::ids::{assert_increasing, last};
use idgen_testkit::segment::next;
use idgen_testkit::sql::{PATIENCE, column, execute, ids, value};
use idgen_testkit::{Cluster, Stop, rounds};

use crate::refill::{wait_for_report, wait_until_worker_waits, worker};
use crate::{COMMITS_WAIT_FOR_LOCK, HOLD_COMMITS, draw_dry, max_id, singly, with_segment};

const STEP: i64 = 100;

/// A primary with a synchronous standby. Ordinary commits do not wait for it, a common setting for speed.
fn with_synchronous_standby() -> (Cluster, Cluster) {
    let primary = with_segment(Cluster::builder().conf("synchronous_commit", "local"), STEP);
    let standby = primary.standby_builder().synchronous().start();
    (primary, standby)
}

fn promote(primary: &Cluster, standby: &Cluster) {
    primary.kill9_postmaster();
    standby.start_again();
    standby.promote();
}

#[test]
fn promoted_synchronous_standby_repeats_no_value_that_was_seen() {
    let (primary, standby) = with_synchronous_standby();
    let mut client = primary.client();
    let mut seen = ids(&mut client, &singly(10 * STEP + 30));
    standby.stop(Stop::Fast);
    // Values in the ring are still issued, but no range that the standby lacks.
    let (rest, _) = draw_dry(&mut client);
    wait_until_worker_waits(&primary, "SyncRep");
    assert_eq!(draw_dry(&mut client).0, []);
    assert!(!rest.is_empty());
    seen.extend(rest);
    assert_eq!(seen, (1..=last(&seen)).collect::<Vec<_>>());
    drop(client);

    promote(&primary, &standby);
    // The standby has exactly the confirmed range.
    assert_eq!(next(&mut standby.client(), "t"), last(&seen) + 1);
}

/// The old primary still runs, but it has no standby to confirm its refills.
#[test]
fn two_primaries_after_synchronous_replication_repeat_no_value() {
    let (primary, standby) = with_synchronous_standby();
    let mut on_old = primary.client();
    let mut seen = ids(&mut on_old, &singly(5 * STEP + 30));
    standby.promote();
    let on_new = ids(&mut standby.client(), &singly(5 * STEP));
    let (rest, _) = draw_dry(&mut on_old);
    assert!(!rest.is_empty(), "the old primary issues the rest of its ring");
    seen.extend(rest);
    assert_increasing(&seen);
    assert_increasing(&on_new);
    assert!(last(&seen) < on_new[0], "{} after {} on the old primary", on_new[0], last(&seen));
}

/// The reasons why a locally committed range is not used.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// The wait for the standby is cancelled.
    Cancelled,
    /// The waiting worker is terminated.
    Terminated,
}

/// The range is skipped, because the standby may not have it.
fn assert_ended_wait_skips_its_range(ending: Ending) {
    let (primary, standby) = with_synchronous_standby();
    let mut client = primary.client();
    let mut seen = ids(&mut client, &singly(STEP + 10));
    standby.stop(Stop::Fast);
    seen.extend(draw_dry(&mut client).0);
    let confirmed = last(&seen);
    for wasted in 1..=3 {
        let worker_id = wait_until_worker_waits(&primary, "SyncRep");
        // The range becomes visible in the table when the wait ends.
        match ending {
            Ending::Cancelled => {
                execute(&mut client, &format!("SELECT pg_cancel_backend({worker_id})"));
                let (first, end) = (confirmed + (wasted - 1) * STEP + 1, confirmed + wasted * STEP);
                wait_for_report(
                    &primary,
                    "t",
                    &format!(
                        "The wait for the synchronous standby was canceled, so the values {first} to {end} are skipped."
                    ),
                );
            }
            Ending::Terminated => {
                execute(&mut client, &format!("SELECT pg_terminate_backend({worker_id})"));
                let gone = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {worker_id}");
                primary.wait_for(PATIENCE, "the worker to end", || value(&mut client, &gone));
                // A call starts the next one, a second after this one at the earliest.
                primary.wait_for(PATIENCE, "another worker", || {
                    assert_eq!(draw_dry(&mut client).0, [], "{ending:?}");
                    worker(&mut client, "postgres").is_some_and(|pid| pid != worker_id)
                });
            }
        }
        let (drawn, error) = draw_dry(&mut client);
        assert_eq!(drawn, [], "{ending:?}");
        let detail = error.detail().unwrap_or_default();
        assert!(detail.starts_with("The wait for the synchronous standby was canceled"), "{detail}");
        assert_eq!(max_id(&mut client, "t"), confirmed + wasted * STEP, "{ending:?}");
    }
    // The next refill is confirmed when the standby is back.
    wait_until_worker_waits(&primary, "SyncRep");
    standby.start_again();
    execute(&mut client, "SET idgen.segment_timeout = '60s'");
    assert_eq!(next(&mut client, "t"), confirmed + 3 * STEP + 1, "{ending:?}");
}

#[test]
fn cancelled_wait_for_the_standby_skips_its_range() {
    assert_ended_wait_skips_its_range(Ending::Cancelled);
}

#[test]
fn worker_terminated_in_its_wait_for_the_standby_skips_its_range_smoke() {
    assert_ended_wait_skips_its_range(Ending::Terminated);
}

/// A promoted standby inserts above its replicated rows. The primary key rejects repeats.
fn assert_values_continue(standby: &Cluster) {
    let mut client = standby.client();
    let rows: Vec<i64> = column(&mut client, "SELECT id FROM t ORDER BY id");
    assert!(rows.len() > 50, "only {} rows were replicated", rows.len());
    let new = ids(&mut client, "INSERT INTO t SELECT FROM generate_series(1, 1000) RETURNING id");
    assert_increasing(&new);
    assert!(new[0] > last(&rows), "{} after {}", new[0], last(&rows));
}

const TABLE: &str = "CREATE TABLE t (id bigint PRIMARY KEY DEFAULT segment_next('t'))";

#[test]
fn promoted_asynchronous_standby_repeats_no_replicated_value() {
    for _ in 0..rounds(1, 10) {
        let primary = with_segment(Cluster::builder(), 10);
        primary.execute(TABLE);
        let standby = primary.standby();
        insert_until_crash(&primary);
        standby.promote();
        assert_values_continue(&standby);
    }
}

/// Sessions insert rows until the primary is killed.
fn insert_until_crash(primary: &Cluster) {
    const ENOUGH: usize = 300;
    let inserted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut client = primary.client();
            let inserted = &inserted;
            scope.spawn(move || {
                while client.execute("INSERT INTO t SELECT FROM generate_series(1, 3)", &[]).is_ok() {
                    inserted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        primary.wait_for(PATIENCE, "load", || inserted.load(Ordering::Relaxed) > ENOUGH);
        primary.kill9_postmaster();
    });
}

/// The critical moment: the refill has written the row and is about to commit.
#[test]
fn refill_reaches_a_standby_before_the_rows_that_use_it() {
    let primary = with_segment(Cluster::builder(), STEP);
    primary.execute(&format!("{TABLE}; {COMMITS_WAIT_FOR_LOCK}"));
    let standby = primary.standby();
    let [mut client, mut holder] = [primary.client(), primary.client()];
    execute(&mut client, "INSERT INTO t SELECT FROM generate_series(1, 10)");
    execute(&mut holder, HOLD_COMMITS);
    execute(&mut client, "SET idgen.segment_timeout = '100ms'");
    while client.execute("INSERT INTO t DEFAULT VALUES", &[]).is_ok() {}
    standby.wait_until_replayed(&primary);
    drop([client, holder]);
    primary.kill9_postmaster();
    standby.promote();
    assert_values_continue(&standby);
}
