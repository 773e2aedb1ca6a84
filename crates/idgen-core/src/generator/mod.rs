//! The shared word of one id space, and the table that gives generators to id spaces.
//!
//! Issuing takes no lock. The rules of [`crate::tenancy`] make that safe although a generator may be given to another
//! space at any moment. Its position is the first free slot plus an offset of the tenancy.

use crate::snowflake::{Bounds, IdSpace, Issue};
use crate::sync::{AtomicI64, AtomicU64, Ordering};
use crate::tenancy::Ended;

pub mod settled;
mod table;

pub use table::{FLOORS, Floor, GeneratorTable, GeneratorTenant};

/// One word that all processes issue from. It has a pair of cache lines of its own: processors prefetch the other line
/// of a pair, and would take it from the core that issues from it.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Generator {
    /// Number of the tenancy that the position belongs to. Written under the table's lock only.
    tenancy: AtomicU64,
    /// First free slot plus the tenancy's offset, modulo 2^64.
    position: AtomicU64,
    /// When a tick ahead of the limit was last opened, by CLOCK_BOOTTIME in microseconds, or `NEVER`.
    opened_us: AtomicI64,
}

const NEVER: i64 = i64::MIN;

/// Where a space goes on that has left its generator.
#[derive(Clone, Copy, Debug)]
struct Progress {
    free: u64,
    opened_us: i64,
}

/// A tenancy of a generator, as a backend remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratorHandle {
    tenancy: u64,
    offset: u64,
}

impl Generator {
    /// All zero, without a tenant.
    #[allow(clippy::new_without_default, reason = "a generator is made in place, in shared memory")]
    pub fn new() -> Self {
        Self { tenancy: AtomicU64::new(0), position: AtomicU64::new(0), opened_us: AtomicI64::new(NEVER) }
    }

    /// Takes up to `want` slots of `space`, which must be the space of the tenancy.
    #[inline]
    pub fn issue(&self, handle: GeneratorHandle, space: &IdSpace, want: u64, bounds: &Bounds) -> Result<Issue, Ended> {
        // Acquire, here and on failure of the swap, for rule 2: the tenancy is loaded after the position.
        let mut position = self.position.load(Ordering::Acquire);
        loop {
            if self.tenancy.load(Ordering::Relaxed) != handle.tenancy {
                return Err(Ended);
            }
            let issue = space.next(position.wrapping_sub(handle.offset), want, bounds);
            let Issue::Issued(run) = issue else {
                return Ok(issue);
            };
            let next = (run.first + run.count).wrapping_add(handle.offset);
            // Release continues the chain from the end of a tenancy to later loads. The ids themselves carry no data.
            match self.position.compare_exchange_weak(position, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(issue),
                Err(current) => position = current,
            }
        }
    }

    /// For ids that are ahead of the limit: permits the caller to open one more tick, once in each tick's length of boot
    /// time over all processes. So a space is never further ahead than it was, whatever has put it there, and goes on at
    /// once if it was slower. `Err`: when to ask again. A process that is late, or a tenancy that has ended, costs other
    /// ids of the generator at most a tick's length.
    pub fn open_tick(&self, tick_us: i64, boot_us: i64) -> Result<(), i64> {
        // Relaxed: it only paces. What is issued is decided by the position.
        let opened_us = self.opened_us.load(Ordering::Relaxed);
        let next_us = opened_us.saturating_add(tick_us);
        if boot_us < next_us {
            return Err(next_us);
        }
        match self.opened_us.compare_exchange(opened_us, boot_us, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Ok(()),
            // Another process has opened one, and its ids may do for the caller.
            Err(_) => Err(boot_us),
        }
    }

    /// True if the tenancy had not ended at the time of the load. For statistics and caches; `issue` checks by itself.
    pub fn is_current(&self, handle: GeneratorHandle) -> bool {
        self.tenancy.load(Ordering::Relaxed) == handle.tenancy
    }

    /// The first free slot of the tenancy, at the time of the load. For the holder of the table's lock.
    pub fn free_slot(&self, handle: GeneratorHandle) -> u64 {
        self.position.load(Ordering::Acquire).wrapping_sub(handle.offset)
    }

    /// Advances the first free slot to `free`. Returns the one before, or `None` if it was not behind `free`. For the
    /// exclusive holder of the table's lock.
    fn skip_to(&self, handle: GeneratorHandle, free: u64) -> Option<u64> {
        // Release: an issue that loads the new position sees what was written before it, as in `issue`.
        let skip = |position: u64| {
            let behind = position.wrapping_sub(handle.offset) < free;
            behind.then(|| free.wrapping_add(handle.offset))
        };
        let before = self.position.fetch_update(Ordering::AcqRel, Ordering::Acquire, skip).ok()?;
        Some(before.wrapping_sub(handle.offset))
    }

    /// Ends the tenancy and returns where its space goes on. For the exclusive holder of the table's lock.
    fn end(&self, handle: GeneratorHandle) -> Progress {
        self.tenancy.store(handle.tenancy.wrapping_add(1), Ordering::Relaxed);
        // Release, for rule 2: a load that sees this position sees the number above. Acquire: counts every issue.
        let position = self.position.fetch_add(1, Ordering::AcqRel);
        Progress { free: position.wrapping_sub(handle.offset), opened_us: self.opened_us.load(Ordering::Relaxed) }
    }

    /// Begins the next tenancy at `from`. The position stays, and only its meaning changes (rule 1). For the exclusive
    /// holder of the table's lock, on a generator without a tenant.
    fn begin(&self, from: Progress) -> GeneratorHandle {
        self.opened_us.store(from.opened_us, Ordering::Relaxed);
        GeneratorHandle {
            tenancy: self.tenancy.load(Ordering::Relaxed),
            offset: self.position.load(Ordering::Relaxed).wrapping_sub(from.free),
        }
    }
}

#[cfg(test)]
mod tests;
