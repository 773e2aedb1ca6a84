//! The longest life of a server of a test: one that hangs would keep the whole run, and nobody would learn which one it was.

use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use crate::rounds::rounds;

/// While it lives, a thread waits for its end. After ten minutes, in a soak after ten hours, the thread ends this process.
pub(crate) struct Life(#[expect(dead_code, reason = "its drop tells the thread")] Sender<()>);

impl Life {
    /// `None` in the main thread, which runs a bench for as long as it takes.
    pub(crate) fn begin() -> Option<Life> {
        let test = thread::current().name().filter(|name| *name != "main")?.to_owned();
        let limit = Duration::from_secs(rounds(600, 36_000) as u64);
        let (life, end) = mpsc::channel();
        thread::spawn(move || {
            if end.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                // Macros write into the output of the test, which ends with this process.
                let _ = writeln!(std::io::stderr(), "a server of {test} has run for {limit:?}: the test hangs");
                std::process::exit(101);
            }
        });
        Some(Life(life))
    }
}
