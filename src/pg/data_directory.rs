//! The data directory, which is the working directory of every process of a server.

use pgrx::pg_sys;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::time::UNIX_EPOCH;

/// A file that nothing replaces while the directory exists.
pub const FINGERPRINT: &str = "PG_VERSION";

/// Identifies the data directory.
pub fn fingerprint() -> io::Result<String> {
    identity_of(FINGERPRINT)
}

/// Inode and birth time of a file. A copy has others. On a file system without birth times only the inode remains.
pub fn identity_of(path: &str) -> io::Result<String> {
    let metadata = std::fs::metadata(path)?;
    let born = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(format!("{}-{}", metadata.ino(), born.map_or(0, |born| born.as_nanos())))
}

/// Writes a small file durably, all of it or nothing.
pub fn replace_file(path: &str, content: &[u8]) -> io::Result<()> {
    let unfinished = format!("{path}.tmp");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode() & 0o666).open(&unfinished)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(unfinished, path)?;
    sync(".")
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
/// May be called in a signal handler: it allocates nothing.
pub fn is_server_stopping() -> bool {
    // The lines before are numbers, and two paths.
    let mut content = [0u8; 4096];
    // SAFETY: a C string, and a buffer of the length that is passed.
    let length = unsafe {
        let file = libc::open(c"postmaster.pid".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if file < 0 {
            return false;
        }
        let length = libc::read(file, content.as_mut_ptr().cast(), content.len());
        libc::close(file);
        length
    };
    let content = &content[..length.max(0) as usize];
    content.split(|byte| *byte == b'\n').nth(7).is_some_and(|line| line.trim_ascii() == b"stopping")
}
