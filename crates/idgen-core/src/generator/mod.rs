//! The shared word of one id space, and the table that gives generators to id spaces.
//!
//! Issuing takes no lock. The rules of [`crate::tenancy`] make that safe although a generator may be given to another
//! space at any moment. Its position is the first free slot plus an offset of the tenancy.

use crate::snowflake::{Bounds, IdSpace, Issue};
use crate::sync::{AtomicU64, Ordering};
use crate::tenancy::Ended;

pub mod settled;
mod table;

pub use table::{GeneratorTable, GeneratorTenant};

/// One word that all processes issue from. It has a pair of cache lines of its own: processors prefetch the other line
/// of a pair, and would take it from the core that issues from it.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Generator {
    /// Number of the tenancy that the position belongs to. Written under the table's lock only.
    tenancy: AtomicU64,
    /// First free slot plus the tenancy's offset, modulo 2^64.
    position: AtomicU64,
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
        Self { tenancy: AtomicU64::new(0), position: AtomicU64::new(0) }
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

    /// Ends the tenancy and returns its first free slot. For the exclusive holder of the table's lock.
    fn end(&self, handle: GeneratorHandle) -> u64 {
        self.tenancy.store(handle.tenancy.wrapping_add(1), Ordering::Relaxed);
        // Release, for rule 2: a load that sees this position sees the number above. Acquire: counts every issue.
        let position = self.position.fetch_add(1, Ordering::AcqRel);
        position.wrapping_sub(handle.offset)
    }

    /// Begins the next tenancy with `free` as its first free slot. The position stays, and only its meaning changes
    /// (rule 1). For the exclusive holder of the table's lock, on a generator without a tenant.
    fn begin(&self, free: u64) -> GeneratorHandle {
        GeneratorHandle {
            tenancy: self.tenancy.load(Ordering::Relaxed),
            offset: self.position.load(Ordering::Relaxed).wrapping_sub(free),
        }
    }
}

#[cfg(test)]
mod tests;
