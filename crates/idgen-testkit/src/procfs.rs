//! What /proc says about processes.

use std::time::{Duration, Instant};

use nix::unistd::Pid;

/// Calls `look` until it gives a value; `None` when the deadline has passed first.
///
/// This is the only place of the harness that sleeps: between two looks at a condition, never instead of one.
pub(crate) fn poll<T>(deadline: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(found) = look() {
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
    /// The letter that `ps` shows: `T` is stopped by a signal, `Z` is dead and not yet reaped.
    pub(crate) state: char,
}

impl Process {
    /// The process with this id, dead but unreaped ones included.
    pub(crate) fn find(pid: Pid) -> Option<Process> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // "pid (name) state ppid ...": the name may itself contain blanks and parentheses.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = Pid::from_raw(fields.next()?.parse().ok()?);
        Some(Process { parent, state })
    }

    /// Has let go of everything it held, reaped or not.
    pub(crate) fn is_dead(pid: Pid) -> bool {
        Process::find(pid).is_none_or(|process| matches!(process.state, 'Z' | 'X'))
    }
}

/// The children of a process. Complete only while the parent cannot fork: see `Postmaster::freeze`.
pub(crate) fn children(parent: Pid) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").expect("/proc is readable");
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().map(Pid::from_raw))
        .filter(|&pid| Process::find(pid).is_some_and(|process| process.parent == parent))
        .collect()
}
