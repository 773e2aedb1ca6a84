//! The durable mark: reading it at the first generation, moving it before it is reached, and leaving it exact.
//!
//! Lock order: the file's lock, then the table's. Under the file's lock there is file I/O, which nothing interrupts and
//! which raises nothing; errors are carried out of it and raised after.

use super::file::{self, FileError};
use super::{State, read, recovery};
use crate::shmem::{self, Shared};
use crate::snowflake::layouts;
use crate::{error, settings};
use idgen_core::clock::Target;
use idgen_core::clock::record::Record;
use idgen_core::clock::start::Evidence;
use pgrx::prelude::*;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Makes sure that the mark is known: reads the file if nobody has since the server started. Raises what is wrong with
/// it. The next call tries again, so a file that was mended is found without a restart.
pub fn ensure_known(shared: &Shared) {
    if shared.clock.mark.is_known() {
        return;
    }
    // Before the lock: this reads other files and may run a query.
    let evidence = recovery::evidence(shared.clock);
    let mut changed_layout = None;
    let outcome = alone(
        shared,
        |state| !state.mark.is_known(),
        || {
            changed_layout = load(shared, &evidence)?;
            Ok(())
        },
    );
    outcome.unwrap_or_else(|e: FileError| error::high_water(e).raise());
    if let Some((before, now)) = changed_layout {
        log!("idgen.layout is \"{now}\" and was \"{before}\" when ids were last issued by default");
    }
}

/// Moves the mark past this time, and waits while somebody else does. Raises when it cannot be moved.
pub fn reserve(shared: &Shared, time_ms: i64) {
    let outcome = alone(shared, |state| state.mark.mark_ms() <= time_ms, || extend(shared));
    outcome.unwrap_or_else(|e: FileError| error::high_water(e).raise());
}

/// Moves the mark if it is due and nobody else is moving it. Raises nothing: it is not in the way yet.
pub fn tend(shared: &Shared, limit_ms: i64) {
    let due = |state: &State| state.mark.due_ms() <= limit_ms;
    if due(shared.clock) && shared.try_lock_file() {
        if due(shared.clock) {
            // What is wrong shows in idgen.status() now, and as an error when the mark is reached.
            let _ = extend(shared);
        }
        shared.unlock_file();
        wake(shared.clock);
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
        // SAFETY: the condition variable was initialised at its place in shared memory. Prepared before the lock is
        // tried, so that a wake-up in between is not lost; an error in the sleep takes this process off its list.
        unsafe { pg_sys::ConditionVariablePrepareToSleep(state.moved.get()) };
        if shared.try_lock_file() {
            // SAFETY: prepared above.
            unsafe { pg_sys::ConditionVariableCancelSleep() };
            let outcome = if needed(state) { work() } else { Ok(()) };
            shared.unlock_file();
            wake(state);
            return outcome;
        }
        // SAFETY: as above. The time-out is for a lock holder that ends without a wake-up.
        unsafe {
            pg_sys::ConditionVariableTimedSleep(state.moved.get(), 1000, pg_sys::PG_WAIT_EXTENSION);
            pg_sys::ConditionVariableCancelSleep();
        }
    }
    Ok(())
}

fn wake(state: &State) {
    // SAFETY: initialised at its place in shared memory.
    unsafe { pg_sys::ConditionVariableBroadcast(state.moved.get()) };
}

/// Reads the file, begins everything at the floor it says, and promises the first window. Returns the layout of before
/// and of now where `idgen.layout` is another than when the file was written.
fn load(shared: &Shared, evidence: &Evidence) -> Result<Option<(String, String)>, FileError> {
    let state = shared.clock;
    let found = file::read(system_identifier())?;
    let floor_ms = evidence.floor_ms(found.as_ref());
    shared.with_table(|table| table.raise_floor(floor_ms));
    state.effective.raise(floor_ms, read());
    let layout = layouts::default().to_string();
    let before = found.as_ref().map(|found| found.record.layout.clone());
    match found {
        Some(found) => {
            state.turn.store(found.record.turn, Relaxed);
            extend(shared)?;
        }
        None => {
            let target = state.target();
            write(state, target.mark_ms, |record| file::create(record, directory_mode()))?;
            state.mark.publish(target);
            log!("made the high-water file \"{}\": ids begin at the clock and the last checkpoint", file::PATH);
        }
    }
    let changed = before.filter(|before| *before != layout).map(|before| (before, layout));
    if changed.is_some() {
        shared.clock.layout_changed.store(true, Relaxed);
    }
    Ok(changed)
}

/// Moves the mark on from now. Durable first, published second. For the holder of the file's lock.
fn extend(shared: &Shared) -> Result<(), FileError> {
    let target = shared.clock.target();
    write(shared.clock, target.mark_ms, file::write)?;
    shared.clock.mark.publish(target);
    Ok(())
}

/// Makes everything begin at this time or later, durably before it does.
pub fn raise_to(shared: &Shared, floor_ms: i64) {
    let state = shared.clock;
    let outcome = alone(
        shared,
        |_| true,
        || {
            let limit_ms = floor_ms.saturating_add(settings::max_drift_ms());
            let target = Target::past(limit_ms, settings::clock_window_ms());
            if target.mark_ms > state.mark.mark_ms() {
                write(state, target.mark_ms, file::write)?;
                state.mark.publish(target);
            }
            shared.with_table(|table| table.raise_floor(floor_ms));
            state.effective.raise(floor_ms, read());
            Ok(())
        },
    );
    outcome.unwrap_or_else(|e: FileError| error::high_water(e).raise());
}

/// Writes the record that follows the newest. A write that fails is tried again at the same place, because only a
/// whole one counts as a turn.
fn write(state: &State, mark_ms: i64, put: impl FnOnce(&Record) -> io::Result<()>) -> io::Result<()> {
    let record = Record {
        turn: state.turn.load(Relaxed) + 1,
        mark_ms,
        system_identifier: system_identifier(),
        layout: layouts::default().to_string(),
    };
    let began = Instant::now();
    let outcome = put(&record);
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
    if let Err(error) = write(shared.clock, exact_ms, file::write) {
        log!("could not write \"{}\" at shutdown, the next start begins later: {error}", file::PATH);
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
