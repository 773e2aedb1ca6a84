//! One running server, as a process.
//!
//! The kit starts `postgres` directly and not through pg_ctl. The process is then a child of the test: the test can wait
//! for its exit, and its id is not reused before that.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::procfs::{Process, children, is_startup_process, poll};

/// The three ways to shut a server down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Waits until every client has disconnected.
    Smart,
    /// Ends the sessions and writes a checkpoint: the ordinary shutdown.
    Fast,
    /// Exits at once without a checkpoint: the next start recovers.
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
    /// Starts the server without waiting for it.
    pub(crate) fn spawn(mut command: Command, data: &Path, log: &Path) -> Postmaster {
        // Makes this process the parent of a killed postmaster's children. In a container, process 1 may never reap
        // them, and a soak would fill the process table with zombies.
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

    /// `None` while the server runs.
    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("a child can be waited for")
    }

    /// Asks the server to exit. `None` if it still runs at the deadline.
    pub(crate) fn stop(&mut self, how: Stop, deadline: Duration) -> Option<ExitStatus> {
        if self.exit_status().is_none() {
            self.signal(how.signal());
        }
        poll(deadline, || self.exit_status())
    }

    /// Kills the postmaster and returns the processes that it left behind.
    ///
    /// It kills a startup process too: at the end of recovery this one asks for a checkpoint for a minute, although the
    /// checkpointer has exited with the postmaster.
    pub(crate) fn kill9(mut self) -> Vec<Pid> {
        let orphans = self.freeze();
        self.reap();
        for &startup in orphans.iter().filter(|pid| is_startup_process(pid.as_raw())) {
            // A child of this process now, so its id is not reused.
            let _ = kill(startup, Signal::SIGKILL);
        }
        orphans
    }

    /// Kills the server in whatever state it is.
    pub(crate) fn destroy(mut self) {
        // In an immediate shutdown the server itself kills processes that do not exit in five seconds.
        if self.stop(Stop::Immediate, Duration::from_secs(10)).is_some() {
            return;
        }
        self.kill9_all();
    }

    /// Kills all processes of the server, also paused ones.
    pub(crate) fn kill9_all(mut self) {
        let children = self.freeze();
        for &child in &children {
            // Before their parent: their ids are not reused until it reaps them.
            let _ = kill(child, Signal::SIGKILL);
        }
        self.reap();
        wait_for_death(children, Duration::from_secs(10));
    }

    pub(crate) fn has_child(&self, pid: Pid) -> bool {
        Process::find(pid).is_some_and(|process| process.parent == self.pid())
    }

    /// Stops the postmaster, so that it cannot fork, and lists its children.
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
        // The child is not reaped yet, so its id is not reused. A signal to a zombie has no effect.
        kill(self.pid(), signal).expect("a child can be sent signals");
    }
}

/// Waits until the children of a killed postmaster have exited. Returns those that still run at the deadline.
pub(crate) fn wait_for_death(mut pids: Vec<Pid>, deadline: Duration) -> Vec<Pid> {
    poll(deadline, || {
        // They are children of this process now. One that has died since it was asked for stays, or it would remain as a zombie.
        pids.retain(|&pid| match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
            Ok(status) => status == WaitStatus::StillAlive,
            Err(_) => !Process::is_dead(pid),
        });
        pids.is_empty().then_some(())
    });
    pids
}
