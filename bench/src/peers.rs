//! What users would take instead of idgen: SQL of their own, and other servers on the same machine and disk.

pub mod etcd;
pub mod pgedge;
pub mod redis;
pub mod sql;

use std::io::ErrorKind;
use std::process::{Child, Command, Stdio};

/// A server process, killed when dropped.
struct Process(Child);

impl Process {
    /// Returns `None`, with a message, if the program is not installed.
    fn start(program: &str, prepare: impl FnOnce(&mut Command)) -> Option<Self> {
        let mut command = Command::new(program);
        prepare(&mut command);
        match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => Some(Self(child)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("{program} is not installed: skipped");
                None
            }
            Err(error) => panic!("cannot start {program}: {error}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Fails only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
