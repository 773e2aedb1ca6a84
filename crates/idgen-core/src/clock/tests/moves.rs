//! The effects by which the mark moves: what is written before what, and what is not written.

use super::port::{Failed, OneProcess, Worker};
use super::*;
use crate::clock::moves::{begin, is_ready, move_if_due, raise_to, reserve, write};

/// A record of the file: its mark, and the label that it allows.
fn at(mark: i64, label: i64) -> Record {
    Record { latest_label_ms: NOW_MS + label, ..record(9, NOW_MS + mark) }
}

fn labelled(label: i64) -> Evidence<'static> {
    Evidence { label_ms: Some(NOW_MS + label), ..evidence(NOW_MS) }
}

/// A server whose file has the mark 5500, and allows a label that is far ahead.
fn begun() -> OneProcess {
    let server = OneProcess::new(Some(at(5500, 100_000)));
    begin(&server, &evidence(NOW_MS)).unwrap();
    assert_eq!((server.effects(), server.mark(), server.floor()), (vec!["read".to_owned()], Some(5500), 5500));
    server
}

/// The same, with this label in WAL.
fn labelled_up_to(label: i64) -> OneProcess {
    let server = begun();
    let mut written = server.written.borrow_mut();
    let next = written.labels.begin(&server.high_water.label.reach, NOW_MS + label);
    written.labels.commit(&server.high_water.label.reach, &next);
    drop(written);
    server.signals.set(0);
    server
}

#[test]
fn start_promises_its_floor_by_a_record_unless_the_file_does() {
    let other = |record: Record| Record { life: Some(REPLAYED.to_owned()), ..record };
    let replayed = |label| Evidence { life: REPLAYED, ..labelled(label) };
    let renamed = Record { layout: "js53".to_owned(), ..at(5500, 11_000) };
    let none = "NoFile";
    for (file, evidence, mark, floor, effects, why) in [
        (None, evidence(NOW_MS), None, -59_999, vec![none], "the first start: a session that draws makes the file"),
        (None, replayed(50), Some(5550), 5550, vec!["write 5550, label up to 11050", none], "a promoted server"),
        (None, labelled(50), None, 5550, vec![none], "the file was removed"),
        (Some(at(7000, 9000)), evidence(NOW_MS), Some(7000), 7000, vec![], "a restart"),
        (Some(at(7000, 9000)), labelled(9000), Some(7000), 7000, vec![], "the file allows the label"),
        (
            Some(at(7000, 9000)),
            labelled(9001),
            Some(14_501),
            14_501,
            vec!["write 14501, label up to 20001"],
            "an older file",
        ),
        (
            Some(other(at(90_000, 9000))),
            labelled(50),
            Some(90_000),
            90_000,
            vec!["write 90000, label up to 95500"],
            "the file of another life, which the next start would not take for its own",
        ),
        (Some(renamed), labelled(50), Some(5500), 5500, vec!["LayoutChanged { before: \"js53\" }"], "another layout"),
    ] {
        let (before, server) = (file.clone(), OneProcess::new(file));
        begin(&server, &evidence).unwrap();
        assert_eq!(server.effects(), [&["read"][..], &effects].concat(), "{why}");
        assert_eq!((server.mark(), server.floor()), (mark, floor), "{why}");
        let found_turn = before.map_or(0, |record| record.turn);
        let writes = effects.iter().filter(|effect| effect.starts_with("write")).count() as u64;
        assert_eq!(server.written.borrow().turn, found_turn + writes, "{why}");
        // Ids up to the mark that was found need another one.
        assert!(mark.is_none() || server.high_water.mark.due_ms() == server.high_water.mark.mark_ms(), "{why}");
        begin(&server, &replayed(900_000)).unwrap();
        assert_eq!((server.effects(), server.floor()), (vec![], floor), "once: {why}");
    }
}

/// A later reading could find a record of this start that is not durable.
#[test]
fn start_that_cannot_write_is_not_ready_and_tries_again_without_another_reading() {
    let server = OneProcess::new(Some(at(7000, 9000)));
    server.writes_fail.set(true);
    assert_eq!(begin(&server, &labelled(9001)), Err(Failed));
    assert_eq!((is_ready(&server.high_water), server.mark()), (false, None));
    assert_eq!(server.effects(), ["read", "write fails"]);
    server.writes_fail.set(false);
    begin(&server, &labelled(50)).unwrap();
    assert_eq!((server.effects(), server.mark()), (vec!["write 14501, label up to 20001".to_owned()], Some(14_501)));
}

