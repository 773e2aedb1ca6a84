//! The high-water mark, "mark" from here on: reading it before the first id, moving it before ids reach it, writing it
//! exactly at a clean shutdown, and what this server knows about the time before its start.
//!
//! Under the file's lock there is file I/O, which is not interrupted and raises nothing. Errors are returned and raised
//! after the lock is released.

use super::file::{self, FileError};
use super::label;
use super::state::{FILE, GENERATORS, STATE, State, Written};
use crate::pg::latch::{ConditionVariable, WaitEvent};
use crate::pg::{datum, recovery, spi, system_clock};
use crate::settings;
use idgen_core::clock::Target;
use idgen_core::clock::label::{MarkLabel, NextLabel};
use idgen_core::clock::record::Record;
use idgen_core::clock::start::{Commits, Evidence};
use pgrx::prelude::*;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// Reads the file, unless a process has since the server started. Raises what is wrong with the file; the next call tries
/// again, so a repaired file needs no restart.
pub fn ensure_begun() {
    let state = STATE.require();
    if state.is_ready.load(Acquire) {
        return;
    }
    // Before the lock: this reads other files and a catalog, may run a query, and may raise.
    let evidence = evidence(state);
    let layout = settings::canonical_layout();
    let mut begun = None;
    let begin = |written: &mut Written| {
        let mut is_ready = false;
        if !state.is_begun.load(Relaxed) {
            let (found, is_promised) = begin_at_floor(state, written, &evidence)?;
            (begun, is_ready) = (Some(found), is_promised);
            state.is_begun.store(true, Relaxed);
        }
        if !is_ready {
            // The floor and no more: a session that issues an id moves the mark past it.
            let floor_ms = GENERATORS.shared(|table| table.floor_ms());
            write_and_publish(state, written, Target::at(floor_ms))?;
        }
        state.is_ready.store(true, Release);
        Ok(())
    };
    let outcome = under_file_lock(state, |state| !state.is_ready.load(Acquire), begin);
    match begun {
        Some(None) => {
            log!(
                "there is no high-water file \"{}\" yet: ids begin past the label in WAL, or at the clock and the last checkpoint",
                file::PATH
            );
        }
        Some(Some(before)) if before != layout => {
            state.is_layout_changed.store(true, Relaxed);
            log!("idgen.layout is \"{layout}\" and was \"{before}\" when ids were last issued by default");
        }
        _ => {}
    }
    outcome.unwrap_or_else(|e: FileError| file::high_water(e).raise());
}

/// Moves the mark past this time; waits if another process is moving it. Raises if it cannot be moved. Ids can reach
/// `limit_ms`, which is not before that time.
pub fn reserve(state: &State, time_ms: i64, limit_ms: i64) {
    let is_needed = |state: &State| state.mark.mark_ms() <= time_ms;
    let target = Target::past(limit_ms, settings::clock_window_ms());
    while is_needed(state) {
        // Before the lock: this may wait for another process. Tested again under it, because a label can be lowered.
        let may_pass = wait_for_label(state, target.mark_ms);
        let outcome =
            under_file_lock(state, is_needed, |written| match may_pass || state.label.reach.reaches(target.mark_ms) {
                true => write_and_publish(state, written, target),
                false => Ok(()),
            });
        outcome.unwrap_or_else(|e: FileError| file::high_water(e).raise());
    }
    label::keep_ahead(state);
}

/// Moves the mark if it is due and no other process is moving it. Raises nothing, because the mark stops no id yet. After
/// a failed write it waits until an id needs the mark and gets the error: not every id may try a broken disk.
pub fn move_if_due(state: &State, limit_ms: i64) {
    let is_due = |state: &State| state.mark.due_ms() <= limit_ms && state.last_error.load(Relaxed) == 0;
    if !is_due(state) {
        return;
    }
    let target = Target::past(limit_ms, settings::clock_window_ms());
    // idgen.status() shows a failure of the file now; it is an error when ids reach the mark.
    let may_move = |state: &State| state.label.reach.reaches(target.mark_ms) || label::is_given_up(state);
    if !state.label.reach.reaches(target.mark_ms) {
        state.label.request(target.mark_ms, || {
            FILE.try_exclusive(|written| drop(allow_label(state, written, target.mark_ms)));
            state.moved.broadcast();
        });
    }
    if !may_move(state) {
        return;
    }
    let moved = FILE.try_exclusive(|written| {
        if is_due(state) && may_move(state) {
            let _ = write_and_publish(state, written, target);
        }
    });
    if moved.is_some() {
        state.moved.broadcast();
        label::keep_ahead(state);
    }
}

/// Waits until a label lets the mark move to this time, or no worker can write one: true if the mark may pass the label.
fn wait_for_label(state: &State, mark_ms: i64) -> bool {
    let is_needed = |state: &State| !is_label_allowed(state, mark_ms);
    label::wait_for(state, mark_ms, || {
        let outcome = under_file_lock(state, is_needed, |written| allow_label(state, written, mark_ms));
        outcome.unwrap_or_else(|e: FileError| file::high_water(e).raise());
    })
}

