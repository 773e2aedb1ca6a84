//! What a process of a server occupies, read from /proc: a leak shows as growth from one time to another.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{read_dir, read_to_string};

use nix::unistd::Pid;

use crate::cluster::Cluster;
use crate::procfs::{Process, children};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resources {
    /// Anonymous memory that is its own, in kB.
    pub memory: u64,
    /// Open file descriptors.
    pub files: u64,
    /// Mapped shared memory, in kB.
    pub shared: u64,
}

/// Caches of the catalog and open files of relations vary by so much, in kB and in number.
const MEMORY_SLACK: u64 = 512;
const FILES_SLACK: u64 = 12;

impl Resources {
    /// `None` if the process has ended.
    pub fn of(pid: i32) -> Option<Resources> {
        let status = read_to_string(format!("/proc/{pid}/status")).ok()?;
        let memory = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        let memory = memory.split_whitespace().next()?.parse().ok()?;
        let files = read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
        let maps = read_to_string(format!("/proc/{pid}/maps")).ok()?;
        Some(Resources { memory, files, shared: maps.lines().filter_map(shared_bytes).sum::<u64>() / 1024 })
    }

    /// What has grown by more than it varies: memory by a quarter.
    pub fn growth_to(self, later: Resources) -> Vec<&'static str> {
        let grown = [
            ("memory", later.memory > self.memory + self.memory / 4 + MEMORY_SLACK),
            ("files", later.files > self.files + FILES_SLACK),
            ("shared memory", later.shared > self.shared),
        ];
        grown.into_iter().filter(|(_, is_grown)| *is_grown).map(|(what, _)| what).collect()
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kB, {} files, {} kB shared", self.memory, self.files, self.shared)
    }
}

/// The size of a mapping that a writable one of /proc/PID/maps shows: "from-to rw-s ...".
fn shared_bytes(line: &str) -> Option<u64> {
    let mut fields = line.split_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let is_shared = fields.next()? == "rw-s";
    let [from, to] = [from, to].map(|address| u64::from_str_radix(address, 16).ok());
    Some(to? - from?).filter(|_| is_shared)
}

impl Cluster {
    /// The postmaster and the background workers of idgen, by process and title.
    pub fn resources(&self) -> BTreeMap<(i32, String), Resources> {
        let postmaster = Pid::from_raw(self.pid_of_postmaster());
        let workers = children(postmaster).into_iter().filter(|pid| Process::title(*pid).contains(": idgen "));
        let found = workers.chain([postmaster]).filter_map(|pid| {
            let title = Process::title(pid).replace('\0', " ").trim_end().to_owned();
            Some(((pid.as_raw(), title), Resources::of(pid.as_raw())?))
        });
        found.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_beyond_the_slack_is_found_for_each_resource() {
        let before = Resources { memory: 8000, files: 10, shared: 100 };
        for (later, grown) in [
            (before, vec![]),
            (Resources { memory: 10_512, files: 22, ..before }, vec![]),
            (Resources { memory: 10_513, ..before }, vec!["memory"]),
            (Resources { files: 23, ..before }, vec!["files"]),
            (Resources { shared: 101, ..before }, vec!["shared memory"]),
        ] {
            assert_eq!(before.growth_to(later), grown, "{later:?}");
        }
    }

    #[test]
    fn only_writable_shared_mappings_count() {
        let size = |mode: &str| shared_bytes(&format!("7f00-8f00 {mode} 00000000 00:01 5 /dev/zero"));
        assert_eq!([size("rw-s"), size("rw-p"), size("r--s")], [Some(0x1000), None, None]);
    }
}
