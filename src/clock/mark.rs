//! The durable mark: reading it at the first generation, moving it before it is reached, and leaving it exact.
//!
//! Lock order: the file's lock, then the table's. Under the file's lock there is file I/O, which nothing interrupts and
//! which raises nothing; errors are carried out of it and raised after.

use super::file::{self, FileError};
use super::{State, read, recovery};
use crate::shmem::{self, Shared};
use crate::snowflake::layouts;
use crate::{bell, error, settings};
use idgen_core::clock::Target;
use idgen_core::clock::record::Record;
use idgen_core::clock::start::Evidence;
use pgrx::prelude::*;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Makes sure that the mark is known: reads the file if nobody has since the server started. Raises what is wrong with
/// it. The next call tries again, so a file that was mended is found without a restart.
pub fn ensure_known(shared: &Shared) {
    if shared.clock.mark.is_known() {
        return;
    }
    // Before the lock: this reads other files, may run a query, and may raise.
    let evidence = recovery::whole_evidence(shared.clock);
    let layout = layouts::default().to_string();
    let mut met = None;
    let load = || {
        if !shared.clock.is_begun.load(Relaxed) {
            met = Some(begin(shared, &evidence)?);
            shared.clock.is_begun.store(true, Relaxed);
        }
        extend(shared)
    };
    let outcome = alone(shared, |state| !state.mark.is_known(), load);
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

/// Moves the mark past this time, and waits while somebody else does. Raises when it cannot be moved.
pub fn reserve(shared: &Shared, time_ms: i64) {
    let outcome = alone(shared, |state| state.mark.mark_ms() <= time_ms, || extend(shared));
    outcome.unwrap_or_else(|e: FileError| error::high_water(e).raise());
}

/// Moves the mark if it is due and nobody else is moving it. Raises nothing: it is not in the way yet. After a write that
/// went wrong it is left to whoever needs it, and gets the error; not every id may try a broken disk.
pub fn tend(shared: &Shared, limit_ms: i64) {
    let due = |state: &State| state.mark.due_ms() <= limit_ms && state.last_error.load(Relaxed) == 0;
    if due(shared.clock) && shared.try_lock_file() {
        if due(shared.clock) {
            // What is wrong shows in idgen.status() now, and as an error when the mark is reached.
            let _ = extend(shared);
        }
        shared.unlock_file();
        shared.clock.moved.ring();
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
/// this start that was written and is not durable.
fn begin(shared: &Shared, evidence: &Evidence) -> Result<Met, FileError> {
    let found = file::read(system_identifier())?;
    let floor_ms = evidence.floor_ms(found.as_ref());
    shared.with_table(|table| table.raise_floor(floor_ms));
    shared.clock.effective.raise(floor_ms, read());
    let Some(found) = found else {
        return Ok(Met::NoFile);
    };
    shared.clock.turn.store(found.record.turn, Relaxed);
    Ok(Met::File { layout: found.record.layout })
}

/// Moves the mark on from now, and makes the file if there is none. Durable first, published second. For the holder of
/// the file's lock.
fn extend(shared: &Shared) -> Result<(), FileError> {
    let target = shared.clock.target();
    write(shared.clock, target.mark_ms)?;
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
    let state = shared.clock;
    let outcome = alone(
        shared,
        |_| true,
        || {
            let limit_ms = floor_ms.saturating_add(settings::max_drift_ms());
            let target = Target::past(limit_ms, settings::clock_window_ms());
            let is_past = target.mark_ms > state.mark.mark_ms();
            if is_past {
                write(state, target.mark_ms)?;
            }
            shared.with_table(|table| {
                if is_past {
                    state.mark.publish(target);
                }
                table.raise_floor(floor_ms);
            });
            state.effective.raise(floor_ms, read());
            Ok(())
        },
    );
    outcome.unwrap_or_else(|e: FileError| error::high_water(e).raise());
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
    let outcome = file::write(&record, directory_mode());
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
