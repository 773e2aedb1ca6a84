//! What this server knows about the time before its start: whether its data may be newer than its file, and what the data
//! tells then.

use super::state::{FILE, STATE, State};
use super::{errors, label, mark};
use crate::pg::{recovery, spi, system_clock, timestamp};
use crate::settings;
use idgen_core::clock::start::{Commits, Evidence};
use pgrx::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

/// In the postmaster before recovery begins. Recovery removes the evidence, and a kill during the start must not: so the
/// file says what this start has found, until a mark of this server replaces that.
pub fn begin() {
    let state = STATE.require();
    if !recovery::starts_from_other_wal() {
        return;
    }
    state.is_replayed.store(true, Relaxed);
    // SAFETY: the postmaster has no children when it initialises shared memory.
    if let Err(error) = unsafe { FILE.without_other_processes(mark::note_recovery) } {
        // A start must not fail for it. Drawing reports what is wrong with the file.
        errors::high_water(error).warn();
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
        us => TimestampWithTimeZone::try_from(us).ok().map(timestamp::to_ms),
    }
}

/// When the newest prepared transaction was prepared. Its commit can still bring ids that no one here has seen.
fn prepared_ms() -> Option<i64> {
    let query = "SELECT pg_catalog.max(prepared) FROM pg_catalog.pg_prepared_xacts";
    spi::read_one::<TimestampWithTimeZone>(query).map(timestamp::to_ms)
}
