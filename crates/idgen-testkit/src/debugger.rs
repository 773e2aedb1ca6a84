//! Stops a process of the server at the beginning of one of PostgreSQL's functions, for races that last a few instructions.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// A process stopped by ptrace, which resumes when this is dropped. Use it in one thread, as ptrace requires.
pub struct Debugger {
    pid: Pid,
}

impl Debugger {
    /// `None` if the system does not allow ptrace.
    pub fn attach(pid: i32) -> Option<Debugger> {
        let pid = Pid::from_raw(pid);
        match ptrace::attach(pid) {
            Err(Errno::EPERM) => return None,
            attached => attached.unwrap_or_else(|error| panic!("cannot attach to process {pid}: {error}")),
        }
        waitpid(pid, None).expect("the process stops");
        Some(Debugger { pid })
    }

    /// Runs the process up to the next call of a function of PostgreSQL.
    pub fn run_to(&self, function: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        let address = self.address_of(function);
        let mut signal = None;
        while signal.is_some() || self.instruction() != address {
            ptrace::step(self.pid, signal).expect("the process is stopped");
            // A step into a system call can block.
            let mut status = WaitStatus::StillAlive;
            while status == WaitStatus::StillAlive {
                assert!(Instant::now() < deadline, "process {} does not reach {function}()", self.pid);
                status = waitpid(self.pid, Some(WaitPidFlag::WNOHANG)).expect("the process is traced");
            }
            signal = match status {
                WaitStatus::Stopped(_, Signal::SIGTRAP) => None,
                WaitStatus::Stopped(_, signal) => Some(signal),
                status => panic!("process {} has exited: {status:?}", self.pid),
            };
        }
    }

    fn instruction(&self) -> u64 {
        let registers = ptrace::getregs(self.pid).expect("the process is stopped");
        #[cfg(target_arch = "x86_64")]
        return registers.rip;
        #[cfg(target_arch = "aarch64")]
        return registers.pc;
    }

    fn address_of(&self, function: &str) -> u64 {
        let program = std::fs::read_link(format!("/proc/{}/exe", self.pid)).expect("the process runs a program");
        self.base_of(&program) + offset_of(&program, function)
    }

    /// The address at which the program is mapped, to which its symbols are relative. 0 if they are addresses.
    fn base_of(&self, program: &Path) -> u64 {
        /// The type of a program that is not position-independent, in byte 16 of an ELF file.
        const ET_EXEC: u8 = 2;
        if std::fs::read(program).expect("the program is readable")[16] == ET_EXEC {
            return 0;
        }
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid)).expect("the process exists");
        let of_program = |line: &&str| line.ends_with(&program.display().to_string());
        let first = maps.lines().find(of_program).expect("the program is mapped");
        let (begin, _) = first.split_once('-').expect("a range");
        u64::from_str_radix(begin, 16).expect("an address")
    }
}

impl Drop for Debugger {
    fn drop(&mut self) {
        // The process may have been killed.
        let _ = ptrace::detach(self.pid, None);
    }
}

/// The value of a function's symbol. `nm` comes with the linker.
fn offset_of(program: &Path, function: &str) -> u64 {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(program).output().expect("nm is installed");
    let symbols = String::from_utf8(output.stdout).expect("names of functions");
    let suffix = format!(" T {function}");
    let line =
        symbols.lines().find(|line| line.ends_with(&suffix)).unwrap_or_else(|| panic!("no function {function}()"));
    u64::from_str_radix(line.split_whitespace().next().unwrap_or_default(), 16).expect("an offset")
}
