//! The effects by which the label follows the mark, and what happens where no worker can write it.

use super::port::{Canceled, Failed, OneProcess, Worker};
use super::*;
use crate::clock::labelling::{end_wait_of_transaction, fail_label};
use crate::clock::moves::{begin, raise_to, reserve, write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;

/// A year, by which the clock is wrong.
const FAR: i64 = 365 * 86_400_000;

/// A server whose mark is 11000, and its label 16500.
fn labelled() -> OneProcess {
    let server = OneProcess::new(Some(record(9, NOW_MS + 5500)));
    begin(&server, &evidence(NOW_MS)).unwrap();
    reserve(&server, NOW_MS + 5500, NOW_MS + 6500).unwrap();
    assert_eq!((server.mark(), server.label()), (Some(11_000), 16_500));
    server.effects();
    server
}

type Work = fn(&OneProcess) -> Result<(), Failed>;

/// Draws an id at this time.
fn draw(server: &OneProcess, time: i64) -> Result<(), Failed> {
    reserve(server, NOW_MS + time, NOW_MS + time + DRIFT_MS)
}

fn draw_and_be_canceled(server: &OneProcess, time: i64) {
    server.cancels_wait.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| draw(server, time)));
    assert!(outcome.expect_err("a cancel").is::<Canceled>());
}

#[test]
fn next_label_is_requested_once_the_mark_comes_near() {
    // The label covers the move after it, but for a quarter of a window.
    for (label, starts) in [(15_750, false), (15_749, true), (16_500, false), (16_501, true)] {
        let server = labelled();
        let mut written = server.written.borrow_mut();
        let next = written.labels.begin(&server.high_water.label.reach, NOW_MS + label);
        written.labels.commit(&server.high_water.label.reach, &next);
        drop(written);
        server.is_waiting.store(true, Relaxed);
        end_wait_of_transaction(&server);
        assert_eq!(!server.effects().is_empty(), starts, "{label}");
    }
}

/// S3: a standby that is promoted would begin past it.
#[test]
fn label_for_ids_that_were_canceled_is_taken_back() {
    let server = labelled();
    server.worker.set(Worker::IsSuspended);
    draw_and_be_canceled(&server, FAR);
    assert!(server.waits());
    // The label is written although nobody waits for it any more.
    server.worker.set(Worker::Writes);
    server.run_worker();
    assert_eq!(server.label(), FAR + 11_000);
    server.effects();
    end_wait_of_transaction(&server);
    server.run_worker();
    assert_eq!(server.effects(), ["start", "label 16500, which is lower"]);
    assert_eq!((server.label(), server.waits()), (16_500, false));
    // Once.
    end_wait_of_transaction(&server);
    assert!(server.effects().is_empty());
}

#[test]
fn transaction_that_has_waited_for_no_label_requests_none() {
    let server = labelled();
    server.high_water.mark.publish(Target::at(NOW_MS + 16_500));
    end_wait_of_transaction(&server);
    assert!(server.effects().is_empty());
    // A wait that ended with an id is over.
    let server = labelled();
    draw(&server, 16_500).unwrap();
    assert!(!server.waits());
}

/// What waits for a worker that is pending is added to what it has been asked for; a new one gets what is wanted now.
#[test]
fn worker_writes_one_label_for_all_that_wait() {
    for times in [[FAR, 50_000], [50_000, FAR]] {
        let server = labelled();
        server.worker.set(Worker::IsSuspended);
        times.into_iter().for_each(|time| draw_and_be_canceled(&server, time));
        server.worker.set(Worker::Writes);
        server.run_worker();
        assert_eq!(server.label(), FAR + 11_000, "both may wait still");
    }
    let server = labelled();
    server.worker.set(Worker::Fails);
    draw_and_be_canceled(&server, FAR);
    server.worker.set(Worker::Writes);
    server.boot_us.set(server.boot_us.get() + 1_000_000);
    draw(&server, 50_000).unwrap();
    assert_eq!(server.label(), 61_000);
}

