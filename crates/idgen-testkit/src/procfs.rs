//! The state of processes, read from /proc.

use std::time::{Duration, Instant};

use nix::libc;
use nix::unistd::Pid;

/// Calls `probe` until it returns a value. `None` if the deadline passes first.
///
/// Only this function of the kit sleeps: between two probes, never instead of one.
pub(crate) fn poll<T>(deadline: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(found) = probe() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) struct Process {
    pub(crate) parent: Pid,
    /// The letter that `ps` shows: `T` is stopped by a signal, `Z` is a zombie.
    pub(crate) state: char,
}

impl Process {
    /// The process with this id, zombies included.
    pub(crate) fn find(pid: Pid) -> Option<Process> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // "pid (name) state ppid ...": the name may itself contain blanks and parentheses.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = Pid::from_raw(fields.next()?.parse().ok()?);
        Some(Process { parent, state })
    }

    /// CPU time of a process, and of its children that ended.
    pub(crate) fn cpu_time(pid: Pid) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        // cutime and cstime, in ticks of a hundredth of a second.
        let ticks: u64 =
            fields.split_ascii_whitespace().skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        // Its own in nanoseconds: with a thousand processes, ticks are too coarse.
        let schedstat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
        let own_ns = schedstat.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Duration::from_nanos(own_ns) + Duration::from_millis(10 * ticks))
    }

    /// What it does, as `ps` shows it; empty if it has exited.
    pub(crate) fn title(pid: Pid) -> String {
        let title = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&title).into_owned()
    }

    /// True if it has released all its resources, reaped or not.
    pub(crate) fn is_dead(pid: Pid) -> bool {
        Process::find(pid).is_none_or(|process| matches!(process.state, 'Z' | 'X'))
    }
}

/// True while a process is attached to this segment of System V shared memory.
pub(crate) fn is_attached(segment: &str) -> bool {
    let segments = std::fs::read_to_string("/proc/sysvipc/shm").expect("Linux lists the segments");
    segments.lines().skip(1).any(|line| {
        // "key shmid perms size cpid lpid nattch ..."
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields[1] == segment && fields[6] != "0"
    })
}

/// True if a paused process was in the system call by which PostgreSQL waits for latches and sockets.
pub(crate) fn waits_for_events(pid: Pid) -> bool {
    #[cfg(target_arch = "x86_64")]
    const WAITS: libc::c_long = libc::SYS_epoll_wait;
    #[cfg(not(target_arch = "x86_64"))]
    const WAITS: libc::c_long = libc::SYS_epoll_pwait;
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    call.split_whitespace().next() == Some(WAITS.to_string().as_str())
}

/// The children of a process. Complete only while the parent cannot fork: see `Postmaster::freeze`.
pub(crate) fn children(parent: Pid) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").expect("/proc is readable");
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().map(Pid::from_raw))
        .filter(|&pid| Process::find(pid).is_some_and(|process| process.parent == parent))
        .collect()
}

/// The process that recovers, and promotes. What `ps` shows of a session that begins ends with the same word.
pub fn is_startup_process(pid: i32) -> bool {
    Process::title(Pid::from_raw(pid)).starts_with("postgres: startup")
}
