//! The data directory, which is the working directory of every process of a server.

use pgrx::pg_sys;
use std::fs::File;
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

/// The permissions of the data directory, which those of its files follow.
pub fn mode() -> u32 {
    // SAFETY: set when the server starts, and never again.
    unsafe { pg_sys::data_directory_mode as u32 }
}

/// Makes names in a directory durable.
pub fn sync(path: &str) -> io::Result<()> {
    match File::open(path)?.sync_all() {
        // A file system that cannot sync directories. PostgreSQL ignores that, too.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBADF | libc::EINVAL)) => Ok(()),
        outcome => outcome,
    }
}

/// True if the server is stopping, not only this process. The postmaster writes its state into line 8 of its own file.
pub fn is_server_stopping() -> bool {
    let status = std::fs::read_to_string("postmaster.pid").unwrap_or_default();
    status.lines().nth(7).is_some_and(|line| line.trim() == "stopping")
}
