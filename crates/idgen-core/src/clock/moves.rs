//! Reading the high-water file before the first id, moving the mark before ids reach it, and writing it exactly at a clean
//! shutdown.
//!
//! Durable first, published second. Under the file's lock there is file I/O, which is not interrupted and raises nothing.

use super::Target;
use super::label::MarkLabel;
use super::labelling;
use super::port::{Event, HighWater, Port, WaitFor, Written};
use super::record::Record;
use super::start::Evidence;
use crate::sync::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// True if a process has read the file since the server started, and the file promises what it has found.
pub fn is_ready(state: &HighWater) -> bool {
    state.is_ready.load(Acquire)
}

/// Reads the file, unless a process has since the server started. After an error the next call tries again, so a repaired
/// file needs no restart.
pub fn begin<P: Port>(port: &P, evidence: &Evidence) -> Result<(), P::Error> {
    let state = port.high_water();
    let mut begun = None;
    let begin = |written: &mut Written| {
        let mut is_promised = false;
        if !state.is_begun.load(Relaxed) {
            let (layout, promised) = begin_at_floor(port, written, evidence)?;
            (begun, is_promised) = (Some(layout), promised);
            state.is_begun.store(true, Relaxed);
        }
        if !is_promised {
            // The floor and no more: a session that issues an id moves the mark past it.
            let floor_ms = port.generators(|table| table.floor_ms());
            write_and_publish(port, written, Target::at(floor_ms))?;
        }
        state.is_ready.store(true, Release);
        Ok(())
    };
    let outcome = under_file_lock(port, |state| !is_ready(state), begin);
    match begun {
        Some(None) => port.tell(Event::NoFile),
        Some(Some(before)) if before != port.layout() => port.tell(Event::LayoutChanged { before }),
        _ => {}
    }
    outcome
}

/// Reads the file and begins everything at its floor. Once: a later reading could find a record of this start that is not
/// durable. Returns the layout in the file, and whether the file promises that floor; after a recovery a record of its own
/// must promise it.
fn begin_at_floor<P: Port>(
    port: &P,
    written: &mut Written,
    evidence: &Evidence,
) -> Result<(Option<String>, bool), P::Error> {
    let state = port.high_water();
    let found = port.read()?;
    let floor_ms = evidence.floor_ms(found.as_ref());
    let is_promised =
        found.as_ref().is_none_or(|found| found.record.mark_ms >= floor_ms) && !evidence.is_replayed(found.as_ref());
    written.labels.latest_ms = evidence.label_ms.unwrap_or(i64::MIN);
    port.generators(|table| {
        table.raise_floor(floor_ms);
        if is_promised && found.is_some() {
            state.mark.publish(Target::at(floor_ms));
        }
    });
    let Some(found) = found else {
        return Ok((None, is_promised));
    };
    written.turn = found.record.turn;
    state.label.allowed_ms.store(found.record.latest_label_ms, Release);
    Ok((Some(found.record.layout), is_promised))
}

/// Moves the mark past this time; waits if another process is moving it. Ids can reach `limit_ms`, which is not before that
/// time.
pub fn reserve<P: Port>(port: &P, time_ms: i64, limit_ms: i64) -> Result<(), P::Error> {
    let is_needed = |state: &HighWater| state.mark.mark_ms() <= time_ms;
    let state = port.high_water();
    let target = Target::past(limit_ms, port.drift_and_window_ms().1);
    while is_needed(state) {
        // Before the lock: this may wait for another process. Tested again under it, because a label can be lowered.
        let may_pass = labelling::wait_for(port, target.mark_ms)?;
        under_file_lock(port, is_needed, |written| match may_pass || state.label.reach.reaches(target.mark_ms) {
            true => write_and_publish(port, written, target),
            false => Ok(()),
        })?;
    }
    labelling::keep_ahead(port);
    Ok(())
}

/// Moves the mark if it is due and no other process is moving it. Fails silently, because the mark stops no id yet. After
/// a failed write it waits until an id needs the mark and gets the error: not every id may try a broken disk.
pub fn move_if_due<P: Port>(port: &P, limit_ms: i64) {
    let state = port.high_water();
    let is_due = |state: &HighWater| state.mark.due_ms() <= limit_ms && !port.is_failing();
    if !is_due(state) {
        return;
    }
    let target = Target::past(limit_ms, port.drift_and_window_ms().1);
    let label = &state.label;
    let may_move = || label.reach.reaches(target.mark_ms) || label.worker.is_given_up(port.boot_us(), 0);
    if !label.reach.reaches(target.mark_ms) {
        labelling::request(port, target.mark_ms, || {
            port.try_file(|written| drop(allow_label(port, written, target.mark_ms)));
            port.signal();
        });
    }
    if !may_move() {
        return;
    }
    let moved = port.try_file(|written| {
        if is_due(state) && may_move() {
            let _ = write_and_publish(port, written, target);
        }
    });
    if moved.is_some() {
        port.signal();
        labelling::keep_ahead(port);
    }
}

