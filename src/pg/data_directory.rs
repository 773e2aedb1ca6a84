//! The data directory, which is the working directory of every process of a server.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

/// Identifies the data directory: inode and birth time of a file that nothing replaces. A copied directory has others.
/// On a file system without birth times only the inode remains.
pub fn fingerprint() -> io::Result<String> {
    let metadata = std::fs::metadata("PG_VERSION")?;
    let born = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(format!("{}-{}", metadata.ino(), born.map_or(0, |born| born.as_nanos())))
}

/// True if the server is stopping, not only this process. The postmaster writes its state into line 8 of its own file.
pub fn is_server_stopping() -> bool {
    let status = std::fs::read_to_string("postmaster.pid").unwrap_or_default();
    status.lines().nth(7).is_some_and(|line| line.trim() == "stopping")
}
