//! A wall clock that a test can step while the server runs.
//!
//! libfaketime, preloaded into the server, adds to CLOCK_REALTIME the offset it reads from a file. With
//! `FAKETIME_NO_CACHE` it reads the file at every call, so a step reaches all processes of the server at once.
//! `FAKETIME_DONT_FAKE_MONOTONIC` keeps CLOCK_MONOTONIC and CLOCK_BOOTTIME true, as when a real wall clock is stepped.
//! Without it libfaketime 0.9.10 makes them show the faked wall clock.
//!
//! Two limits:
//! - libfaketime is off while a signal handler interrupts a call that it replaces. The handler, and a child that it forks,
//!   see the true clock. The postmaster of PostgreSQL 15 does nearly everything in signal handlers. So the true clock can be
//!   seen by the processes that it forks while it runs (autovacuum, parallel workers, background workers; not sessions), and
//!   by the code that initializes shared memory again after a backend has crashed. If two clocks must differ, set the other
//!   server's clock ahead of the true clock, not that of the server under test behind it.
//! - libfaketime opens the file with stdio, also when PostgreSQL reads the time in its SIGALRM handler. A timeout that fires
//!   inside malloc could corrupt the heap, so do not use a fake clock in stress tests of `statement_timeout` and the like.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::programs::chown_to_server;

/// The wall clock of one server, as an offset from the true one.
pub struct FakeClock {
    file: PathBuf,
}

impl FakeClock {
    /// A clock without an offset. Its file is in `dir`.
    pub(crate) fn new(dir: &Path) -> FakeClock {
        let clock = FakeClock { file: dir.join("clock") };
        clock.set_offset_ms(0);
        clock
    }

    /// Steps the clock to this many milliseconds ahead of the true one, or behind it if negative.
    pub fn set_offset_ms(&self, offset_ms: i64) {
        // Renamed into place: libfaketime reads a half-written or missing file as no offset.
        let next = self.file.with_extension("next");
        std::fs::write(&next, offset_text(offset_ms)).expect("the clock's directory is writable");
        std::fs::set_permissions(&next, Permissions::from_mode(0o644)).expect("the test owns the clock's file");
        chown_to_server(&next);
        std::fs::rename(&next, &self.file).expect("the clock's directory is writable");
    }

    /// Runs a program under this clock.
    pub fn apply_to(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", library())
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            // Faking the times of files takes a semaphore shared by all processes of the server in every stat(). A
            // process killed while it holds the semaphore would hang the others.
            .env("NO_FAKE_STAT", "1");
    }
}

/// Seconds with a sign and a fraction. libfaketime parses the decimal point by locale, which is C for every server program.
fn offset_text(offset_ms: i64) -> String {
    let sign = if offset_ms < 0 { '-' } else { '+' };
    let ms = offset_ms.unsigned_abs();
    format!("{sign}{}.{:03}\n", ms / 1000, ms % 1000)
}

/// libfaketime.so.1, in the directory faketime below the libraries, on Debian below those of the architecture.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let roots = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from);
        let below = std::fs::read_dir("/usr/lib").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        roots
            .into_iter()
            .chain(below)
            .map(|dir| dir.join("faketime/libfaketime.so.1"))
            .find(|library| library.exists())
            .expect("tests that step the clock need libfaketime (Debian package libfaketime)")
    })
}

#[cfg(test)]
mod tests {
    use super::offset_text;

    #[test]
    fn offset_below_a_second_keeps_its_sign() {
        assert_eq!(offset_text(0), "+0.000\n");
        assert_eq!(offset_text(-1), "-0.001\n");
        assert_eq!(offset_text(500), "+0.500\n");
        assert_eq!(offset_text(-3_600_050), "-3600.050\n");
    }
}