fn is_label_allowed(state: &State, mark_ms: i64) -> bool {
    state.label.allowed_ms.load(Acquire) >= reach_ms(mark_ms)
}

/// Makes the file allow a label for this mark. The process that requests the label does it, so that the worker writes no file
/// and the caller gets the error of one.
fn allow_label(state: &State, written: &mut Written, mark_ms: i64) -> Result<(), FileError> {
    if !is_label_allowed(state, mark_ms) {
        written.labels.latest_ms = written.labels.latest_ms.max(reach_ms(mark_ms));
        write(state, written, known_mark_ms(state))?;
    }
    Ok(())
}

/// The mark, or the floor before the first mark of a server.
pub fn known_mark_ms(state: &State) -> i64 {
    if state.mark.is_known() { state.mark.mark_ms() } else { GENERATORS.shared(|table| table.floor_ms()) }
}

/// The wait for another process that writes the file.
static MARK_WAIT: WaitEvent = WaitEvent::new(c"IdgenMark");

/// Does the work under the file's lock if it is needed; waits while another process does it. The wait can be cancelled.
fn under_file_lock(
    state: &State,
    is_needed: impl Fn(&State) -> bool,
    mut work: impl FnMut(&mut Written) -> Result<(), FileError>,
) -> Result<(), FileError> {
    while is_needed(state) {
        // In each turn, also in one that does not sleep: the caller asks again.
        check_for_interrupts!();
        // Before the lock is tried, or a wakeup is lost.
        state.moved.prepare_to_sleep();
        let done = FILE.try_exclusive(|written| {
            ConditionVariable::cancel_sleep();
            if is_needed(state) { work(written) } else { Ok(()) }
        });
        if done.is_none() {
            // Not for ever: a process can end without a broadcast.
            state.moved.sleep(Duration::from_secs(1), &MARK_WAIT);
        }
        ConditionVariable::cancel_sleep();
        if let Some(outcome) = done {
            state.moved.broadcast();
            return outcome;
        }
    }
    Ok(())
}

