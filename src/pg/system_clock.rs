//! The clocks of the operating system.

use super::datum;
use pgrx::prelude::*;
use std::fs::read_to_string;
use std::io;
use std::sync::OnceLock;

/// Microseconds since 1970 on the wall clock, which can step.
pub fn wall_us() -> i64 {
    us(gettime(libc::CLOCK_REALTIME))
}

/// Milliseconds since 1970 on the wall clock.
#[inline]
pub fn wall_ms() -> i64 {
    ms(gettime(libc::CLOCK_REALTIME))
}

/// The wall clock in milliseconds at the kernel's last tick, up to 10 ms ago: a fraction of the cost of [`wall_ms`].
#[inline]
pub fn coarse_wall_ms() -> i64 {
    ms(gettime(libc::CLOCK_REALTIME_COARSE))
}

/// Microseconds since the machine started, suspend included. This clock never steps.
pub fn boot_us() -> i64 {
    us(gettime(libc::CLOCK_BOOTTIME))
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
    datum::from_us(wall_us().checked_add(us.saturating_sub(boot_us()))?)
}

// Not in nanoseconds: 64 bits of them end in 2262, and a wall clock that is set wrong can be past that.

fn us(time: libc::timespec) -> i64 {
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}

#[inline]
fn ms(time: libc::timespec) -> i64 {
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

#[inline]
fn gettime(clock: libc::clockid_t) -> libc::timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Straight to libc, which reads the clock without a system call; pgrx would guard PostgreSQL's own function.
    // SAFETY: the pointer is to a local that outlives the call. It cannot fail: every Linux has these clocks.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now
}
