//! The file `idgen_worker` in the data directory: whether this server has or had a pool of worker ids, and its last
//! worker id.
//!
//! A worker id that is not set acts as 0 only if the file does not exist: otherwise the pool may have granted 0 to
//! another server. Beside a pool, one that is set counts only if the file has it, and this place has written the file:
//! a standby, a restored backup and a rewound server know nothing of what the pool has granted.
//!
//! The file is not in the directory of the high-water file: an operator removes that directory when the mark is lost,
//! and this file must survive that. `pg_basebackup` copies the file. So a copy without a pool has no worker id until
//! one is set. The copy does not release its origin's lease, because the file names the place that it was written in.

use super::state::{STATE, WorkerLease};
use crate::pg::libpq::Error;
use crate::pg::recovery;
use crate::place;
use crate::settings;
use crate::snowflake::node;
use idgen_core::worker::memory::{LastWorkerId, Memory, RememberedLease};
use std::fs;
use std::io::{self, ErrorKind};
use std::sync::atomic::Ordering::Relaxed;

pub const PATH: &str = "idgen_worker";

#[derive(PartialEq)]
pub enum LeaseFile {
    /// This server never had a pool.
    Missing,
    Valid(Memory),
    /// The reason. The server may have had a pool.
    Unreadable(String),
}

pub fn read() -> LeaseFile {
    match fs::read(PATH) {
        Ok(bytes) => match Memory::decode(&bytes) {
            Some(memory) => LeaseFile::Valid(memory),
            None => LeaseFile::Unreadable("its checksum or its format is wrong".to_owned()),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => LeaseFile::Missing,
        Err(error) => LeaseFile::Unreadable(error.to_string()),
    }
}

/// Records durably that this server has a pool, and the worker id by hand under which it has issued ids, before its first
/// lease. Keeps what the file says of an earlier lease, also if it is unreadable: only the next lease replaces it.
pub fn remember_pool() -> Result<(), Error> {
    let has_issued_by_hand = node::CURRENT.require().is_setting() && STATE.require().has_issued_by_hand.load(Relaxed);
    let worker = match has_issued_by_hand {
        true => LastWorkerId::ByHand(settings::node().worker),
        false => LastWorkerId::Unknown,
    };
    let is_current = match read() {
        LeaseFile::Unreadable(_) | LeaseFile::Valid(Memory { worker: LastWorkerId::Leased(_), .. }) => true,
        LeaseFile::Valid(memory) => memory.worker == worker && place::read().is_ok_and(|here| here == memory.place),
        LeaseFile::Missing => false,
    };
    if is_current { Ok(()) } else { write(worker).map_err(unwritten) }
}

/// Records durably the lease that ids are about to be issued under.
pub fn remember(pool: &str, lease: &WorkerLease) -> Result<(), Error> {
    let WorkerLease { coordinator, token, worker_id, .. } = *lease;
    let lease = RememberedLease { pool: pool.to_owned(), coordinator, token, worker_id };
    write(LastWorkerId::Leased(lease)).map_err(unwritten)
}

/// Makes the file have this worker id, durably.
pub fn write(worker: LastWorkerId) -> io::Result<()> {
    let place = place::read().map_err(|(_, error)| error)?;
    recovery::replace_file(PATH, Memory { place, worker }.encode().as_bytes())
}

fn unwritten(error: io::Error) -> Error {
    Error::new(format!("could not write file \"{PATH}\": {error}"))
}
