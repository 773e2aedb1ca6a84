//! One running server, as a process.
//!
//! The harness starts `postgres` itself and not through pg_ctl: the process is then a child of the test, whose end can be
//! waited for and whose id cannot be anyone else's.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::procfs::{Process, children, poll};

/// The three ways to shut a server down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Waits until every client has left.
    Smart,
    /// Ends the sessions, writes a checkpoint: the ordinary shutdown.
    Fast,
    /// Ends at once without a checkpoint: the next start recovers.
    Immediate,
}

impl Stop {
    fn signal(self) -> Signal {
        match self {
            Stop::Smart => Signal::SIGTERM,
            Stop::Fast => Signal::SIGINT,
            Stop::Immediate => Signal::SIGQUIT,
        }
    }
}

pub(crate) struct Postmaster {
    process: Child,
}

impl Postmaster {
    /// Starts the server; whether it comes up is for the caller to watch.
    pub(crate) fn spawn(mut command: Command, data: &Path, log: &Path) -> Postmaster {
        // When a postmaster is killed, its children become those of this process instead of process 1, which in a
        // container may be a program that never reaps: a soak would fill the process table with zombies.
        set_child_subreaper(true).expect("Linux lets a process adopt orphans");
        let log = OpenOptions::new().create(true).append(true).open(log).expect("the log is writable");
        let process = command
            .arg("-D")
            .arg(data)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        Postmaster { process }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id().try_into().expect("a process id is an i32"))
    }

    /// Set once the server has ended.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("a child can be waited for")
    }

    /// Asks the server to end; `None` when it still runs at the deadline.
    pub(crate) fn stop(&mut self, how: Stop, deadline: Duration) -> Option<ExitStatus> {
        if self.ended().is_none() {
            self.signal(how.signal());
        }
        poll(deadline, || self.ended())
    }

    /// Kills the server's first process alone and says which processes it left behind.
    pub(crate) fn kill9(mut self) -> Vec<Pid> {
        let orphans = self.freeze();
        self.reap();
        orphans
    }

    /// Makes an end of the server, whatever state it is in.
    pub(crate) fn destroy(mut self) {
        // The server itself kills what does not answer an immediate shutdown after five seconds.
        if self.stop(Stop::Immediate, Duration::from_secs(10)).is_some() {
            return;
        }
        let children = self.freeze();
        for &child in &children {
            // Before their parent: until it reaps them, their ids cannot pass to strangers.
            let _ = kill(child, Signal::SIGKILL);
        }
        self.reap();
        wait_for_death(children, Duration::from_secs(10));
    }

    pub(crate) fn has_child(&self, pid: Pid) -> bool {
        Process::find(pid).is_some_and(|process| process.parent == self.pid())
    }

    /// Stops the postmaster, so that it forks no more, and lists its children.
    fn freeze(&self) -> Vec<Pid> {
        self.signal(Signal::SIGSTOP);
        let still = |process: &Process| matches!(process.state, 'T' | 'Z');
        let frozen = poll(Duration::from_secs(10), || Process::find(self.pid()).filter(still));
        assert!(frozen.is_some(), "postmaster {} did not stop", self.pid());
        children(self.pid())
    }

    fn reap(&mut self) {
        self.signal(Signal::SIGKILL);
        self.process.wait().expect("a child can be waited for");
    }

    fn signal(&self, signal: Signal) {
        // The child is not reaped yet, so the id is its own; a dead one takes a signal without a word.
        kill(self.pid(), signal).expect("a child can be sent signals");
    }
}

/// Waits until the processes, children of a postmaster that is gone, have ended; gives back those that have not at the
/// deadline.
pub(crate) fn wait_for_death(mut pids: Vec<Pid>, deadline: Duration) -> Vec<Pid> {
    poll(deadline, || {
        pids.retain(|&pid| {
            // They are children of this process now, and would stay as zombies.
            let _ = waitpid(pid, Some(WaitPidFlag::WNOHANG));
            !Process::is_dead(pid)
        });
        pids.is_empty().then_some(())
    });
    pids
}
