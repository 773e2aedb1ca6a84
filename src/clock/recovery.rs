//! Times replayed from another server, by that server's clock.
//!
//! PostgreSQL forgets the time of the last replayed commit when it restarts, also when it crashes right after a promotion.
//! So a worker keeps the file's mark past that time during recovery. When recovery has ended, it makes the mark known, and
//! ends.

use super::state::{STATE, State};
use super::{errors, file, label, mark};
use crate::pg::bgworker::{self, Worker};
use crate::pg::wait_event::WaitEvent;
use crate::pg::{latch, recovery, session, spi, system_clock, timestamp};
use crate::settings;
use idgen_core::clock::start::Evidence;
use pgrx::bgworkers::{BackgroundWorker, BgWorkerStartTime};
use pgrx::prelude::*;
use std::ffi::CStr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

static FOLLOW_WAIT: WaitEvent = WaitEvent::new(c"IdgenMarkInRecoveryMain");

/// The evidence about the time before this start, without the sources that need a catalog or a query.
pub fn evidence() -> Evidence {
    Evidence {
        wall_ms: system_clock::wall_ms(),
        checkpoint_ms: recovery::checkpoint_ms(),
        recovered: false,
        replayed_ms: replayed_ms(),
        prepared_ms: None,
        label_ms: None,
        drift_ms: settings::max_drift_ms(),
        window_ms: settings::clock_window_ms(),
    }
}

/// The same with those sources. After a recovery this runs a query.
pub fn whole_evidence(state: &State) -> Evidence {
    let label = label::read();
    // Only a label of an earlier timeline shows that the server crashed right after its promotion.
    let is_promoted = label.is_some_and(|label| label.timeline != recovery::timeline());
    let recovered = is_promoted || state.is_recovered.load(Relaxed) || file::is_of_recovery();
    Evidence {
        recovered,
        prepared_ms: recovered.then(prepared_ms).flatten(),
        label_ms: label.map(|label| label.until_ms),
        ..evidence()
    }
}

/// The time of the last commit that was replayed since the server started, on its primary's clock.
fn replayed_ms() -> Option<i64> {
    // SAFETY: reads shared memory, under PostgreSQL's own lock.
    match unsafe { pg_sys::GetLatestXTime() } {
        0 => None,
        us => TimestampWithTimeZone::try_from(us).ok().map(timestamp::to_ms),
    }
}

/// When the newest prepared transaction was prepared. Its commit can still bring ids that no one here has seen.
fn prepared_ms() -> Option<i64> {
    let query = "SELECT pg_catalog.max(prepared) FROM pg_catalog.pg_prepared_xacts";
    spi::read_one::<TimestampWithTimeZone>(query).map(timestamp::to_ms)
}

/// How often the worker reads what was replayed. Short, so that the file covers the last commits before a promotion.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

const WORKER: Worker = Worker { name: "idgen mark in recovery", function: "idgen_mark_in_recovery", connects: true };

/// While the postmaster preloads libraries.
pub fn register_worker() {
    if recovery::is_requested() || file::is_of_recovery() {
        WORKER.register(BgWorkerStartTime::ConsistentState, Duration::from_secs(5));
    }
}

/// The databases in which the worker can look for prepared transactions: any will do. By name, because a database that was
/// dropped and created again has another OID. First the one that is no template: CREATE DATABASE would wait for the worker
/// to leave its template.
const DATABASES: [&CStr; 2] = [c"postgres", c"template1"];

/// Connects to the first of the databases that exists; false if none does. A failed connection ends the process, and the
/// next one tries the next database.
fn connect(state: &State) -> bool {
    let missing = state.databases_missing.load(Relaxed);
    let Some(name) = DATABASES.get(missing) else {
        return false;
    };
    state.databases_missing.store(missing + 1, Relaxed);
    bgworker::connect_by_name(name);
    // Should the worker fail later, it connects to this one again.
    state.databases_missing.store(missing, Relaxed);
    true
}

/// The worker. If it fails, the first generation makes the mark known.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_mark_in_recovery(_argument: pg_sys::Datum) {
    bgworker::handle_signals(None, None);
    let Some(state) = STATE.get() else {
        return;
    };
    let mut has_warned = false;
    while recovery::is_in_progress() {
        if session::is_reload_pending() {
            session::reload_configuration();
        }
        match mark::follow(state) {
            Err(e) if !has_warned => {
                errors::high_water(e).warn();
                has_warned = true;
            }
            _ => {}
        }
        latch::sleep(FOLLOW_EVERY, &FOLLOW_WAIT);
        check_for_interrupts!();
    }
    if !connect(state) {
        // Without an error: PostgreSQL does not start the worker again.
        log!(
            "there is no database \"postgres\" or \"template1\" to look for prepared transactions in; the first id after recovery makes the high-water mark known"
        );
        return;
    }
    // No id is issued here, so the mark moves to where ids begin and no further.
    BackgroundWorker::transaction(|| mark::ensure_begun(None));
}
