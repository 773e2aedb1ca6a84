//! The wall clock as the hot path looks at it: reading it costs as much as all the rest of an issue.
//!
//! One reading serves for a moment, told by the processor's own counter, which is cheaper to read. A time that is a moment
//! old is nothing new to an issue: a process may always be interrupted between reading the clock and taking its id.

use super::{sample, wall_ms};
use crate::settings;
use crate::shmem::Shared;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// For how many cycles a reading serves: about a microsecond. A session needs longer to get from one client's statement to
/// the next, so an id's time is not before the start of the statement that draws it.
const SERVES: u64 = 2048;

/// What this process has read last. One thread; atomics only because a static has to be one.
static READ_AT: AtomicU64 = AtomicU64::new(0);
static NOW_MS: AtomicI64 = AtomicI64::new(0);
static LIMIT_MS: AtomicI64 = AtomicI64::new(0);

/// The time, and the time and the drift, in milliseconds since 1970.
#[inline]
pub fn now_and_limit_ms(shared: &Shared) -> (i64, i64) {
    let cycles = cycles();
    // A counter that was set back, as by a move to another machine, is far away too: the difference is huge.
    if cycles.is_none_or(|cycles| cycles.wrapping_sub(READ_AT.load(Relaxed)) > SERVES) {
        read(shared, cycles);
    }
    (NOW_MS.load(Relaxed), LIMIT_MS.load(Relaxed))
}

fn read(shared: &Shared, cycles: Option<u64>) {
    let now_ms = wall_ms();
    if shared.clock.effective.is_stale(now_ms) {
        sample(shared);
    }
    NOW_MS.store(now_ms, Relaxed);
    LIMIT_MS.store(now_ms + settings::max_drift_ms(), Relaxed);
    READ_AT.store(cycles.unwrap_or_default(), Relaxed);
}

/// The processor's counter, where there is one that counts on at all times.
#[inline]
fn cycles() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the instruction, and Linux lets processes use it.
    return Some(unsafe { std::arch::x86_64::_rdtsc() });
    #[cfg(not(target_arch = "x86_64"))]
    None
}