#[test]
fn first_id_waits_for_a_label_that_the_file_allows_and_then_for_the_mark() {
    let server = OneProcess::new(None);
    begin(&server, &evidence(NOW_MS)).unwrap();
    server.effects();
    reserve(&server, NOW_MS, NOW_MS + DRIFT_MS).unwrap();
    let effects =
        ["write -59999, label up to 11000", "start", "wait for Label", "label 11000", "write 5500, label up to 11000"];
    assert_eq!((server.effects(), server.mark()), (effects.map(str::to_owned).to_vec(), Some(5500)));
}

#[test]
fn mark_moves_only_past_ids_that_reach_it_and_no_further_than_the_label() {
    let server = labelled_up_to(11_000);
    reserve(&server, NOW_MS + 5499, NOW_MS + 6499).unwrap();
    assert!(server.effects().is_empty());
    let server = labelled_up_to(16_500);
    reserve(&server, NOW_MS + 5500, NOW_MS + 6500).unwrap();
    assert_eq!((server.effects(), server.mark()), (vec!["write 11000, label up to 16500".to_owned()], Some(11_000)));
    // One millisecond more than the label, and a file that allows the next one and no later one.
    let allowing = OneProcess::new(Some(at(5500, 16_500)));
    begin(&allowing, &evidence(NOW_MS)).unwrap();
    allowing.effects();
    for server in [labelled_up_to(10_999), allowing] {
        reserve(&server, NOW_MS + 5500, NOW_MS + 6500).unwrap();
        assert_eq!(server.effects(), ["start", "wait for Label", "label 16500", "write 11000, label up to 16500"]);
    }
}

#[test]
fn label_that_is_lowered_before_the_lock_is_taken_stops_the_mark_until_the_next_one() {
    let lowered = || {
        let server = labelled_up_to(20_000);
        server.concurrent.set(Some(Box::new(|server| {
            server.written.borrow_mut().labels.begin(&server.high_water.label.reach, NOW_MS + 5500);
        })));
        server
    };
    let reserved = lowered();
    reserve(&reserved, NOW_MS + 5500, NOW_MS + 6500).unwrap();
    let raised = lowered();
    raise_to(&raised, NOW_MS + 6500).unwrap();
    for (server, mark) in [(reserved, 11_000), (raised, 12_000)] {
        let label = mark + 5500;
        let (lower, write) = (format!("label {label}, which is lower"), format!("write {mark}, label up to {label}"));
        assert_eq!(server.effects(), ["start", "wait for Label", &*lower, &*write]);
        assert_eq!(server.mark(), Some(mark));
    }
    let server = lowered();
    move_if_due(&server, NOW_MS + 6500);
    assert_eq!(server.mark(), Some(5500));
}

#[test]
fn failed_write_publishes_nothing_and_keeps_other_ids_from_trying() {
    let server = labelled_up_to(20_000);
    server.writes_fail.set(true);
    assert_eq!(reserve(&server, NOW_MS + 5500, NOW_MS + 6500), Err(Failed));
    assert_eq!(raise_to(&server, NOW_MS + 6500), Err(Failed));
    assert_eq!(server.effects(), ["write fails", "write fails"]);
    move_if_due(&server, NOW_MS + 6500);
    assert!(server.effects().is_empty());
    assert_eq!((server.mark(), server.floor()), (Some(5500), 5500));
}

#[test]
fn mark_that_is_due_moves_early_unless_another_process_moves_it_or_the_label_is_short() {
    // The time of an id, the label, whether the lock is taken; then the effects, signals and the mark.
    for (time, label, is_busy, effects, signals, mark) in [
        (5499, 15_000, false, vec![], 0, 5500),
        (5500, 15_000, false, vec!["write 10000, label up to 15500"], 1, 10_000),
        (5500, 15_000, true, vec![], 0, 5500),
        (5500, 10_000, false, vec!["write 10000, label up to 15500", "start"], 1, 10_000),
        (5500, 9999, false, vec!["start"], 1, 5500),
    ] {
        let server = labelled_up_to(label);
        server.is_busy.set(is_busy);
        move_if_due(&server, NOW_MS + time);
        assert_eq!(server.effects(), effects, "{time} {label} {is_busy}");
        assert_eq!((server.signals.get(), server.mark()), (signals, Some(mark)), "{time} {label} {is_busy}");
    }
    // The file has to allow the label that is requested.
    let server = OneProcess::new(Some(at(5500, 5500)));
    begin(&server, &evidence(NOW_MS)).unwrap();
    move_if_due(&server, NOW_MS + 5500);
    assert_eq!(server.effects(), ["read", "write 5500, label up to 15500", "start"]);
    // Another process has moved the mark before this one gets the lock.
    let server = labelled_up_to(15_000);
    server.concurrent.set(Some(Box::new(|server| server.high_water.mark.publish(Target::at(NOW_MS + 9500)))));
    move_if_due(&server, NOW_MS + 5500);
    assert!(server.effects().is_empty());
}

