//! The clocks of the operating system.

use pgrx::prelude::*;
use std::fs::read_to_string;
use std::io;
use std::sync::OnceLock;

const NS_PER_MS: i64 = 1_000_000;

/// Nanoseconds since 1970 on the wall clock, which can step.
#[inline]
pub fn wall_ns() -> i64 {
    gettime(libc::CLOCK_REALTIME)
}

/// Milliseconds since 1970 on the wall clock.
#[inline]
pub fn wall_ms() -> i64 {
    wall_ns() / NS_PER_MS
}

/// The wall clock in milliseconds at the kernel's last tick, up to 10 ms ago: a fraction of the cost of [`wall_ms`].
#[inline]
pub fn coarse_wall_ms() -> i64 {
    gettime(libc::CLOCK_REALTIME_COARSE) / NS_PER_MS
}

/// Nanoseconds since the machine started, suspend included. This clock never steps.
pub fn boot_ns() -> i64 {
    gettime(libc::CLOCK_BOOTTIME)
}

/// Microseconds since the machine started.
pub fn boot_us() -> i64 {
    boot_ns() / 1000
}

/// Identifies CLOCK_BOOTTIME as this process reads it: the boot of the machine, and the offset of the time namespace.
/// Times by clocks of different names cannot be compared.
pub fn boot_clock_name() -> io::Result<&'static str> {
    static NAME: OnceLock<String> = OnceLock::new();
    if let Some(name) = NAME.get() {
        return Ok(name);
    }
    let boot = read_to_string("/proc/sys/kernel/random/boot_id")?;
    // A kernel without time namespaces has no such file.
    let offsets = read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let offset = offsets.lines().find_map(|line| line.strip_prefix("boottime")).unwrap_or("0 0");
    let offset: Vec<&str> = offset.split_whitespace().collect();
    Ok(NAME.get_or_init(|| format!("{}+{}", boot.trim(), offset.join("."))))
}

/// A time of CLOCK_BOOTTIME as the wall clock shows it now. `None` if no timestamp can represent it; not infinity, which
/// many clients cannot read.
pub fn wall_time_of_boot_us(us: i64) -> Option<TimestampWithTimeZone> {
    // SAFETY: reads the clock.
    let now = unsafe { pg_sys::GetCurrentTimestamp() };
    let time = now.checked_add(us.saturating_sub(boot_us()))?;
    // The extreme values represent the infinities.
    TimestampWithTimeZone::try_from(time).ok().filter(|_| !matches!(time, i64::MIN | i64::MAX))
}

#[inline]
fn gettime(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Straight to libc, which reads the clock without a system call; pgrx would guard PostgreSQL's own function.
    // SAFETY: the pointer is to a local that outlives the call. It cannot fail: every Linux has these clocks.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
