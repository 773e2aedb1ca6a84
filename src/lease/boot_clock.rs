//! The clock of leases, CLOCK_BOOTTIME, and when this server began to write by it.

use super::errors;
use crate::pg::spi::{Query, value};
use crate::pg::system_clock;
use pgrx::prelude::*;
use std::fs::read_to_string;
use std::sync::OnceLock;

/// Identifies CLOCK_BOOTTIME as this process reads it: the boot of the machine, and the offset of the time namespace.
/// Times under different names cannot be compared.
pub fn name() -> &'static str {
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

/// When this server began to write. PostgreSQL starts the WAL writer then: after a start, a promotion or a crash.
/// `None` while there is no WAL writer: the server has not begun yet.
pub fn began_us() -> Option<i64> {
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

/// When a process started, rounded up to the kernel's tick.
fn started_us(pid: i32) -> Option<i64> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may contain any character. The 22nd field is the 20th after it.
    let ticks: i64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    // SAFETY: asks for a constant of the system.
    let ticks_a_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Some((ticks + 1) * 1_000_000 / ticks_a_second)
}

/// A time of this clock as the wall clock shows it now. `None` if no timestamp can represent it; not infinity, which
/// many clients cannot read.
pub fn to_wall_time(us: i64) -> Option<TimestampWithTimeZone> {
    // SAFETY: reads the clock.
    let now = unsafe { pg_sys::GetCurrentTimestamp() };
    let time = now.checked_add(us.saturating_sub(system_clock::boot_us()))?;
    // The extreme values represent the infinities.
    TimestampWithTimeZone::try_from(time).ok().filter(|_| !matches!(time, i64::MIN | i64::MAX))
}
