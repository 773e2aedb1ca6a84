//! The wall clock as the hot path looks at it: reading it costs as much as all the rest of an issue.
//!
//! One reading serves for a moment, told by the processor's own counter, which is cheaper to read. A time that is a moment
//! old is nothing new to an issue: a process may always be interrupted between reading the clock and taking its id.

use super::{sample, wall_ms};
use crate::settings;
use crate::shmem::Shared;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// What this process has read last. One thread; atomics only because a static has to be one.
static READ_AT: AtomicU64 = AtomicU64::new(0);
static NOW_MS: AtomicI64 = AtomicI64::new(0);
static LIMIT_MS: AtomicI64 = AtomicI64::new(0);

/// The time, and the time and the drift, in milliseconds since 1970.
#[inline]
pub fn now_and_limit_ms(shared: &Shared) -> (i64, i64) {
    let count = counter::count();
    // A counter that was set back, as by a move to another machine, is far away too: the difference is huge.
    if count.is_none_or(|count| count.wrapping_sub(READ_AT.load(Relaxed)) > counter::serves()) {
        read(shared, count);
    }
    (NOW_MS.load(Relaxed), LIMIT_MS.load(Relaxed))
}

fn read(shared: &Shared, count: Option<u64>) {
    let now_ms = wall_ms();
    if shared.clock.effective.is_stale(now_ms) {
        sample(shared);
    }
    NOW_MS.store(now_ms, Relaxed);
    LIMIT_MS.store(now_ms + settings::max_drift_ms(), Relaxed);
    READ_AT.store(count.unwrap_or_default(), Relaxed);
}

// The processor's counter, where there is one that counts on at all times, and how much of it a reading serves for: about a
// microsecond. A session needs longer to get from one client's statement to the next, so an id's time is not before the
// start of the statement that draws it.

#[cfg(target_arch = "x86_64")]
mod counter {
    #[inline]
    pub fn count() -> Option<u64> {
        // SAFETY: every processor of this architecture has the instruction, and Linux lets processes use it.
        Some(unsafe { std::arch::x86_64::_rdtsc() })
    }

    /// Cycles, at two gigahertz.
    #[inline]
    pub fn serves() -> u64 {
        2048
    }
}

#[cfg(target_arch = "aarch64")]
mod counter {
    use std::arch::asm;

    #[inline]
    pub fn count() -> Option<u64> {
        let count: u64;
        // SAFETY: every processor of this architecture has the register, and Linux lets processes read it: its own clock
        // does so in user space. Reading it changes nothing.
        unsafe { asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags)) };
        Some(count)
    }

    /// By the frequency of the counter, which differs between machines: 24 MHz or 1 GHz.
    #[inline]
    pub fn serves() -> u64 {
        let per_second: u64;
        // SAFETY: as above.
        unsafe { asm!("mrs {}, cntfrq_el0", out(reg) per_second, options(pure, nomem, nostack, preserves_flags)) };
        // The upper half is reserved. Where the firmware says 0, the clock is read whenever the counter has moved.
        (per_second & 0xffff_ffff) / 1_000_000
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod counter {
    #[inline]
    pub fn count() -> Option<u64> {
        None
    }

    #[inline]
    pub fn serves() -> u64 {
        0
    }
}