#[test]
fn mark_passes_the_label_where_no_worker_writes_it_and_the_next_label_is_told() {
    // The waits are one second each: the next worker may find a slot, and one that is silent gets five seconds.
    for (worker, waits) in [(Worker::CannotStart, 1), (Worker::Fails, 1), (Worker::IsSuspended, 5)] {
        let server = labelled();
        server.worker.set(worker);
        draw(&server, 50_000).unwrap();
        let effects = server.effects();
        assert_eq!(effects.iter().filter(|effect| *effect == "wait for Label").count(), waits, "{worker:?}");
        assert_eq!(effects.iter().filter(|effect| *effect == "LabelPassed").count(), 1, "{worker:?}: {effects:?}");
        assert_eq!((server.mark(), server.label()), (Some(55_500), 16_500), "{worker:?}");
        // Once workers have failed for long, generation goes on without a wait. Nobody is told again.
        for _ in 0..4 {
            server.boot_us.set(server.boot_us.get() + 1_000_000);
            fail_label(&server);
        }
        server.boot_us.set(server.boot_us.get() + 1_000_000);
        draw(&server, 55_500).unwrap();
        let effects = server.effects();
        let waits = effects.iter().filter(|effect| *effect == "wait for Label").count();
        assert_eq!(waits, usize::from(worker != Worker::CannotStart), "{worker:?}: {effects:?}");
        assert!(!effects.contains(&"LabelPassed".to_owned()));
        server.worker.set(Worker::Writes);
        server.boot_us.set(server.boot_us.get() + 10_000_000);
        draw(&server, 61_000).unwrap();
        let effects = server.effects();
        assert_eq!(effects.iter().filter(|effect| *effect == "LabelKnownAgain").count(), 1, "{effects:?}");
        assert_eq!(server.label(), 72_000);
    }
}

#[test]
fn worker_that_fails_wakes_the_sessions_that_wait() {
    let server = labelled();
    let signals = server.signals.get();
    fail_label(&server);
    assert_eq!(server.signals.get(), signals + 1);
}

#[test]
fn label_that_was_written_before_the_wait_needs_none() {
    let server = labelled();
    server.worker.set(Worker::WritesAtOnce);
    draw(&server, 50_000).unwrap();
    let effects = ["write 11000, label up to 61000", "start", "label 61000", "write 55500, label up to 61000"];
    assert_eq!(server.effects(), effects);
}

#[test]
fn wait_for_a_label_can_be_canceled_and_fails_if_the_file_cannot_allow_it() {
    // The file allows the label already.
    let server = OneProcess::new(Some(Record { latest_label_ms: NOW_MS + FAR, ..record(9, NOW_MS + 5500) }));
    begin(&server, &evidence(NOW_MS)).unwrap();
    server.effects();
    let works: [Work; 2] = [|server| draw(server, 50_000), |server| raise_to(server, NOW_MS + 50_000)];
    for work in works {
        server.is_canceled.set(true);
        assert!(catch_unwind(AssertUnwindSafe(|| work(&server))).is_err());
    }
    assert!(server.effects().is_empty(), "before it asks for anything");
    // The label of an earlier start may be as far ahead.
    end_wait_of_transaction(&server);
    server.run_worker();
    assert_eq!(server.effects(), ["start", "label 11000"]);
    let server = labelled();
    server.writes_fail.set(true);
    assert_eq!(draw(&server, 3 * FAR), Err(Failed));
    assert_eq!(server.effects(), ["write fails"], "no worker is started");
    assert!(server.waits(), "until its transaction ends");
}

#[test]
fn worker_requests_the_next_label_if_the_mark_has_reached_its_own_while_it_commits() {
    let server = labelled();
    server.worker.set(Worker::IsSuspended);
    draw_and_be_canceled(&server, 16_500);
    server.effects();
    server.concurrent.set(Some(Box::new(|server| {
        write(server, &mut server.written.borrow_mut(), NOW_MS + 27_500).unwrap();
        server.high_water.mark.publish(Target::at(NOW_MS + 27_500));
    })));
    server.worker.set(Worker::Writes);
    let signals = server.signals.get();
    server.run_worker();
    assert_eq!(server.effects(), ["label 27500", "write 27500, label up to 33000", "start"]);
    assert_eq!(server.signals.get(), signals + 1, "for the sessions that wait");
}
