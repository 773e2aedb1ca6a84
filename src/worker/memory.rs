//! The file `idgen_worker` in the data directory: that this server has, or had, a pool of worker ids, and the last term that it
//! was granted.
//!
//! A worker id that is not set acts as 0 only where there is no such file: the pool may have granted 0 to another server.
//!
//! The file is beside the directory of the high-water file and not in it: that directory is removed when the mark is lost, and
//! the memory must outlive that. `pg_basebackup` copies the file. So a copy without a pool has no worker id until one is set; and
//! it does not give back the term of its origin, because the file says which directory it was written in.

use super::place;
use crate::clock;
use idgen_core::worker::memory::{Memory, Remembered};
use pgrx::prelude::*;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;

pub const PATH: &str = "idgen_worker";
/// The file while it is being written.
const UNFINISHED: &str = "idgen_worker.tmp";

/// What the file says.
pub enum Recollection {
    /// There is no file: this server never had a pool.
    Nothing,
    Pool(Memory),
    /// It cannot be read, or was not written by idgen. The server may have had a pool.
    Unreadable(String),
}

pub fn recall() -> Recollection {
    match fs::read(PATH) {
        Ok(bytes) => match Memory::decode(&bytes) {
            Some(memory) => Recollection::Pool(memory),
            None => Recollection::Unreadable("its checksum or its format is wrong".to_owned()),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Recollection::Nothing,
        Err(error) => Recollection::Unreadable(error.to_string()),
    }
}

impl Recollection {
    /// The server has, or may have had, a pool.
    pub fn is_of_pool(&self) -> bool {
        !matches!(self, Recollection::Nothing)
    }

    /// A worker id that was set by hand may be another server's: a pool was in charge of it last.
    pub fn is_of_term(&self) -> bool {
        match self {
            Recollection::Nothing => false,
            Recollection::Pool(memory) => memory.term.is_some(),
            Recollection::Unreadable(_) => true,
        }
    }
}

/// Replaces the file, durably, by one of this data directory.
pub fn remember(term: Option<Remembered>) -> io::Result<()> {
    let memory = Memory { place: place::of_data_directory()?, term };
    // SAFETY: set when the server starts, and never again.
    let mode = unsafe { pg_sys::data_directory_mode } as u32 & 0o666;
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(UNFINISHED)?;
    file.write_all(memory.encode().as_bytes())?;
    file.sync_all()?;
    fs::rename(UNFINISHED, PATH)?;
    clock::sync_directory(".")
}
