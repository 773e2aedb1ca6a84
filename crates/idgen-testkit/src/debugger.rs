//! A process of the server that is stopped at the beginning of one of PostgreSQL's functions: for races that last some
//! instructions, and that no signal from outside hits.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Attached to a process, which stands still. Dropped, it goes on. All of it in one thread, as ptrace wants it.
pub struct Debugger {
    pid: Pid,
}

impl Debugger {
    /// `None` where the system does not let one process debug another.
    pub fn attach(pid: i32) -> Option<Debugger> {
        let pid = Pid::from_raw(pid);
        match ptrace::attach(pid) {
            Err(Errno::EPERM) => return None,
            attached => attached.unwrap_or_else(|error| panic!("cannot attach to process {pid}: {error}")),
        }
        waitpid(pid, None).expect("it stops");
        Some(Debugger { pid })
    }

    /// Goes on up to the next call of a function of PostgreSQL.
    pub fn run_to(&self, function: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let address = self.address_of(function);
        let mut signal = None;
        while signal.is_some() || self.instruction() != address {
            ptrace::step(self.pid, signal).expect("it is stopped");
            // A step into a system call can last.
            let mut status = WaitStatus::StillAlive;
            while status == WaitStatus::StillAlive {
                assert!(Instant::now() < deadline, "process {} does not come to {function}()", self.pid);
                status = waitpid(self.pid, Some(WaitPidFlag::WNOHANG)).expect("it is traced");
            }
            signal = match status {
                WaitStatus::Stopped(_, Signal::SIGTRAP) => None,
                WaitStatus::Stopped(_, signal) => Some(signal),
                status => panic!("process {} has ended: {status:?}", self.pid),
            };
        }
    }

    fn instruction(&self) -> u64 {
        let registers = ptrace::getregs(self.pid).expect("it is stopped");
        #[cfg(target_arch = "x86_64")]
        return registers.rip;
        #[cfg(target_arch = "aarch64")]
        return registers.pc;
    }

    fn address_of(&self, function: &str) -> u64 {
        let program = std::fs::read_link(format!("/proc/{}/exe", self.pid)).expect("it runs a program");
        self.base_of(&program) + offset_of(&program, function)
    }

    /// Where the program is in memory.
    fn base_of(&self, program: &Path) -> u64 {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid)).expect("it is there");
        let of_program = |line: &&str| line.ends_with(&program.display().to_string());
        let first = maps.lines().find(of_program).expect("the program is mapped");
        let (begin, _) = first.split_once('-').expect("a range");
        u64::from_str_radix(begin, 16).expect("an address")
    }
}

impl Drop for Debugger {
    fn drop(&mut self) {
        // It may have been killed, which is no concern of the guard.
        let _ = ptrace::detach(self.pid, None);
    }
}

/// Where a function is in a program that can be loaded anywhere. `nm` comes with the linker.
fn offset_of(program: &Path, function: &str) -> u64 {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(program).output().expect("nm is installed");
    let symbols = String::from_utf8(output.stdout).expect("names of functions");
    let ends_so = format!(" T {function}");
    let line = symbols.lines().find(|line| line.ends_with(&ends_so)).unwrap_or_else(|| panic!("no {function}()"));
    u64::from_str_radix(line.split_whitespace().next().unwrap_or_default(), 16).expect("an offset")
}
