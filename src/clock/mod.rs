//! The time.

/// Nanoseconds since 1970, by the server's wall clock.
#[inline]
pub fn now_ns() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // Straight to libc, which reads the clock without a system call; PostgreSQL's own function costs a guarded call.
    // SAFETY: the pointer is to a local that outlives the call. It cannot fail: every system has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Milliseconds since 1970, by the server's wall clock.
#[inline]
pub fn now_ms() -> i64 {
    now_ns() / 1_000_000
}
