//! Standbys: a synchronous one has every refill whose values were used, an asynchronous one the refill of every row it has.

use std::sync::atomic::{AtomicUsize, Ordering};

use idgen_testkit::ids::{assert_increasing, last};
use idgen_testkit::segment::next;
use idgen_testkit::sql::{PATIENCE, column, execute, ids, value};
use idgen_testkit::{Cluster, Stop, rounds};

use crate::refill::{wait_for_report, wait_until_worker_waits};
use crate::{COMMITS_CAN_BE_HELD, HOLD_COMMITS, draw_dry, max_id, singly, with_segment};

const STEP: i64 = 100;

/// A primary with a synchronous standby. Commits do not wait for it by themselves, as many set it for speed.
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
fn a_promoted_synchronous_standby_repeats_nothing_that_was_seen() {
    let (primary, standby) = with_synchronous_standby();
    let mut client = primary.client();
    let mut seen = ids(&mut client, &singly(10 * STEP + 30));
    standby.stop(Stop::Fast);
    // The ring goes on being served. What comes after it, the standby does not have.
    let (rest, _) = draw_dry(&mut client);
    wait_until_worker_waits(&primary, "SyncRep");
    assert_eq!(draw_dry(&mut client).0, []);
    assert!(!rest.is_empty());
    seen.extend(rest);
    assert_eq!(seen, (1..=last(&seen)).collect::<Vec<_>>());
    drop(client);

    promote(&primary, &standby);
    // All that was seen, and not more: the standby has what it has confirmed.
    assert_eq!(next(&mut standby.client(), "t"), last(&seen) + 1);
}

/// Nobody has fenced the old primary. It has no standby to confirm its refills any more.
#[test]
fn two_primaries_repeat_nothing_when_replication_was_synchronous() {
    let (primary, standby) = with_synchronous_standby();
    let mut on_old = primary.client();
    let mut seen = ids(&mut on_old, &singly(5 * STEP + 30));
    standby.promote();
    let on_new = ids(&mut standby.client(), &singly(5 * STEP));
    let (rest, _) = draw_dry(&mut on_old);
    assert!(!rest.is_empty(), "the ring goes on being served");
    seen.extend(rest);
    assert_increasing(&seen);
    assert_increasing(&on_new);
    assert!(last(&seen) < on_new[0], "{} after {} on the old primary", on_new[0], last(&seen));
}

/// What keeps a range from being used although this server has committed it.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// An impatient administrator cancels the wait for the standby.
    Cancelled,
    /// Or ends the worker that waits.
    Terminated,
}

/// The range is wasted: nobody knows whether the standby has it. Nobody is ever given a value of it.
fn a_wait_that_is_ended_wastes_its_range(ending: Ending) {
    let (primary, standby) = with_synchronous_standby();
    let mut client = primary.client();
    let mut seen = ids(&mut client, &singly(STEP + 10));
    standby.stop(Stop::Fast);
    seen.extend(draw_dry(&mut client).0);
    let confirmed = last(&seen);
    for wasted in 1..=3 {
        let worker = wait_until_worker_waits(&primary, "SyncRep");
        // The wait is for a range that is in the table, as every session sees when it is over.
        match ending {
            Ending::Cancelled => {
                execute(&mut client, &format!("SELECT pg_cancel_backend({worker})"));
                let (first, end) = (confirmed + (wasted - 1) * STEP + 1, confirmed + wasted * STEP);
                wait_for_report(
                    &primary,
                    "t",
                    &format!(
                        "The wait for the synchronous standby was cancelled, so the values {first} to {end} are not used."
                    ),
                );
            }
            Ending::Terminated => {
                execute(&mut client, &format!("SELECT pg_terminate_backend({worker})"));
                let gone = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {worker}");
                primary.wait_for(PATIENCE, "the worker to end", || value(&mut client, &gone));
            }
        }
        let (drawn, error) = draw_dry(&mut client);
        assert_eq!(drawn, [], "{ending:?}");
        if let Ending::Cancelled = ending {
            let detail = error.detail().unwrap_or_default();
            assert!(detail.starts_with("The wait for the synchronous standby was cancelled"), "{detail}");
        }
        assert_eq!(max_id(&mut client, "t"), confirmed + wasted * STEP, "{ending:?}");
    }
    // The refill that waits now is confirmed when the standby is back.
    wait_until_worker_waits(&primary, "SyncRep");
    standby.start_again();
    execute(&mut client, "SET idgen.segment_timeout = '60s'");
    assert_eq!(next(&mut client, "t"), confirmed + 3 * STEP + 1, "{ending:?}");
}

#[test]
fn a_cancelled_wait_for_the_standby_wastes_its_range() {
    a_wait_that_is_ended_wastes_its_range(Ending::Cancelled);
}

#[test]
fn a_worker_terminated_in_its_wait_for_the_standby_wastes_its_range_smoke() {
    a_wait_that_is_ended_wastes_its_range(Ending::Terminated);
}

/// What a promoted standby makes of the table: rows that go on after those it has. The primary key refuses a repeat.
fn assert_goes_on(standby: &Cluster) {
    let mut client = standby.client();
    let rows: Vec<i64> = column(&mut client, "SELECT id FROM t ORDER BY id");
    assert!(rows.len() > 50, "{} rows arrived", rows.len());
    let new = ids(&mut client, "INSERT INTO t SELECT FROM generate_series(1, 1000) RETURNING id");
    assert_increasing(&new);
    assert!(new[0] > last(&rows), "{} after {}", new[0], last(&rows));
}

const TABLE: &str = "CREATE TABLE t (id bigint PRIMARY KEY DEFAULT segment_next('t'))";

#[test]
fn a_promoted_asynchronous_standby_repeats_no_row_it_has() {
    for _ in 0..rounds(1, 10) {
        let primary = with_segment(Cluster::builder(), 10);
        primary.execute(TABLE);
        let standby = primary.standby();
        insert_until_death(&primary);
        standby.promote();
        assert_goes_on(&standby);
    }
}

/// Sessions insert rows until the primary is killed under them.
fn insert_until_death(primary: &Cluster) {
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

/// The worst moment: the refill has written the row, and is about to commit.
#[test]
fn no_row_reaches_a_standby_before_its_refill() {
    let primary = with_segment(Cluster::builder(), STEP);
    primary.execute(&format!("{TABLE}; {COMMITS_CAN_BE_HELD}"));
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
    assert_goes_on(&standby);
}
