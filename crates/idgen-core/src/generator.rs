//! The shared word of one id space, and what a backend remembers of it.
//!
//! A table of generators is fixed in size while layouts are any text, so a generator may be taken from a space that is
//! not in use and given to another. A backend that issues without a lock must then notice. It does by two rules:
//!
//! 1. A *position* never comes back. The word counts slots from an offset of its own for each tenancy, and goes on
//!    rising from tenancy to tenancy; so a compare-and-swap that succeeds proves that nothing happened since its load.
//! 2. Whoever ends a tenancy first writes the new tenancy number and then moves the position. Whoever issues first
//!    loads the position and then the tenancy number. So either the old number was still valid at the load, and the
//!    swap decides; or the moved position was seen, and then the new number is seen too.
//!
//! Together: an issue under an ended tenancy never succeeds, and an issue that succeeds is counted in the position
//! that the end of the tenancy reads.

use crate::snowflake::{Answer, Bounds, IdSpace};
use crate::sync::{AtomicU64, Ordering};

/// One word that all processes issue from, in cache lines of its own: a pair of them, because processors fetch the other
/// line of a pair along, and would take it from the core that is issuing from the neighbour.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Generator {
    /// Which tenancy the position belongs to. Written under the table's lock only.
    tenancy: AtomicU64,
    /// First free slot plus the tenancy's offset, modulo 2^64.
    position: AtomicU64,
}

/// A tenancy as a backend remembers it. Stays harmless for ever: once the tenancy has ended, issuing by it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    tenancy: u64,
    offset: u64,
}

/// The tenancy has ended: attach again.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended;

impl Generator {
    /// As zeroed memory would be; no space lives here yet.
    #[allow(clippy::new_without_default, reason = "a generator is made in place, in shared memory")]
    pub fn new() -> Self {
        Self { tenancy: AtomicU64::new(0), position: AtomicU64::new(0) }
    }

    /// Takes up to `want` slots of `space`, the space of the tenancy.
    #[inline]
    pub fn issue(&self, handle: Handle, space: &IdSpace, want: u64, bounds: &Bounds) -> Result<Answer, Ended> {
        // Acquire, here and on failure of the swap: rule 2, the tenancy is loaded after the position.
        let mut position = self.position.load(Ordering::Acquire);
        loop {
            if self.tenancy.load(Ordering::Relaxed) != handle.tenancy {
                return Err(Ended);
            }
            let answer = space.next(position.wrapping_sub(handle.offset), want, bounds);
            let Answer::Issued(run) = answer else {
                return Ok(answer);
            };
            let next = (run.first + run.count).wrapping_add(handle.offset);
            // Release keeps the chain from the end of a tenancy to later loads; the ids themselves carry no data.
            match self.position.compare_exchange_weak(position, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(answer),
                Err(current) => position = current,
            }
        }
    }

    /// Has the tenancy not ended yet? A look, for statistics and caches; an issue makes sure by itself.
    pub fn is_current(&self, handle: Handle) -> bool {
        self.tenancy.load(Ordering::Relaxed) == handle.tenancy
    }

    /// The first free slot of the tenancy, as of now. For the holder of the table's lock.
    pub fn free_slot(&self, handle: Handle) -> u64 {
        self.position.load(Ordering::Acquire).wrapping_sub(handle.offset)
    }

    /// Makes `free` the first free slot, unless a later one is. Returns the one that it was. For the holder of the table's
    /// lock, exclusively.
    pub(crate) fn skip_to(&self, handle: Handle, free: u64) -> Option<u64> {
        // Release: an issue that finds the new position finds what was written before it, as in `issue`.
        let skip = |position: u64| {
            let behind = position.wrapping_sub(handle.offset) < free;
            behind.then(|| free.wrapping_add(handle.offset))
        };
        let before = self.position.fetch_update(Ordering::AcqRel, Ordering::Acquire, skip).ok()?;
        Some(before.wrapping_sub(handle.offset))
    }

    /// Ends the tenancy and returns its first free slot. For the holder of the table's lock, exclusively.
    pub(crate) fn end(&self, handle: Handle) -> u64 {
        self.tenancy.store(handle.tenancy.wrapping_add(1), Ordering::Relaxed);
        // Release: rule 2, whoever sees this position sees the number above. Acquire: counts all that was issued.
        let position = self.position.fetch_add(1, Ordering::AcqRel);
        position.wrapping_sub(handle.offset)
    }

    /// Begins the tenancy that follows, with `free` as its first free slot. For the holder of the table's lock,
    /// exclusively, on a generator without a tenant. The position stays: only its meaning changes (rule 1).
    pub(crate) fn begin(&self, free: u64) -> Handle {
        Handle {
            tenancy: self.tenancy.load(Ordering::Relaxed),
            offset: self.position.load(Ordering::Relaxed).wrapping_sub(free),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Generator;
    use crate::clock::{EffectiveClock, Mark};
    use crate::segment::Ring;

    /// Two neighbours of an array share no pair of cache lines, which processors fetch together.
    #[test]
    fn hot_words_have_a_pair_of_cache_lines_of_their_own() {
        for size in [size_of::<Generator>(), size_of::<EffectiveClock>(), size_of::<Mark>(), size_of::<Ring>()] {
            assert_eq!(size, 128);
        }
        for align in [align_of::<Generator>(), align_of::<EffectiveClock>(), align_of::<Mark>(), align_of::<Ring>()] {
            assert_eq!(align, 128);
        }
    }
}
