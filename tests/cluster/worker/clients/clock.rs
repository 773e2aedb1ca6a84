//! The wall clock of one client, by the library `clock.c`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub struct ClientClock {
    library: PathBuf,
    file: PathBuf,
}

impl ClientClock {
    /// The true clock, rounded down to a multiple of `grain`. Its files are in `dir`.
    pub fn new(dir: &Path, grain: Duration) -> ClientClock {
        let clock = ClientClock { library: dir.join("clock.so"), file: dir.join("clock.order") };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("worker/clients/clock.c");
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&clock.library, &source])
            .output()
            .expect("the test needs a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let grain_ns = i64::try_from(grain.as_nanos()).expect("a short time");
        std::fs::write(&clock.file, [0, grain_ns].map(i64::to_ne_bytes).concat()).expect("a writable directory");
        clock
    }

    pub fn set_offset_s(&self, offset_s: i64) {
        let file = File::options().write(true).open(&self.file).expect("the test owns the file");
        file.write_all_at(&(offset_s * 1_000_000_000).to_ne_bytes(), 0).expect("a writable file");
    }

    pub fn apply_to(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("IDGEN_CLIENT_CLOCK", &self.file);
    }
}
