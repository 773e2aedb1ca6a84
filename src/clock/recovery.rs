//! What has been replayed from another server, and by which clock.
//!
//! PostgreSQL forgets the time of the last replayed commit when it restarts, also when it crashes right after a promotion.
//! So a worker keeps the file's mark past that time while the server is in recovery; when recovery has ended it makes the
//! mark known, and is done.

use super::{State, file, label, mark, wall_ms};
use crate::pg_compat::set_signal_handler;
use crate::{error, read_only, settings, shmem, timestamp};
use idgen_core::clock::start::Evidence;
use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder, BgWorkerStartTime, SignalWakeFlags};
use pgrx::prelude::*;
use std::ffi::CStr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Is the server in archive or standby recovery, or about to be? As its files say, so before recovery has begun.
pub fn is_requested() -> bool {
    ["standby.signal", "recovery.signal"].into_iter().any(|name| std::fs::exists(name).unwrap_or(false))
}

pub fn is_in_progress() -> bool {
    // SAFETY: reads a flag.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// Was the server shut down with all that belongs to it?
pub fn is_shut_down() -> bool {
    control_file(|control| control.state == pg_sys::DBState::DB_SHUTDOWNED)
}

/// What is known about the time before this start, without what only a catalog or a query tells.
pub fn evidence() -> Evidence {
    Evidence {
        wall_ms: wall_ms(),
        checkpoint_ms: control_file(|control| control.checkPointCopy.time * 1000),
        recovered: false,
        replayed_ms: replayed_ms(),
        prepared_ms: None,
        label_ms: None,
        drift_ms: settings::max_drift_ms(),
        window_ms: settings::clock_window_ms(),
    }
}

/// All that is known about the time before this start. After a recovery this runs a query.
pub fn whole_evidence(state: &State) -> Evidence {
    let label = label::read();
    // A label of an earlier timeline says so too, where nothing else does: the server crashed right after its promotion.
    let is_promoted = label.is_some_and(|label| label.timeline != label::timeline());
    let recovered = is_promoted || state.recovered.load(Relaxed) || file::says_in_recovery();
    Evidence {
        recovered,
        prepared_ms: recovered.then(prepared_ms).flatten(),
        label_ms: label.map(|label| label.until_ms),
        ..evidence()
    }
}

fn control_file<R>(look: impl FnOnce(&pg_sys::ControlFileData) -> R) -> R {
    let mut whole = false;
    // SAFETY: the directory's name is set when the server starts; the result is a copy in this process's own memory.
    unsafe {
        let control = pg_sys::get_controlfile(pg_sys::DataDir, &mut whole);
        let seen = look(&*control);
        pg_sys::pfree(control.cast());
        seen
    }
}

/// The time of the last commit that was replayed since the server started, by its primary's clock.
fn replayed_ms() -> Option<i64> {
    // SAFETY: reads shared memory, under PostgreSQL's own lock.
    match unsafe { pg_sys::GetLatestXTime() } {
        0 => None,
        us => TimestampWithTimeZone::try_from(us).ok().map(timestamp::to_ms),
    }
}

/// When the newest transaction was prepared that can still be committed, with ids that nobody here has seen.
fn prepared_ms() -> Option<i64> {
    let query = "SELECT pg_catalog.max(prepared) FROM pg_catalog.pg_prepared_xacts";
    read_only::get_one::<TimestampWithTimeZone>(query).map(timestamp::to_ms)
}

/// How often the worker looks at what has been replayed. Often, for what is replayed last before a promotion.
const FOLLOW_EVERY: Duration = Duration::from_millis(200);

/// Called while the postmaster preloads libraries.
pub fn register_worker() {
    if is_requested() || file::says_in_recovery() {
        BackgroundWorkerBuilder::new("idgen mark in recovery")
            .set_library("idgen")
            .set_function("idgen_mark_in_recovery")
            .enable_spi_access()
            // After the line above, which says otherwise: the worker connects when recovery has ended.
            .set_start_time(BgWorkerStartTime::ConsistentState)
            .set_restart_time(Some(Duration::from_secs(5)))
            .load();
    }
}

unsafe extern "C-unwind" {
    /// PostgreSQL's handler of SIGTERM. Declared here, because pgrx's wrapper of it is no C function.
    pub(super) fn die(signal: std::ffi::c_int);
}

/// Where to look for prepared transactions, which is a query and needs some database: any will do. By name, because a
/// database that was dropped and made again has another number. First the one that nobody copies: `CREATE DATABASE` would
/// wait for the worker to leave its template.
const DATABASES: [&CStr; 2] = [c"postgres", c"template1"];

/// Connects to the first of the databases that is there; false if none is. A connection that fails ends the process, so the
/// next one tries the next database.
fn connect(state: &State) -> bool {
    let tried = state.databases_missing.load(Relaxed);
    let Some(name) = DATABASES.get(tried) else {
        return false;
    };
    state.databases_missing.store(tried + 1, Relaxed);
    let flags = pg_sys::BGWORKER_BYPASS_ALLOWCONN;
    // SAFETY: once, in a background worker; null: as the bootstrap superuser.
    unsafe { pg_sys::BackgroundWorkerInitializeConnection(name.as_ptr(), std::ptr::null(), flags) };
    // Should the worker fail later, it connects here again.
    state.databases_missing.store(tried, Relaxed);
    true
}

/// The worker. If it fails, the first generation makes the mark known as well.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_mark_in_recovery(_arg: pg_sys::Datum) {
    // SAFETY: as the first thing of a background worker. PostgreSQL's own handler, so that a stop ends it at once.
    unsafe { set_signal_handler(libc::SIGTERM, Some(die)) };
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP);
    let Some(shared) = shmem::shared() else {
        return;
    };
    let mut told = false;
    while is_in_progress() {
        if BackgroundWorker::sighup_received() {
            // SAFETY: in the main loop of a process, as PostgreSQL's own do it.
            unsafe { pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP) };
        }
        match mark::follow(shared) {
            Err(e) if !told => {
                error::high_water(e).warn();
                told = true;
            }
            _ => {}
        }
        super::sleep(FOLLOW_EVERY);
        check_for_interrupts!();
    }
    if !connect(shared.clock) {
        // An end without an error: PostgreSQL starts the worker no more.
        log!(
            "there is no database \"postgres\" or \"template1\" to look for prepared transactions in; the first id after recovery makes the high-water mark known"
        );
        return;
    }
    // No id is issued here, so the mark is moved to where ids begin and no further.
    BackgroundWorker::transaction(|| {
        if let Some(shared) = shmem::shared() {
            mark::ensure_begun(shared, None);
        }
    });
}
