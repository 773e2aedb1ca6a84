//! The machine and the server of a report.

use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::process::Command;

#[derive(Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    filesystem: String,
    /// The load average of the minute before: other work on the machine.
    load_before: String,
    postgresql: String,
    settings: String,
    idgen: String,
}

impl Machine {
    pub fn current(data: &Path, postgresql: String, settings: String, idgen: String) -> Self {
        Self {
            cpu: cpu(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease"),
            filesystem: filesystem(data),
            load_before: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
            postgresql,
            settings,
            idgen,
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cores, kernel, filesystem, load_before, postgresql, settings, idgen } = self;
        writeln!(f, "{cpu}, {cores} cores, Linux {kernel}, data on {filesystem}, load before: {load_before}.")?;
        writeln!(f, "PostgreSQL {postgresql}, idgen {idgen}; {settings}.")?;
        write!(f, "Medians with minimum and maximum. Ratios are computed within a round.")
    }
}

fn cpu() -> String {
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_owned()
}

fn filesystem(path: &Path) -> String {
    let output = Command::new("findmnt").args(["--noheadings", "--output=FSTYPE", "--target"]).arg(path).output();
    let output = output.expect("cannot run findmnt");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}
