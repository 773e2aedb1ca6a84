//! A wall clock that a test can step while the server runs.
//!
//! libfaketime, preloaded into the server, adds to CLOCK_REALTIME the offset it reads from a file. With
//! `FAKETIME_NO_CACHE` it reads the file at every call, so a step reaches all processes of the server at once.
//! CLOCK_MONOTONIC and CLOCK_BOOTTIME stay true, as they do when a real wall clock is stepped:
//! `FAKETIME_DONT_FAKE_MONOTONIC` sees to both. Without it libfaketime 0.9.10 has them show the faked wall clock.
//!
//! Two limits to know. While a process is interrupted inside a call that libfaketime replaces, libfaketime is out of force:
//! what the process does in its signal handler then is done by the true clock, and so is all that a child does which it
//! forks there. The postmaster of PostgreSQL 15 does nearly everything in signal handlers. So the processes that it forks
//! while it runs (autovacuum, parallel workers, background workers; not sessions) and the shared memory that it makes anew
//! after the crash of a backend may see the true clock. Where two clocks have to differ, let it therefore be the other server's
//! that is set ahead of the true clock, and not that of the server under test behind it.
//!
//! And libfaketime opens the file with stdio, also when PostgreSQL asks for the time in its SIGALRM handler.
//! A timeout that fires inside malloc could corrupt the heap, so clusters with a fake clock are not for stress tests
//! of `statement_timeout` and the like.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::programs::give_to_server;

/// The wall clock of one server, as an offset to the real one.
pub struct FakeClock {
    file: PathBuf,
}

impl FakeClock {
    /// A clock that is right until it is stepped. Its file is in `dir`.
    pub(crate) fn new(dir: &Path) -> FakeClock {
        let clock = FakeClock { file: dir.join("clock") };
        clock.set_offset_ms(0);
        clock
    }

    /// Steps the clock to so many milliseconds ahead of the real one, or behind it when negative.
    pub fn set_offset_ms(&self, offset_ms: i64) {
        // Renamed into place: a half-written or missing file would read as no offset at all.
        let next = self.file.with_extension("next");
        std::fs::write(&next, offset_text(offset_ms)).expect("the clock's directory is writable");
        std::fs::set_permissions(&next, Permissions::from_mode(0o644)).expect("the clock's file is ours");
        give_to_server(&next);
        std::fs::rename(&next, &self.file).expect("the clock's directory is writable");
    }

    /// Makes a program live by this clock.
    pub fn apply_to(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", library())
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            // Faking the times of files takes one semaphore, common to all processes of the server, in every stat(): a
            // process killed while it holds that would hang all the others.
            .env("NO_FAKE_STAT", "1");
    }
}

/// Seconds with a sign and a fraction, as libfaketime reads them. The fraction's point depends on the locale, which is C
/// for every program of the server.
fn offset_text(offset_ms: i64) -> String {
    let sign = if offset_ms < 0 { '-' } else { '+' };
    let ms = offset_ms.unsigned_abs();
    format!("{sign}{}.{:03}\n", ms / 1000, ms % 1000)
}

/// libfaketime.so.1, where the distributions put it: in a directory of its own below the libraries, on Debian below that
/// of the architecture.
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
            .expect("libfaketime is needed for tests that step the clock (Debian's package libfaketime)")
    })
}

#[cfg(test)]
mod tests {
    use super::offset_text;

    #[test]
    fn offsets_keep_their_sign_below_a_second() {
        assert_eq!(offset_text(0), "+0.000\n");
        assert_eq!(offset_text(-1), "-0.001\n");
        assert_eq!(offset_text(500), "+0.500\n");
        assert_eq!(offset_text(-3_600_050), "-3600.050\n");
    }
}
