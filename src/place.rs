//! The place that this server grants from as a coordinator, to detect that another server has, or that its own grants are
//! lost.
//!
//! The file `idgen_place` has a number, which the server draws anew before it follows other WAL than its own: as a standby, or
//! from a backup. So a server that stops following, in whatever way, does not pass for the one that it was before. The file
//! is not in the directory of the high-water file, which operators remove.

use crate::error;
use crate::pg::{data_directory, recovery, session};
use idgen_core::coordinator::{Place, life_number};
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const PATH: &str = "idgen_place";
const CONTROL_FILE: &str = "global/pg_control";

/// Set by the postmaster, inherited by every process that it forks.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// In the postmaster before recovery begins, which removes the evidence.
pub fn begin() {
    HAS_BEGUN.store(true, Relaxed);
    let follows_other_wal = recovery::starts_from_other_wal();
    if !follows_other_wal && fs::exists(PATH).unwrap_or(true) {
        return;
    }
    let number = life_number(session::random_i64() as u64, follows_other_wal);
    if let Err(error) = data_directory::replace_file(PATH, number.as_bytes()) {
        // The earlier number would vouch for the data. Without one, this server grants nothing.
        let _ = fs::remove_file(PATH);
        error::place_not_written(PATH, &error).warn();
    }
}

/// Raises 58030 if a file of the data directory cannot be read, and 55000 without preload: a start without it draws no
/// number, so the one in the file may be that of an earlier state.
pub fn current() -> Place {
    if !HAS_BEGUN.load(Relaxed) {
        error::not_preloaded().raise();
    }
    read().unwrap_or_else(|(path, error)| error::directory_unreadable(path, &error).raise())
}

/// The error names the file.
pub fn read() -> Result<Place, (&'static str, io::Error)> {
    let named = |path| move |error| (path, error);
    let directory = data_directory::fingerprint().map_err(named(data_directory::FINGERPRINT))?;
    let control_file = data_directory::identity_of(CONTROL_FILE).map_err(named(CONTROL_FILE))?;
    let number = fs::read_to_string(PATH).map_err(named(PATH))?;
    Ok(Place::new(&directory, &control_file, &number))
}