/// Makes all ids begin at this time or later, durably before they do.
pub fn raise_to<P: Port>(port: &P, floor_ms: i64) -> Result<(), P::Error> {
    let state = port.high_water();
    let mut is_raised = false;
    while !is_raised {
        // Before the lock: this may wait for another process, and another floor may be raised at the same time.
        let may_pass = labelling::wait_for(port, target_above(port, floor_ms).mark_ms)?;
        let raise = |written: &mut Written| {
            let target = target_above(port, floor_ms);
            if !may_pass && !state.label.reach.reaches(target.mark_ms) {
                return Ok(());
            }
            let is_past = target.mark_ms > state.mark.mark_ms();
            if is_past {
                write(port, written, target.mark_ms)?;
            }
            port.generators(|table| {
                if is_past {
                    state.mark.publish(target);
                }
                table.raise_floor(floor_ms);
            });
            is_raised = true;
            Ok(())
        };
        under_file_lock(port, |_| true, raise)?;
    }
    labelling::keep_ahead(port);
    Ok(())
}

/// The next mark if all ids begin at this time.
fn target_above<P: Port>(port: &P, floor_ms: i64) -> Target {
    let (drift_ms, window_ms) = port.drift_and_window_ms();
    // The first record of a server also promises what was known without it.
    let is_known = port.high_water().mark.known_ms().is_some();
    let known_ms = if is_known { i64::MIN } else { port.generators(|table| table.floor_ms()) };
    Target::past(floor_ms.max(known_ms).saturating_add(drift_ms), window_ms)
}

/// As [`allow_label`], not under a lock.
pub(super) fn allow<P: Port>(port: &P, mark_ms: i64) -> Result<(), P::Error> {
    under_file_lock(port, |_| !is_label_allowed(port, mark_ms), |written| allow_label(port, written, mark_ms))
}

fn is_label_allowed<P: Port>(port: &P, mark_ms: i64) -> bool {
    port.high_water().label.allowed_ms.load(Acquire) >= reach_ms(port, mark_ms)
}

/// Makes the file allow a label for this mark. The process that requests the label does it, so that the worker writes no file
/// and the caller gets the error of one.
fn allow_label<P: Port>(port: &P, written: &mut Written, mark_ms: i64) -> Result<(), P::Error> {
    if !is_label_allowed(port, mark_ms) {
        written.labels.latest_ms = written.labels.latest_ms.max(reach_ms(port, mark_ms));
        write(port, written, known_mark_ms(port))?;
    }
    Ok(())
}

/// The mark, or the floor before the first mark of a server.
pub(super) fn known_mark_ms<P: Port>(port: &P) -> i64 {
    port.high_water().mark.known_ms().unwrap_or_else(|| port.generators(|table| table.floor_ms()))
}

/// How far a label for this mark reaches.
fn reach_ms<P: Port>(port: &P, mark_ms: i64) -> i64 {
    let (drift_ms, window_ms) = port.drift_and_window_ms();
    MarkLabel::reach_ms(mark_ms, drift_ms, window_ms)
}

/// Does the work under the file's lock if it is needed; waits while another process does it. The wait can be canceled.
fn under_file_lock<P: Port>(
    port: &P,
    is_needed: impl Fn(&HighWater) -> bool,
    mut work: impl FnMut(&mut Written) -> Result<(), P::Error>,
) -> Result<(), P::Error> {
    let state = port.high_water();
    while is_needed(state) {
        // In each turn, also in one that does not sleep: the caller asks again.
        port.check_interrupts();
        // Before the lock is tried, or a wakeup is lost.
        port.prepare_to_wait();
        let done = port.try_file(|written| {
            port.end_wait();
            if is_needed(state) { work(written) } else { Ok(()) }
        });
        if done.is_none() {
            // Not for ever: a process can end without a signal.
            port.wait(WaitFor::File, Duration::from_secs(1));
        }
        port.end_wait();
        if let Some(outcome) = done {
            port.signal();
            return outcome;
        }
    }
    Ok(())
}

/// Moves the mark, and creates the file if there is none.
fn write_and_publish<P: Port>(port: &P, written: &mut Written, target: Target) -> Result<(), P::Error> {
    let mark = &port.high_water().mark;
    // Never back while the server runs: after idgen.clock_window was lowered, the target can be before the mark.
    write(port, written, target.mark_ms.max(mark.mark_ms()))?;
    port.generators(|_| mark.publish(target));
    Ok(())
}

/// Writes the record that follows the newest. It allows the next label too, so that the worker need not write. A failed
/// write is repeated at the same place, because only a whole record counts as a turn.
pub fn write<P: Port>(port: &P, written: &mut Written, mark_ms: i64) -> Result<(), P::Error> {
    let latest_label_ms = written.labels.latest_ms.max(reach_ms(port, mark_ms));
    let record = Record {
        turn: written.turn + 1,
        mark_ms,
        system_identifier: port.system_identifier(),
        life: Some(port.life()),
        latest_label_ms,
        layout: port.layout(),
    };
    port.write(record, written)?;
    port.high_water().label.allowed_ms.store(latest_label_ms, Release);
    Ok(())
}
