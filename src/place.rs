//! The place that this server grants from as a coordinator, to detect that another server has, or that its own grants are
//! lost.
//!
//! The file `idgen_place` has a number, which the server draws anew before it follows other WAL than its own: as a standby, or
//! from a backup. So a server that stops following, in whatever way, does not pass for the one that it was before. The server
//! also draws one when its own WAL is lost. The file is not in the directory of the high-water file, which operators remove.

use crate::error;
use crate::pg::ereport::Report;
use crate::pg::{recovery, session, system_clock, xact};
use idgen_core::coordinator::Place;
use idgen_core::history::Identity;
use idgen_core::life::{Life, Replay, Start, Wal};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::fs;
use std::io::{self, ErrorKind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const PATH: &str = "idgen_place";
/// Identifies the data directory: nothing replaces the file while that exists.
const FINGERPRINT: &str = "PG_VERSION";
const CONTROL_FILE: &str = "global/pg_control";
/// Written with the loss of WAL. The operator removes the file, and so the copies that a standby or a backup has.
const WAL_LOST: &str = "idgen_wal_lost";

/// Set by the postmaster, inherited by every process that it forks.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// In the postmaster before recovery begins, which removes the evidence.
pub fn begin() {
    HAS_BEGUN.store(true, Relaxed);
    begin_life();
    // Each process that it forks has the same one, whatever becomes of the files. After the crash of a backend, a server that
    // follows other WAL has another one.
    *LIFE.lock() = read().ok().map(|place| &*place.life().to_owned().leak());
}

fn begin_life() {
    // SAFETY: a flag that is set earlier.
    let is_upgrade = unsafe { pg_sys::IsBinaryUpgrade };
    let replay = Replay::at_start(|name| fs::exists(name).unwrap_or(false), recovery::ended_in_recovery());
    let recorded = match fs::read_to_string(PATH) {
        Ok(text) => Some(Life::parse(&text)),
        // pg_upgrade resets WAL. A new cluster gets its file at the first start of its own.
        Err(error) if error.kind() == ErrorKind::NotFound && !is_upgrade => None,
        Err(_) if replay != Replay::Own => None,
        Err(_) => return,
    };
    if !is_upgrade {
        xact::at_exit(at_exit);
    }
    let start = Start {
        replay,
        directory: &recovery::identity_of(FINGERPRINT).expect("PostgreSQL has read it"),
        system: recovery::system_identifier(),
        is_shut_down: recovery::is_shut_down(),
        checkpoint: recovery::checkpoint_position(),
        is_first: recovery::is_checkpoint_first(),
        boot: system_clock::boot_clock_name().unwrap_or_default(),
        syncs_files: recovery::syncs_files(),
    };
    let (life, wal) = Life::at_start(recorded.as_ref(), &start, || session::random_i64() as u64);
    let life = Life { checkpoint: life.checkpoint.filter(|_| !is_upgrade), ..life };
    if recorded.as_ref() == Some(&life) {
        return;
    }
    let mut written = Ok(());
    if wal == Wal::Lost {
        error::wal_lost(WAL_LOST).warn();
        // First: a start that is killed in between finds the loss again.
        written = recovery::replace_file(WAL_LOST, life.number.as_bytes());
        crate::pg::crash_point!("start: the loss of WAL is noted");
    }
    match written.and_then(|()| recovery::replace_file(PATH, life.to_string().as_bytes())) {
        Ok(()) => {}
        // A full disk must not turn the crash of a backend into an outage.
        Err(error) if recorded.as_ref().is_some_and(|recorded| recorded.can_stay_for(&life)) => not_updated(&error),
        // The earlier number would vouch for the data, and a missing file for a new server.
        Err(error) => error::place_not_written(PATH, &error).raise(),
    }
    crate::pg::crash_point!("start: the place is written");
}

/// In the postmaster as it gives up shared memory: records the checkpoint of a clean stop.
fn at_exit(code: i32) {
    if code != 0 || !recovery::is_shut_down() {
        return;
    }
    crate::pg::crash_point!("stop: before the place's checkpoint");
    update(|life| Life { checkpoint: Some(recovery::checkpoint_position()), ..life });
}

/// In the keeper, after it has loaded the configuration: a start does not see that a reload has turned syncs off. No other
/// process writes the file while a keeper runs.
pub fn record_unsynced_boot() {
    if !recovery::syncs_files() {
        let boot = system_clock::boot_clock_name().unwrap_or_default();
        update(|life| Life { unsynced_boot: Some(boot.to_owned()), ..life });
    }
}

fn update(change: impl FnOnce(Life) -> Life) {
    let recorded = fs::read_to_string(PATH).and_then(|text| {
        let changed = change(Life::parse(&text)).to_string();
        if changed == text { Ok(()) } else { recovery::replace_file(PATH, changed.as_bytes()) }
    });
    if let Err(error) = recorded {
        not_updated(&error);
    }
}

fn not_updated(error: &io::Error) {
    log!("could not update \"{PATH}\": {error}");
}

/// What grants from this database. The same for this process from the first success on, which is not during recovery. The
/// error is 58030 if a file of the data directory cannot be read, and 55000 without preload: a start without it draws no number,
/// so the one in the file may be that of an earlier state.
pub fn identity() -> Result<&'static Identity, Report> {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    if let Some(identity) = IDENTITY.get() {
        return Ok(identity);
    }
    if !HAS_BEGUN.load(Relaxed) {
        return Err(error::not_preloaded());
    }
    let (place, life) = read_with_life().map_err(|(path, error)| error::directory_unreadable(path, &error))?;
    Ok(IDENTITY.get_or_init(|| Identity {
        system_identifier: recovery::system_identifier(),
        timeline: recovery::timeline(),
        database: session::database(),
        is_copy: life.is_copied_to(place.directory()),
        place,
    }))
}