/// Reads the file and begins everything at its floor. Once: a later reading could find a record of this start that is not
/// durable. Returns the layout in the file, and whether the file promises that floor; after a recovery a record of its own
/// must promise it.
fn begin_at_floor(
    state: &State,
    written: &mut Written,
    evidence: &Evidence,
) -> Result<(Option<String>, bool), FileError> {
    let found = file::read(recovery::system_identifier())?;
    let floor_ms = evidence.floor_ms(found.as_ref());
    let is_promised = found.as_ref().is_none_or(|found| found.record.mark_ms >= floor_ms && !found.record.in_recovery)
        && !evidence.is_replayed;
    written.labels.latest_ms = evidence.label_ms.unwrap_or(i64::MIN);
    GENERATORS.exclusive(|table| {
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

/// Moves the mark, and creates the file if there is none. Durable first, published second.
fn write_and_publish(state: &State, written: &mut Written, target: Target) -> Result<(), FileError> {
    // Never back while the server runs: after idgen.clock_window was lowered, the target can be before the mark.
    write(state, written, target.mark_ms.max(state.mark.mark_ms()))?;
    GENERATORS.exclusive(|_| state.mark.publish(target));
    Ok(())
}

/// Writes down that this start replays another server's WAL: the mark is older than the data. In the postmaster before
/// recovery begins. A file with a damaged record says as much by that, and keeps its records.
fn note_recovery(written: &mut Written) -> Result<(), FileError> {
    match file::read(recovery::system_identifier())? {
        Some(found) if !found.record.in_recovery && !found.other_is_damaged => {
            let record = Record { turn: found.record.turn + 1, in_recovery: true, ..found.record };
            Ok(file::write(&record, written)?)
        }
        _ => Ok(()),
    }
}

/// Chooses the time of the next label.
pub fn choose_label(state: &State) -> NextLabel {
    FILE.exclusive(|written| {
        let (wanted_ms, allowed_ms) = (state.label.wanted_ms.load(Acquire), state.label.allowed_ms.load(Acquire));
        let (drift_ms, window_ms) = (settings::max_drift_ms(), settings::clock_window_ms());
        let until_ms = MarkLabel::next_ms(known_mark_ms(state), wanted_ms, allowed_ms, drift_ms, window_ms);
        written.labels.begin(&state.label.reach, until_ms)
    })
}

/// How far a label for this mark reaches.
fn reach_ms(mark_ms: i64) -> i64 {
    MarkLabel::reach_ms(mark_ms, settings::max_drift_ms(), settings::clock_window_ms())
}

/// Makes all ids begin at this time or later, durably before they do.
pub fn raise_to(floor_ms: i64) {
    let state = STATE.require();
    let mut is_raised = false;
    while !is_raised {
        // Before the lock: this may wait for another process, and another floor may be raised at the same time.
        let may_pass = wait_for_label(state, target_above(state, floor_ms).mark_ms);
        let raise = |written: &mut Written| {
            let target = target_above(state, floor_ms);
            if may_pass || state.label.reach.reaches(target.mark_ms) {
                raise(state, written, floor_ms, target)?;
                is_raised = true;
            }
            Ok(())
        };
        under_file_lock(state, |_| true, raise).unwrap_or_else(|e: FileError| file::high_water(e).raise());
    }
    label::keep_ahead(state);
}

/// The next mark if all ids begin at this time.
fn target_above(state: &State, floor_ms: i64) -> Target {
    // The first record of a server also promises what was known without it.
    let known_ms = if state.mark.is_known() { i64::MIN } else { GENERATORS.shared(|table| table.floor_ms()) };
    let limit_ms = floor_ms.max(known_ms).saturating_add(settings::max_drift_ms());
    Target::past(limit_ms, settings::clock_window_ms())
}

fn raise(state: &State, written: &mut Written, floor_ms: i64, target: Target) -> Result<(), FileError> {
    let is_past = target.mark_ms > state.mark.mark_ms();
    if is_past {
        write(state, written, target.mark_ms)?;
    }
    GENERATORS.exclusive(|table| {
        if is_past {
            state.mark.publish(target);
        }
        table.raise_floor(floor_ms);
    });
    Ok(())
}

/// Writes the record that follows the newest. It allows the next label too, so that the worker need not write. A failed
/// write is repeated at the same place, because only a whole record counts as a turn.
fn write(state: &State, written: &mut Written, mark_ms: i64) -> io::Result<()> {
    let record = Record {
        turn: written.turn + 1,
        mark_ms,
        system_identifier: recovery::system_identifier(),
        in_recovery: false,
        latest_label_ms: written.labels.latest_ms.max(reach_ms(mark_ms)),
        layout: settings::canonical_layout(),
    };
    let began = Instant::now();
    let outcome = file::write(&record, written);
    state.last_error.store(outcome.as_ref().err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EIO)), Relaxed);
    outcome?;
    state.label.allowed_ms.store(record.latest_label_ms, Release);
    state.writes.fetch_add(1, Relaxed);
    state.write_us.fetch_add(began.elapsed().as_micros() as u64, Relaxed);
    Ok(())
}

/// In the postmaster as it gives up shared memory. After a clean shutdown no process is left that could issue, so the mark
/// is written exactly, without the window, and the next start begins there.
pub fn at_exit(code: i32) {
    let Some(state) = STATE.get() else {
        return;
    };
    // An immediate stop exits with code 0, too; only a shutdown checkpoint proves a clean one. And this server must not
    // lower a mark that it never read.
    if code != 0 || !state.mark.is_known() || !recovery::is_shut_down() {
        return;
    }
    // SAFETY: the postmaster gives up shared memory when its children have ended.
    let exact_ms = unsafe { GENERATORS.without_other_processes(|table| table.unused_from_ms()) };
    // SAFETY: as above.
    if let Err(error) = unsafe { FILE.without_other_processes(|written| write(state, written, exact_ms)) } {
        log!("could not write \"{}\" at shutdown; the next start uses the last record: {error}", file::PATH);
    }
}

/// In the postmaster before recovery begins. Recovery removes the evidence, and a kill during the start must not: so the
/// file says what this start has found, until a mark of this server replaces that.
pub fn begin() {
    let state = STATE.require();
    if !recovery::starts_from_other_wal() {
        return;
    }
    state.is_replayed.store(true, Relaxed);
    // SAFETY: the postmaster has no children when it initialises shared memory.
    if let Err(error) = unsafe { FILE.without_other_processes(note_recovery) } {
        // A start must not fail for it. Drawing reports what is wrong with the file.
        file::high_water(error).warn();
    }
}

/// The evidence about the time before this start. In a transaction; without a label this runs a query.
pub fn evidence(state: &State) -> Evidence {
    let label = label::read();
    // A label of an earlier timeline shows that the server was promoted, and has issued nothing since.
    let is_promoted = label.is_some_and(|label| label.timeline != recovery::timeline());
    Evidence {
        wall_ms: system_clock::wall_ms(),
        is_replayed: is_promoted || state.is_replayed.load(Relaxed),
        label_ms: label.map(|label| label.until_ms),
        commits: Commits {
            checkpoint_ms: recovery::checkpoint_ms(),
            replayed_ms: replayed_ms(),
            prepared_ms: if label.is_none() { prepared_ms() } else { None },
        },
        drift_ms: settings::max_drift_ms(),
        window_ms: settings::clock_window_ms(),
    }
}

/// The time of the last commit that was replayed since the server started, on its primary's clock.
fn replayed_ms() -> Option<i64> {
    // SAFETY: reads shared memory, under PostgreSQL's own lock.
    match unsafe { pg_sys::GetLatestXTime() } {
        0 => None,
        us => TimestampWithTimeZone::try_from(us).ok().map(datum::to_ms),
    }
}

/// When the newest prepared transaction was prepared. Its commit can still bring ids that no one here has seen.
fn prepared_ms() -> Option<i64> {
    let query = "SELECT pg_catalog.max(prepared) FROM pg_catalog.pg_prepared_xacts";
    spi::read_one::<TimestampWithTimeZone>(query).map(datum::to_ms)
}
