//! A process that is paused at the worst moment.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::procfs::{Process, poll};

/// Stops a process (SIGSTOP) until the guard is dropped: what a virtual machine that is being moved, a debugger or a long
/// swap-in does to a client or a backend. When this returns the process has stopped.
///
/// The server cannot end before a paused process of it goes on, except by SIGKILL, so drop the guard first.
#[must_use = "the process goes on when the guard is dropped"]
pub fn pause(pid: i32) -> Paused {
    let pid = Pid::from_raw(pid);
    kill(pid, Signal::SIGSTOP).unwrap_or_else(|error| panic!("cannot pause process {pid}: {error}"));
    let paused = Paused(pid);
    let stopped = poll(Duration::from_secs(10), || Process::find(pid).filter(|process| process.state == 'T'));
    assert!(stopped.is_some(), "process {pid} did not stop");
    paused
}

/// Lets the process go on (SIGCONT) when dropped.
pub struct Paused(Pid);

impl Paused {
    /// The same as dropping the guard, for where that should be seen.
    pub fn resume(self) {}
}

impl Drop for Paused {
    fn drop(&mut self) {
        // It may have been killed meanwhile, which is no concern of the guard.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}
