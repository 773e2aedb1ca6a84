//! The clocks of the operating system.

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

#[inline]
fn gettime(clock: libc::clockid_t) -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Straight to libc, which reads the clock without a system call; pgrx would guard PostgreSQL's own function.
    // SAFETY: the pointer is to a local that outlives the call. It cannot fail: every Linux has these clocks.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
