//! Servers of other kinds, started beside ours for comparison: on the same machine, in its directory, on its disk.

use std::io::ErrorKind;
use std::process::{Child, Command, Stdio};

/// Stopped when dropped.
pub struct Beside(Child);

impl Beside {
    /// Starts it. `None`, and a word about it, where it is not installed.
    pub fn start(program: &str, prepare: impl FnOnce(&mut Command)) -> Option<Self> {
        let mut command = Command::new(program);
        prepare(&mut command);
        match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => Some(Self(child)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("{program} is not installed: measured without it");
                None
            }
            Err(error) => panic!("{program}: {error}"),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Only fails where it has ended by itself, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