/// The error names the file.
pub fn read() -> Result<Place, (&'static str, io::Error)> {
    read_with_life().map(|(place, _)| place)
}

fn read_with_life() -> Result<(Place, Life), (&'static str, io::Error)> {
    let named = |path| move |error| (path, error);
    let directory = recovery::identity_of(FINGERPRINT).map_err(named(FINGERPRINT))?;
    let control_file = recovery::identity_of(CONTROL_FILE).map_err(named(CONTROL_FILE))?;
    let life = Life::parse(&fs::read_to_string(PATH).map_err(named(PATH))?);
    Ok((Place::new(&directory, &control_file, &life.number), life))
}

/// The number of the life of the data; empty without a file. The same as long as this process runs. Not in the postmaster.
pub fn number() -> &'static str {
    static NUMBER: OnceLock<String> = OnceLock::new();
    NUMBER.get_or_init(|| fs::read_to_string(PATH).map(|text| Life::parse(&text).number).unwrap_or_default())
}

static LIFE: Mutex<Option<&str>> = Mutex::new(None);

/// The life of the data in this control file: the number, and what a restore in place of an older copy changes too. Without
/// preload empty if there is no file. The same until the server starts again, or a backend crashes. Not in the postmaster.
pub fn life() -> &'static str {
    LIFE.lock().get_or_insert_with(|| match read() {
        Ok(place) => place.life().to_owned().leak(),
        Err((_, error)) if error.kind() == ErrorKind::NotFound => "",
        Err((path, error)) => error::directory_unreadable(path, &error).raise(),
    })
}

/// True after a loss of WAL, until the operator has removed the file that says so.
pub fn is_wal_lost() -> bool {
    static WAS_LOST: OnceLock<bool> = OnceLock::new();
    let is_lost = || fs::exists(WAL_LOST).unwrap_or(true);
    *WAS_LOST.get_or_init(is_lost) && is_lost()
}

pub fn wal_lost_hint() -> String {
    error::wal_lost_hint(WAL_LOST)
}
