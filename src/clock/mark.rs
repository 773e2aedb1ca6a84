//! The durable mark: reading it at the first generation, moving it before it is reached, and leaving it exact.
//!
//! Lock order: the file's lock, then the table's. Under the file's lock there is file I/O, which nothing interrupts and
//! which raises nothing; errors are carried out of it and raised after.

use super::file::{self, FileError};
use super::{State, label, read, recovery};
use crate::shmem::{self, Shared};
use crate::snowflake::layouts;
use crate::{bell, error, settings};
use idgen_core::clock::Target;
use idgen_core::clock::record::Record;
use idgen_core::clock::start::Evidence;
use pgrx::prelude::*;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// Makes sure that time has begun: reads the file if nobody has since the server started. `now_ms` is the clock by which an
/// id is about to be issued; `None` when none is, and then the clock says nothing about where ids begin. Raises what is
/// wrong with the file. The next call tries again, so a file that was mended is found without a restart.
pub fn ensure_begun(shared: &Shared, now_ms: Option<i64>) {
    if shared.clock.is_ready.load(Acquire) {
        return;
    }
    // Before the lock: this reads other files and a catalog, may run a query, and may raise.
    let evidence = recovery::whole_evidence(shared.clock);
    let layout = layouts::default().to_string();
    let mut met = None;
    let load = || {
        let mut is_ready = false;
        if !shared.clock.is_begun.load(Relaxed) {
            let (found, promises) = begin(shared, &evidence, now_ms)?;
            (met, is_ready) = (Some(found), promises);
            shared.clock.is_begun.store(true, Relaxed);
        }
        if !is_ready {
            // The floor and no more. Whoever issues an id moves the mark past that.
            let floor_ms = shared.with_table(|table| table.floor_ms());
            write_and_publish(shared, Target::at(floor_ms))?;
        }
        shared.clock.is_ready.store(true, Release);
        Ok(())
    };
    let outcome = alone(shared, |state| !state.is_ready.load(Acquire), load);
    match met {
        Some(Met::NoFile) => {
            log!("there is no high-water file \"{}\" yet: ids begin at the clock and the last checkpoint", file::PATH);
        }
        Some(Met::File { layout: before }) if before != layout => {
            shared.clock.layout_changed.store(true, Relaxed);
            log!("idgen.layout is \"{layout}\" and was \"{before}\" when ids were last issued by default");
        }
        _ => {}
    }
    outcome.unwrap_or_else(|e: FileError| error::high_water(e).raise());
}

/// What the first generation after a start has met.
enum Met {
    NoFile,
    File { layout: String },
}

/// Moves the mark past this time, and waits while somebody else does. Raises when it cannot be moved. Ids can come to
/// `limit_ms`, which is not before that time.
pub fn reserve(shared: &Shared, time_ms: i64, limit_ms: i64) {
    let is_needed = |state: &State| state.mark.mark_ms() <= time_ms;
    let target = Target::past(limit_ms, settings::clock_window_ms());
    while is_needed(shared.clock) {
        // Before the lock: this may wait for another process.
        label::bound(shared, target.mark_ms);
        let outcome = alone(shared, is_needed, || write_and_publish(shared, target));
        outcome.unwrap_or_else(|e: FileError| error::high_water(e).raise());
    }
    label::keep_ahead(shared);
}

/// Moves the mark if it is due and nobody else is moving it. Raises nothing: it is not in the way yet. After a write that
/// went wrong it is left to whoever needs it, and gets the error; not every id may try a broken disk.
pub fn tend(shared: &Shared, limit_ms: i64) {
    let due = |state: &State| state.mark.due_ms() <= limit_ms && state.last_error.load(Relaxed) == 0;
    if !due(shared.clock) {
        return;
    }
    let target = Target::past(limit_ms, settings::clock_window_ms());
    if label::allows(shared, target.mark_ms) && shared.try_lock_file() {
        if due(shared.clock) {
            // What is wrong shows in idgen.status() now, and as an error when the mark is reached.
            let _ = write_and_publish(shared, target);
        }
        shared.unlock_file();
        shared.clock.moved.ring();
        label::keep_ahead(shared);
    }
}

/// Does the work if it is needed, alone; waits while somebody else does it. The wait can be cancelled, and is outside
/// of the lock: an LWLock's own wait cannot.
fn alone(
    shared: &Shared,
    needed: impl Fn(&State) -> bool,
    mut work: impl FnMut() -> Result<(), FileError>,
) -> Result<(), FileError> {
    let state = shared.clock;
    while needed(state) {
        // Before the lock is tried, so that a wake-up in between is not lost.
        state.moved.listen();
        if shared.try_lock_file() {
            bell::stop_listening();
            let outcome = if needed(state) { work() } else { Ok(()) };
            shared.unlock_file();
            state.moved.ring();
            return outcome;
        }
        // Not for ever: a lock holder may end without a wake-up.
        state.moved.sleep(Duration::from_secs(1), pg_sys::PG_WAIT_EXTENSION);
        bell::stop_listening();
    }
    Ok(())
}