#[test]
fn mark_and_floor_pass_the_label_where_no_worker_can_be_started() {
    let begun = || {
        let server = begun();
        server.worker.set(Worker::CannotStart);
        server
    };
    let moved = begun();
    move_if_due(&moved, NOW_MS + 5500);
    assert!(moved.effects().iter().all(|effect| !effect.contains("Passed")), "the next one may find a slot");
    for _ in 0..4 {
        moved.boot_us.set(moved.boot_us.get() + 1_000_000);
        move_if_due(&moved, NOW_MS + 5500);
        assert_eq!(moved.effects(), ["start"]);
    }
    moved.boot_us.set(moved.boot_us.get() + 1_000_000);
    move_if_due(&moved, NOW_MS + 5500);
    assert_eq!(moved.effects(), ["start", "write 10000, label up to 15500", "LabelPassed"]);
    // The next one gets its time.
    moved.worker.set(Worker::IsSuspended);
    moved.boot_us.set(moved.boot_us.get() + 1_000_000);
    move_if_due(&moved, NOW_MS + 8500);
    assert_eq!(moved.effects(), ["write 10000, label up to 18500", "start"]);
    assert_eq!(moved.mark(), Some(10_000));
    let raised = begun();
    raise_to(&raised, NOW_MS + 6500).unwrap();
    let effects = ["start", "wait for Label", "start", "write 12000, label up to 17500", "LabelPassed"];
    assert_eq!(raised.effects(), effects);
}

#[test]
fn mark_in_the_file_does_not_move_back_after_the_window_was_lowered() {
    let server = labelled_up_to(16_500);
    reserve(&server, NOW_MS + 5500, NOW_MS + 6500).unwrap();
    server.effects();
    server.window_ms.set(100);
    move_if_due(&server, NOW_MS + 9500);
    assert_eq!((&*server.effects()[0], server.mark()), ("write 11000, label up to 16500", Some(11_000)));
}

#[test]
fn floor_is_raised_once_a_mark_past_it_is_durable() {
    for (floor, effects, mark, raised) in [
        (6500, vec!["write 12000, label up to 17500"], 12_000, 6500),
        // The mark is past it already.
        (-1000, vec![], 5500, 5500),
        (0, vec![], 5500, 5500),
        (1, vec!["write 5501, label up to 13000"], 5501, 5500),
    ] {
        let server = labelled_up_to(13_000);
        raise_to(&server, NOW_MS + floor).unwrap();
        // Whether the next label is due then is another matter.
        let written = server.effects().into_iter().filter(|effect| effect.starts_with("write"));
        assert_eq!(written.collect::<Vec<_>>(), effects, "{floor}");
        assert_eq!((server.mark(), server.floor()), (Some(mark), raised), "{floor}");
    }
    // The first record of a server: also of what is known without it, where the observed id is earlier.
    let server = OneProcess::new(None);
    begin(&server, &labelled(94_500)).unwrap();
    server.effects();
    raise_to(&server, NOW_MS + 50).unwrap();
    assert_eq!((server.mark(), server.floor()), (Some(105_500), 100_000));
}

#[test]
fn record_allows_the_label_after_its_mark_and_all_that_may_be_in_the_data() {
    for (label, allowed) in [(12_000, 12_500), (13_000, 13_000)] {
        let server = OneProcess::new(Some(at(5500, 13_000)));
        begin(&server, &labelled(label)).unwrap();
        for _ in 0..2 {
            write(&server, &mut server.written.borrow_mut(), NOW_MS + 7000).unwrap();
            assert_eq!(server.effects().pop(), Some(format!("write 7000, label up to {allowed}")));
        }
    }
}

#[test]
fn wait_for_the_lock_of_the_file_ends_with_the_other_process() {
    let server = labelled_up_to(16_500);
    server.is_busy.set(true);
    reserve(&server, NOW_MS + 5500, NOW_MS + 6500).unwrap();
    assert_eq!(server.effects(), ["wait for File", "write 11000, label up to 16500"]);
    assert_eq!(server.signals.get(), 1, "for the next one");
    // The other process has moved it.
    let server = labelled_up_to(16_500);
    server.concurrent.set(Some(Box::new(|server| server.high_water.mark.publish(Target::at(NOW_MS + 11_000)))));
    reserve(&server, NOW_MS + 5500, NOW_MS + 6500).unwrap();
    assert!(server.effects().is_empty());
}
