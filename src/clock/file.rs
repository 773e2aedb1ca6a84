//! The high-water file, `idgen/clock` in the data directory: reading, making and writing it, and nothing else.
//!
//! Paths are relative: every process of a server has the data directory as its working directory.

use idgen_core::clock::record::{FILE, Found, Record};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

pub const PATH: &str = "idgen/clock";
const DIRECTORY: &str = "idgen";
/// The directory while it is being made: it gets its name when the file in it is whole, so that a directory without a
/// file is never the trace of a crash.
const UNFINISHED: &str = "idgen.tmp";

/// Why the file cannot be used.
pub enum FileError {
    /// The directory is there and the file is not.
    Missing,
    /// No record is whole.
    Damaged,
    /// It was written by the server with this system identifier.
    Foreign(u64),
    /// What the system said.
    Io(io::Error),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        FileError::Io(error)
    }
}

/// What the file says; `None` when this server has never had one.
pub fn read(system_identifier: u64) -> Result<Option<Found>, FileError> {
    match read_any()? {
        Some(found) if found.record.system_identifier != system_identifier => {
            Err(FileError::Foreign(found.record.system_identifier))
        }
        found => Ok(found),
    }
}

/// What the file says, whose ever it is. The one way to read it before the server knows its own identifier.
pub fn read_any() -> Result<Option<Found>, FileError> {
    if !fs::exists(DIRECTORY)? {
        return Ok(None);
    }
    let bytes = fs::read(PATH).map_err(|error| match error.kind() {
        ErrorKind::NotFound => FileError::Missing,
        _ => FileError::Io(error),
    })?;
    Record::newest(&bytes).map(Some).ok_or(FileError::Damaged)
}

/// Was the newest record written in recovery, and has the server not issued since? Then it went down right after it was
/// promoted, and the files that asked for recovery are gone.
pub fn says_in_recovery() -> bool {
    read_any().is_ok_and(|found| found.is_some_and(|found| found.record.in_recovery))
}

/// Makes the file with its first record, durably. `directory_mode` is that of the data directory.
fn create(record: &Record, directory_mode: u32) -> io::Result<()> {
    if fs::exists(UNFINISHED)? {
        fs::remove_dir_all(UNFINISHED)?;
    }
    DirBuilder::new().mode(directory_mode).create(UNFINISHED)?;
    let path = Path::new(UNFINISHED).join("clock");
    let file = OpenOptions::new().write(true).create_new(true).mode(directory_mode & 0o666).open(path)?;
    // All blocks are there from now on: no later record finds the disk full.
    file.write_all_at(&[0; FILE], 0)?;
    put(&file, record)?;
    sync_directory(UNFINISHED)?;
    fs::rename(UNFINISHED, DIRECTORY)
}

/// Writes a record at its places, durably; makes the file anew if it has gone while the server runs and knows what was in
/// it. After an error the caller writes the same places again: what a failed fsync has left of it is unknown, and a second
/// fsync alone would say that all is well.
///
/// `is_name_durable` says whether the data directory was synced with the file in it, and is kept up to date. A server that
/// starts does not know: an earlier one may have failed right before that.
pub fn write(record: &Record, directory_mode: u32, is_name_durable: &AtomicBool) -> io::Result<()> {
    match OpenOptions::new().write(true).open(PATH) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            is_name_durable.store(false, Relaxed);
            create(record, directory_mode)?;
        }
        opened => put(&opened?, record)?,
    }
    if !is_name_durable.load(Relaxed) {
        sync_directory(".")?;
        is_name_durable.store(true, Relaxed);
    }
    Ok(())
}

pub fn sync_directory(path: &str) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        // A file system that cannot do that. PostgreSQL goes on as well.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBADF | libc::EINVAL)) => Ok(()),
        outcome => outcome,
    }
}

fn put(file: &File, record: &Record) -> io::Result<()> {
    for place in record.places() {
        file.write_all_at(&record.encode(), place)?;
    }
    file.sync_all()
}
