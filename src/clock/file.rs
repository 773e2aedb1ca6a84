//! The high-water file, `idgen/clock` in the data directory: reading, creating and writing it.
//!
//! Paths are relative: every process of a server has the data directory as its working directory.

use crate::pg::ereport::{Report, errors};
use crate::pg::recovery;
use idgen_core::clock::port::Written;
use idgen_core::clock::record::{FILE, Found, Record};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

pub const PATH: &str = "idgen/clock";
const DIRECTORY: &str = "idgen";
/// The directory under construction. It gets its name when the file in it is complete, so that a crash never leaves a
/// directory without a file.
const UNFINISHED: &str = "idgen.tmp";

pub enum FileError {
    /// The directory exists and the file does not.
    Missing,
    /// No record is complete.
    Damaged,
    /// It was written by the server with this system identifier.
    Foreign(u64),
    Io(io::Error),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        FileError::Io(error)
    }
}

/// The newest record; `None` if this server never had a file.
pub fn read(system_identifier: u64) -> Result<Option<Found>, FileError> {
    if !fs::exists(DIRECTORY)? {
        return Ok(None);
    }
    let bytes = fs::read(PATH).map_err(|error| match error.kind() {
        ErrorKind::NotFound => FileError::Missing,
        _ => FileError::Io(error),
    })?;
    let found = Record::newest(&bytes).ok_or(FileError::Damaged)?;
    match found.record.system_identifier {
        own if own == system_identifier => Ok(Some(found)),
        other => Err(FileError::Foreign(other)),
    }
}

/// Why no record could be written, as far as that shows without writing one: a full disk does not.
pub fn access_error() -> Option<io::Error> {
    if fs::exists(DIRECTORY).is_ok_and(|exists| exists) {
        return OpenOptions::new().write(true).open(PATH).err();
    }
    // SAFETY: a C string. The file's directory is made in the data directory.
    (unsafe { libc::access(c".".as_ptr(), libc::W_OK) } != 0).then(io::Error::last_os_error)
}

/// Creates the file with its first record. Its directory exists if only the file has vanished.
fn create(record: &Record) -> io::Result<()> {
    let is_new = !fs::exists(DIRECTORY)?;
    if is_new {
        if fs::exists(UNFINISHED)? {
            fs::remove_dir_all(UNFINISHED)?;
        }
        DirBuilder::new().mode(recovery::directory_mode()).create(UNFINISHED)?;
    }
    let directory = Path::new(if is_new { UNFINISHED } else { DIRECTORY });
    let [path, unfinished] = ["clock", "clock.tmp"].map(|name| directory.join(name));
    let mode = recovery::directory_mode() & 0o666;
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&unfinished)?;
    crate::pg::crash_point!("new mark: before the blocks");
    // Allocate all blocks now: no later record can find the disk full.
    file.write_all_at(&[0; FILE], 0)?;
    write_record(&file, record)?;
    crate::pg::crash_point!("new mark: before its name");
    fs::rename(unfinished, path)?;
    if is_new {
        crate::pg::crash_point!("new mark: before the sync of the directory");
        recovery::sync_directory(UNFINISHED)?;
        crate::pg::crash_point!("new mark: before the name of the directory");
        fs::rename(UNFINISHED, DIRECTORY)?;
    }
    Ok(())
}

/// Writes a record at its places, durably. Creates the file again if it vanished while the server runs. After an error the
/// caller writes the same places again: a failed fsync leaves their content unknown, and a second fsync alone would succeed.
pub fn write(record: &Record, written: &mut Written) -> io::Result<()> {
    match OpenOptions::new().write(true).open(PATH) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            written.is_name_durable = false;
            create(record)?;
        }
        opened => write_record(&opened?, record)?,
    }
    if !written.is_name_durable {
        crate::pg::crash_point!("new mark: before the sync of the names");
        [DIRECTORY, "."].into_iter().try_for_each(recovery::sync_directory)?;
        written.is_name_durable = true;
    }
    written.turn = record.turn;
    Ok(())
}

fn write_record(file: &File, record: &Record) -> io::Result<()> {
    for offset in record.offsets() {
        crate::pg::crash_point!("mark: before a copy");
        file.write_all_at(&record.encode(), offset)?;
        crate::pg::crash_point!("mark: after a copy");
    }
    crate::pg::crash_point!("mark: before the sync");
    file.sync_all()
}

errors! {
    fn file_missing() {
        ERRCODE_UNDEFINED_FILE: "high-water file \"{PATH}\" is missing";
        detail: "Its directory exists, so ids were issued here. Only the file records up to which time.";
        hint: "{REPAIR}";
    }

    fn file_damaged() {
        ERRCODE_DATA_CORRUPTED: "high-water file \"{PATH}\" has no intact record";
        detail: "The file records the time up to which ids were issued here.";
        hint: "{REPAIR}";
    }

    fn file_of_another_server(system_identifier: u64) {
        ERRCODE_DATA_CORRUPTED: "high-water file \"{PATH}\" was written by another server";
        detail: "The file has system identifier {system_identifier}.";
        hint: "{REPAIR}";
    }

    fn file_inaccessible(error: &std::io::Error) {
        ERRCODE_IO_ERROR: "could not access high-water file \"{PATH}\": {error}";
        detail: "No id is issued past the time that the file durably promises.";
        hint: "Make the directory \"idgen\" in the data directory writable, with free space. The next call tries again.";
    }
}

const REPAIR: &str = "Restore the file from where it was moved or copied to. It must be this server's own. If there is \
                      none, remove the directory \"idgen\" from the data directory: ids then begin past the label in WAL, \
                      seconds ahead of the last one. If no label could be written, the server's clock must be past the \
                      time of every id issued here.";

/// The high-water file cannot be used. Generation waits until it can: the next call tries again.
pub fn high_water(error: FileError) -> Report {
    match error {
        FileError::Missing => file_missing(),
        FileError::Damaged => file_damaged(),
        FileError::Foreign(other) => file_of_another_server(other),
        FileError::Io(error) => file_inaccessible(&error),
    }
}
