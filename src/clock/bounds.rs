//! The bounds of an issue. On the hot path, reading the wall clock costs as much as the rest of an issue.
//!
//! One reading serves for about a microsecond, counted by the processor's own counter, which is cheaper to read. An issue
//! tolerates a time that old: a process can be interrupted between reading the clock and taking its id anyway.

use super::state::State;
use crate::pg::system_clock;
use crate::settings;
use idgen_core::snowflake::Bounds;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

impl State {
    /// The bounds of an issue by one reading of the wall clock. They may be too narrow, never too wide. If they stop an
    /// issue, ask for [`State::careful_bounds`].
    #[inline]
    pub fn quick_bounds(&self) -> Bounds {
        // The early ceiling is before the mark, so that the mark moves before it stops an issue.
        bounds(now_ms(self), self.mark.early_ceiling_ms())
    }

    /// The bounds of an issue by the clock and the mark as they are now. Moves nothing: the clock may be outside of the
    /// layout's time, and a mark that was moved there would outlive the correction of the clock.
    pub fn careful_bounds(&self) -> Bounds {
        bounds(self.read_wall_ms(), self.mark.ceiling_ms())
    }

    fn read_wall_ms(&self) -> i64 {
        let now_ms = system_clock::wall_ms();
        if self.steps.is_stale(now_ms) {
            self.sample();
        }
        now_ms
    }
}

#[inline]
fn bounds(now_ms: i64, ceiling_ms: i64) -> Bounds {
    Bounds { now_ms, limit_ms: now_ms + settings::max_drift_ms(), ceiling_ms }
}

/// The last reading of this process. One thread; atomics only because they are statics.
static READ_AT: AtomicU64 = AtomicU64::new(0);
static NOW_MS: AtomicI64 = AtomicI64::new(0);

/// Milliseconds since 1970.
#[inline]
fn now_ms(state: &State) -> i64 {
    let count = counter::count();
    // A counter that was set back, for example by a live migration, differs by a huge number too.
    if count.is_none_or(|count| count.wrapping_sub(READ_AT.load(Relaxed)) > counter::serves()) {
        NOW_MS.store(state.read_wall_ms(), Relaxed);
        READ_AT.store(count.unwrap_or_default(), Relaxed);
    }
    NOW_MS.load(Relaxed)
}

// The processor's counter, where one counts at all times, and how long a reading serves: about a microsecond. A session
// needs longer between two statements of a client, so an id's time is not before the start of its statement.

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
        // SAFETY: every processor of this architecture has the register, and Linux lets processes read it, as its own
        // vDSO does. Reading it changes nothing.
        unsafe { asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags)) };
        Some(count)
    }

    /// The counter's frequency differs between machines: 24 MHz or 1 GHz.
    #[inline]
    pub fn serves() -> u64 {
        let per_second: u64;
        // SAFETY: as above.
        unsafe { asm!("mrs {}, cntfrq_el0", out(reg) per_second, options(pure, nomem, nostack, preserves_flags)) };
        // The upper half is reserved. If the firmware reports 0, each change of the counter reads the clock.
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
