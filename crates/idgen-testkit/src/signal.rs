//! Pausing a process.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::procfs::{Process, poll, waits_for_events};

/// Stops a process (SIGSTOP) until the guard is dropped, as a live migration, a debugger or a long swap-in does. When this
/// returns, the process has stopped, or has ended before.
///
/// Drop the guard before stopping the server: a server with a paused process exits only by SIGKILL.
#[must_use = "the process resumes when the guard is dropped"]
pub fn pause(pid: i32) -> Paused {
    pause_if_running(pid).unwrap_or_else(|| panic!("process {pid} has ended"))
}

/// `None` if it has ended.
pub fn pause_if_running(pid: i32) -> Option<Paused> {
    let pid = Pid::from_raw(pid);
    match kill(pid, Signal::SIGSTOP) {
        Err(Errno::ESRCH) => return None,
        sent => sent.unwrap_or_else(|error| panic!("cannot pause process {pid}: {error}")),
    }
    let paused = Paused(pid);
    let exists = poll(Duration::from_secs(10), || match Process::find(pid) {
        // It had ended, and its parent noticed just now.
        None => Some(false),
        Some(process) => matches!(process.state, 'T' | 'Z').then_some(true),
    });
    exists.unwrap_or_else(|| panic!("process {pid} did not stop")).then_some(paused)
}

/// Pauses a process of a server while it waits for its client or another process. `None` if it has ended.
///
/// At another moment it may hold a lock that every session needs, and tests that go on without it would hang.
pub fn pause_in_a_wait(pid: i32) -> Option<Paused> {
    let paused = poll(Duration::from_secs(10), || match pause_if_running(pid) {
        Some(paused) if !waits_for_events(paused.0) => None,
        paused => Some(paused),
    });
    paused.unwrap_or_else(|| panic!("process {pid} never waits"))
}

/// Resumes the process (SIGCONT) when dropped.
pub struct Paused(Pid);

impl Paused {
    /// Drops the guard, visibly.
    pub fn resume(self) {}
}

impl Drop for Paused {
    fn drop(&mut self) {
        // The process may have been killed.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}
