//! What has been replayed from another server, and by which clock.
//!
//! PostgreSQL forgets the time of the last replayed commit when it restarts. So a one-shot worker reads it as soon as
//! recovery has ended, and makes the mark of it.

use super::{State, mark, wall_ms};
use crate::shmem;
use crate::{read_only, settings, timestamp};
use idgen_core::clock::start::Evidence;
use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder, BgWorkerStartTime};
use pgrx::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

/// Is the server in archive or standby recovery, or about to be? As its files say, so before recovery has begun.
pub fn is_requested() -> bool {
    ["standby.signal", "recovery.signal"].into_iter().any(|name| std::fs::exists(name).unwrap_or(false))
}

/// Was the server shut down with all that belongs to it?
pub fn is_shut_down() -> bool {
    control_file(|control| control.state == pg_sys::DBState::DB_SHUTDOWNED)
}

/// All that is known about the time before this start.
pub fn evidence(state: &State) -> Evidence {
    let recovered = state.recovered.load(Relaxed);
    Evidence {
        wall_ms: wall_ms(),
        // To the second, so up to a second later than it says.
        checkpoint_ms: control_file(|control| control.checkPointCopy.time * 1000 + 999),
        recovered,
        replayed_ms: replayed_ms(),
        prepared_ms: recovered.then(prepared_ms).flatten(),
        drift_ms: settings::max_drift_ms(),
        window_ms: settings::clock_window_ms(),
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

/// Called while the postmaster preloads libraries.
pub fn register_worker() {
    if is_requested() {
        BackgroundWorkerBuilder::new("idgen mark after recovery")
            .set_library("idgen")
            .set_function("idgen_mark_after_recovery")
            .set_start_time(BgWorkerStartTime::RecoveryFinished)
            .enable_spi_access()
            .load();
    }
}

unsafe extern "C-unwind" {
    /// PostgreSQL's handler of SIGTERM. Declared here, because pgrx's wrapper of it is no C function.
    fn die(signal: std::ffi::c_int);
}

/// The one-shot worker. If it fails, the first generation does the same.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_mark_after_recovery(_arg: pg_sys::Datum) {
    // SAFETY: as the first thing of a background worker. PostgreSQL's own handler, so that a stop ends it at once. By its
    // number, template1 is there unless somebody dropped it; it is asked for nothing but shared catalogs.
    unsafe {
        pg_sys::pqsignal(libc::SIGTERM, Some(die));
        pg_sys::BackgroundWorkerUnblockSignals();
        pg_sys::BackgroundWorkerInitializeConnectionByOid(
            pg_sys::Oid::from(1),
            pg_sys::InvalidOid,
            pg_sys::BGWORKER_BYPASS_ALLOWCONN,
        );
    }
    BackgroundWorker::transaction(|| {
        if let Some(shared) = shmem::shared() {
            mark::ensure_known(shared);
        }
    });
}
