//! The clocks of a program, which a test can step while the program runs.
//!
//! A library, `clock.c`, is preloaded into the program, and adds offsets to its clocks. It reads them from a file that all
//! processes of a server have mapped, so a step reaches them at once, handlers of signals too. libfaketime opens a file at
//! each reading, which allocates: a server whose handler of SIGALRM reads the time in the middle of `malloc` crashes.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::programs::chown_to_server;
use crate::shim::compile;
use crate::template;

/// The clocks of a server or of another program.
pub struct FakeClock {
    file: PathBuf,
}

impl FakeClock {
    /// Clocks without offsets. Their file is in `dir`.
    pub fn new(dir: &Path) -> FakeClock {
        FakeClock::with_grain(dir, Duration::ZERO)
    }

    /// A wall clock that is rounded down to a multiple of `grain`, if that is not zero.
    pub fn with_grain(dir: &Path, grain: Duration) -> FakeClock {
        let file = dir.join("clock");
        let [offset, boot_offset] = [0_i64; 2];
        let order = [offset, us(grain), boot_offset].map(i64::to_ne_bytes).concat();
        std::fs::write(&file, order).expect("a writable directory");
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("the test owns the file");
        chown_to_server(&file);
        FakeClock { file }
    }

    /// Steps the wall clock to this many milliseconds ahead of the true one, or behind it if negative.
    pub fn set_offset_ms(&self, offset_ms: i64) {
        self.write(offset_ms * 1000, 0);
    }

    /// Sets CLOCK_BOOTTIME ahead of the true one, as in another time namespace. Not that of a running server.
    pub fn set_boot_offset(&self, offset: Duration) {
        self.write(us(offset), 16);
    }

    fn write(&self, us: i64, position: u64) {
        let file = File::options().write(true).open(&self.file).expect("the test owns the file");
        file.write_all_at(&us.to_ne_bytes(), position).expect("a writable file");
    }

    /// Runs a program under these clocks.
    pub fn apply_to(&self, command: &mut Command) {
        command.env("LD_PRELOAD", library()).env("IDGEN_CLOCK", &self.file);
    }
}

fn us(time: Duration) -> i64 {
    time.as_micros().try_into().expect("at most millennia")
}

/// Compiled once in each test process.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let library = template::dir().join("clock.so");
        compile(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/clock.c"), &library);
        library
    })
}
