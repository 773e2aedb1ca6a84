//! The clock that leases go by, and since when this server writes by it.

use super::errors;
use crate::pg::spi::{Query, value};
use crate::pg::system_clock;
use idgen_core::lease::Now;
use pgrx::prelude::*;
use std::fs::read_to_string;
use std::sync::OnceLock;

/// Names CLOCK_BOOTTIME as this process sees it: which start of the machine it counts from, and what the time namespace
/// adds. Where two names differ, their times have nothing to do with each other.
pub fn clock_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let boot = read_to_string("/proc/sys/kernel/random/boot_id");
        let boot = boot.unwrap_or_else(|e| errors::no_boot_id(&e).raise());
        // A kernel without time namespaces has no such file.
        let offsets = read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        let offset = offsets.lines().find_map(|line| line.strip_prefix("boottime")).unwrap_or("0 0");
        let offset: Vec<&str> = offset.split_whitespace().collect();
        format!("{}+{}", boot.trim(), offset.join("."))
    })
}

/// Which start of the server this is: a session of another has ended with it.
pub fn server_start() -> i64 {
    // SAFETY: set when the postmaster starts, and inherited.
    unsafe { pg_sys::PgStartTime }
}

/// Now; `began` only where it matters, for it costs a look at other processes the first time.
pub fn now(began_matters: bool) -> Now {
    let now_us = system_clock::boot_us();
    Now { now_us, began_us: if began_matters { began_us().unwrap_or(now_us) } else { now_us } }
}

/// When this server began to write: PostgreSQL starts its WAL writer then, after a start and after a promotion, and with
/// all else again after a crash. `None` while it is not there: then the beginning is not before now.
fn began_us() -> Option<i64> {
    static BEGAN_US: OnceLock<i64> = OnceLock::new();
    static WAL_WRITER: Query = Query::of_statistics(|| {
        "SELECT pid FROM pg_catalog.pg_stat_get_activity(NULL) WHERE backend_type OPERATOR(pg_catalog.=) 'walwriter'"
            .to_owned()
    });
    if let Some(began_us) = BEGAN_US.get() {
        return Some(*began_us);
    }
    let pid: i32 = WAL_WRITER.read_latest(&[], |row| value(row, 1)).pop()?;
    Some(*BEGAN_US.get_or_init(|| started_us(pid).unwrap_or_else(system_clock::boot_us)))
}

/// When a process was started, by CLOCK_BOOTTIME as seen from here, rounded up to the kernel's tick.
fn started_us(pid: i32) -> Option<i64> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may hold anything; the 22nd field is the 20th after it.
    let ticks: i64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    // SAFETY: asks for a constant of the system.
    let ticks_a_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some((ticks + 1) * 1_000_000 / ticks_a_second)
}
