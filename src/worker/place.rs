//! Which data directory this is, as a directory of its file system.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

/// A file that every data directory has, and that nothing replaces.
const FILE: &str = "PG_VERSION";

/// Inode and birth time of a file in the data directory: a copied directory has others. A file system without birth times
/// leaves the inode.
pub fn of_data_directory() -> io::Result<String> {
    let metadata = std::fs::metadata(FILE)?;
    let born = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(format!("{}-{}", metadata.ino(), born.map_or(0, |born| born.as_nanos())))
}