/// Reads the file and begins everything at the floor it says. Once: what a later reading would find may be a record of
/// this start that was written and is not durable. Also says whether the file promises that floor already; after a recovery
/// it has to say so in a record of its own.
fn begin(shared: &Shared, evidence: &Evidence, now_ms: Option<i64>) -> Result<(Met, bool), FileError> {
    let state = shared.clock;
    let found = file::read(system_identifier())?;
    // Without a file ids begin at the clock, if it is one by which an id is issued: it may be wrong for a moment. A file of
    // which one record is damaged says nothing without a clock.
    let wall_ms = now_ms.unwrap_or(if found.is_some() { evidence.wall_ms } else { i64::MIN });
    let floor_ms = Evidence { wall_ms, ..*evidence }.floor_ms(found.as_ref());
    let reading = read();
    let promises = !evidence.recovered && found.as_ref().is_none_or(|found| found.record.mark_ms >= floor_ms);
    shared.with_table(|table| {
        table.raise_floor(floor_ms, &state.effective, reading);
        if promises && found.is_some() {
            state.mark.publish(Target::at(floor_ms));
        }
    });
    let Some(found) = found else {
        return Ok((Met::NoFile, promises));
    };
    state.turn.store(found.record.turn, Relaxed);
    Ok((Met::File { layout: found.record.layout }, promises))
}

/// Moves the mark, and makes the file if there is none. Durable first, published second. For the holder of the file's lock.
fn write_and_publish(shared: &Shared, target: Target) -> Result<(), FileError> {
    // Never back while the server runs: after idgen.clock_window was lowered the target can be before what is promised.
    write(shared.clock, target.mark_ms.max(shared.clock.mark.mark_ms()))?;
    shared.with_table(|_| shared.clock.mark.publish(target));
    Ok(())
}

/// While the server is in recovery: keeps the mark in the file past what has been replayed. Nothing is issued meanwhile,
/// and the mark of this server stays unknown.
pub fn follow(shared: &Shared) -> Result<(), FileError> {
    let evidence = recovery::evidence();
    if !shared.try_lock_file() {
        return Ok(());
    }
    let outcome = file::read(system_identifier()).and_then(|found| {
        let newest = found.map(|found| found.record);
        if let Some(mark_ms) = evidence.followed_ms(newest.as_ref().map(|record| record.mark_ms)) {
            shared.clock.turn.store(newest.map_or(0, |record| record.turn), Relaxed);
            write(shared.clock, mark_ms)?;
        }
        Ok(())
    });
    shared.unlock_file();
    outcome
}

/// Makes everything begin at this time or later, durably before it does.
pub fn raise_to(shared: &Shared, floor_ms: i64) {
    let mut is_raised = false;
    while !is_raised {
        // Before the lock: this may wait for another process, and another floor may be raised meanwhile.
        let bound_ms = label::bound(shared, target_above(shared, floor_ms).mark_ms);
        let outcome = alone(
            shared,
            |_| true,
            || {
                let target = target_above(shared, floor_ms);
                if target.mark_ms <= bound_ms {
                    raise(shared, floor_ms, target)?;
                    is_raised = true;
                }
                Ok(())
            },
        );
        outcome.unwrap_or_else(|e: FileError| error::high_water(e).raise());
    }
    label::keep_ahead(shared);
}

/// Where the mark is moved to when everything is to begin at this time.
fn target_above(shared: &Shared, floor_ms: i64) -> Target {
    // The first record of a server also has to say what was known without it.
    let known_ms = if shared.clock.mark.is_known() { i64::MIN } else { shared.with_table(|table| table.floor_ms()) };
    let limit_ms = floor_ms.max(known_ms).saturating_add(settings::max_drift_ms());
    Target::past(limit_ms, settings::clock_window_ms())
}

/// For the holder of the file's lock.
fn raise(shared: &Shared, floor_ms: i64, target: Target) -> Result<(), FileError> {
    let state = shared.clock;
    let is_past = target.mark_ms > state.mark.mark_ms();
    if is_past {
        write(state, target.mark_ms)?;
    }
    let reading = read();
    shared.with_table(|table| {
        if is_past {
            state.mark.publish(target);
        }
        table.raise_floor(floor_ms, &state.effective, reading);
    });
    Ok(())
}

/// Writes the record that follows the newest. A write that fails is tried again at the same place, because only a
/// whole one counts as a turn.
fn write(state: &State, mark_ms: i64) -> io::Result<()> {
    let record = Record {
        turn: state.turn.load(Relaxed) + 1,
        mark_ms,
        system_identifier: system_identifier(),
        in_recovery: recovery::is_in_progress(),
        layout: layouts::default().to_string(),
    };
    let began = Instant::now();
    let outcome = file::write(&record, directory_mode(), &state.is_name_durable);
    state.last_error.store(outcome.as_ref().err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EIO)), Relaxed);
    outcome?;
    state.turn.store(record.turn, Relaxed);
    state.writes.fetch_add(1, Relaxed);
    state.write_us.fetch_add(began.elapsed().as_micros() as u64, Relaxed);
    Ok(())
}

/// Called in the postmaster as it gives up shared memory. After a clean shutdown no process is left that could issue,
/// so the mark can be written as it is, without the window: the next start begins where this one ended.
#[pg_guard]
pub unsafe extern "C-unwind" fn at_exit(code: i32, _arg: pg_sys::Datum) {
    let Some(shared) = shmem::shared() else {
        return;
    };
    // Code 0 is also that of an immediate stop; only a shutdown checkpoint proves that all went well. And a mark that
    // was never read is not ours to lower.
    if code != 0 || !shared.clock.mark.is_known() || !recovery::is_shut_down() {
        return;
    }
    let exact_ms = shared.settled_ms_at_exit();
    if let Err(error) = write(shared.clock, exact_ms) {
        log!("could not write \"{}\" at shutdown, the next start goes by what is there: {error}", file::PATH);
    }
}

fn system_identifier() -> u64 {
    // SAFETY: reads the control file's copy in shared memory, which is there once recovery has ended.
    unsafe { pg_sys::GetSystemIdentifier() }
}

fn directory_mode() -> u32 {
    // SAFETY: set when the server starts, and never again.
    unsafe { pg_sys::data_directory_mode as u32 }
}
