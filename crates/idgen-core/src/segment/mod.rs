//! Segment ids: a ring of ranges in shared memory that every process draws from without a lock.
//!
//! Ranges are taken from a tag's row in `idgen.segment`, and installed in the tag's ring under the lock of the table of
//! rings.
//!
//! The rules of [`crate::tenancy`] hold, the position being the number of values drawn or discarded. One more rule
//! makes drawing safe while the next range is installed:
//!
//! 3. A range is overwritten only when the position has passed its end. So a draw that reads a range half overwritten
//!    has loaded a position that is gone, and its compare-and-swap fails.

use crate::sync::{AtomicI64, AtomicU64, Ordering};
use crate::tenancy::Ended;

pub mod refillers;
mod table;
pub mod tag;

pub use table::{DROPPED, RingTable, RingTenant, TagKey};

/// Two are enough: a range that continues the last one becomes part of it. A second one is needed only where values
/// were skipped.
const RANGES: usize = 2;

/// No position reaches this: a refill was requested, and the next one installs a new threshold.
const REQUESTED: u64 = u64::MAX;

/// The shared state of one tag, in cache lines of its own: see `Generator`.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Ring {
    /// Number of the tenancy that the ranges belong to. Written under the table's lock only.
    tenancy: AtomicU64,
    /// Number of values drawn or discarded since the ring was made.
    position: AtomicU64,
    /// Request a refill at this position.
    request_at: AtomicU64,
    ranges: [Range; RANGES],
}

/// The positions from `from` up to `end`, which is not included, and the value at `from`. Empty once the position has
/// passed its end.
#[derive(Debug)]
struct Range {
    end: AtomicU64,
    from: AtomicU64,
    first: AtomicI64,
}

/// A tenancy of a ring, as a backend remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingHandle {
    tenancy: u64,
    /// From one value to the next.
    stride: i64,
}

/// Values that are used together: `count` of them, each `stride` above the one before. Never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRun {
    pub first: i64,
    pub count: u64,
    pub stride: i64,
}

impl ValueRun {
    pub fn last(&self) -> i64 {
        value_at(self.first, self.count - 1, self.stride)
    }

    /// Removes the first value and returns it.
    #[inline]
    pub fn split_first(&mut self) -> i64 {
        let first = self.first;
        // Wraps only past the last value, where nothing is left.
        self.first = first.wrapping_add(self.stride);
        self.count -= 1;
        first
    }
}

/// The value `offset` strides above the first. Nothing overflows: every range ends within the values of its tag.
#[inline]
fn value_at(first: i64, offset: u64, stride: i64) -> i64 {
    first.wrapping_add((offset as i64).wrapping_mul(stride))
}

/// The outcome of a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// `request`: few values are left, and this caller has to request the refill.
    Drawn { run: ValueRun, request: bool },
    /// Too few values are left.
    Dry,
}

/// The values left to draw, for the views: the rest of the current range, and the range after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    pub current: Option<ValueRun>,
    pub next: Option<ValueRun>,
}

impl Ring {
    /// Empty, without a tenant.
    #[allow(clippy::new_without_default, reason = "a ring is made in place, in shared memory")]
    pub fn new() -> Self {
        let empty = || Range { end: AtomicU64::new(0), from: AtomicU64::new(0), first: AtomicI64::new(0) };
        Self {
            tenancy: AtomicU64::new(0),
            position: AtomicU64::new(0),
            request_at: AtomicU64::new(REQUESTED),
            ranges: [empty(), empty()],
        }
    }

    /// Draws up to `want` values, at least one.
    #[inline]
    pub fn draw(&self, handle: RingHandle, want: u64) -> Result<Draw, Ended> {
        self.draw_by(handle, |left| Some(want.min(left.count)))
    }

    /// Draws `want` consecutive values, or none. If values were skipped after the current range and too few are left in
    /// it, discards them.
    pub fn draw_block(&self, handle: RingHandle, want: u64) -> Result<Draw, Ended> {
        let mut must_request = false;
        loop {
            let draw = self.draw_by(handle, |left| match left.count >= want {
                true => Some(want),
                false => left.ends_in_a_skip.then_some(left.count),
            })?;
            match draw {
                Draw::Drawn { run, request } if run.count < want => must_request |= request,
                Draw::Drawn { run, request } => return Ok(Draw::Drawn { run, request: request || must_request }),
                // A caller that finds the ring dry requests a refill in any case.
                Draw::Dry => return Ok(Draw::Dry),
            }
        }
    }

    /// Draws the number of values that `choose` returns, from the current range.
    #[inline]
    fn draw_by(&self, handle: RingHandle, choose: impl Fn(&Left) -> Option<u64>) -> Result<Draw, Ended> {
        // Acquire, here and on failure of the swap, for rule 2: the tenancy is loaded after the position.
        let mut position = self.position.load(Ordering::Acquire);
        loop {
            if self.tenancy.load(Ordering::Relaxed) != handle.tenancy {
                return Err(Ended);
            }
            let chosen = self.left_at(position, handle.stride).and_then(|left| Some((left.first, choose(&left)?)));
            let Some((first, count)) = chosen else {
                let now = self.position.load(Ordering::Acquire);
                if now == position {
                    return Ok(Draw::Dry);
                }
                // Rule 3: the range may have been overwritten while it was read.
                position = now;
                continue;
            };
            let next = position + count;
            // Release, for rule 3: a process that overwrites the range has seen the position past it, and so its writes
            // come after the reads above.
            match self.position.compare_exchange_weak(position, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let run = ValueRun { first, count, stride: handle.stride };
                    return Ok(Draw::Drawn { run, request: self.must_request(next) });
                }
                Err(current) => position = current,
            }
        }
    }

    /// The rest of the range that holds a position. Valid if the position is still the same afterwards.
    #[inline]
    fn left_at(&self, position: u64, stride: i64) -> Option<Left> {
        for (index, range) in self.ranges.iter().enumerate() {
            // Acquire: the rest of the range was written before its end.
            let end = range.end.load(Ordering::Acquire);
            if position >= end {
                continue;
            }
            // Acquire: a draw that reads a range which has replaced its own then finds the position moved.
            let from = range.from.load(Ordering::Acquire);
            if position >= from {
                let first = value_at(range.first.load(Ordering::Relaxed), position - from, stride);
                let ends_in_a_skip = self.ranges[RANGES - 1 - index].end.load(Ordering::Relaxed) > end;
                return Some(Left { first, count: end - position, ends_in_a_skip });
            }
        }
        None
    }

    /// True if a refill is due at this position and no other caller has claimed the request.
    #[inline]
    fn must_request(&self, position: u64) -> bool {
        let request_at = self.request_at.load(Ordering::Relaxed);
        // Relaxed: the winner notifies the refill worker by other means.
        position >= request_at
            && self.request_at.compare_exchange(request_at, REQUESTED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The values left, at the time of the load. For the holder of the table's lock.
    pub fn remaining(&self, handle: RingHandle) -> Remaining {
        let position = self.position.load(Ordering::Acquire);
        let run = |left: Left| ValueRun { first: left.first, count: left.count, stride: handle.stride };
        let current = self.left_at(position, handle.stride);
        let next_position = current.as_ref().filter(|left| left.ends_in_a_skip).map(|left| position + left.count);
        let next = next_position.and_then(|position| self.left_at(position, handle.stride));
        Remaining { current: current.map(run), next: next.map(run) }
    }

    /// Number of values drawn or discarded, over all tenancies.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// True if a range can be installed, whatever its first value. For the holder of the table's lock, under which
    /// draws can only make more room.
    pub fn has_room(&self) -> bool {
        let position = self.position.load(Ordering::Acquire);
        self.ranges.iter().any(|range| range.end.load(Ordering::Relaxed) <= position)
    }

    /// Adds a range of `count` values. A refill is requested when `low_water` values are left. For the exclusive holder
    /// of the table's lock, in the tenancy of the handle, if there is room.
    pub fn install(&self, handle: RingHandle, first: i64, count: u64, low_water: u64) {
        // Acquire, for rule 3: every draw from the range that is overwritten below has finished with it.
        let position = self.position.load(Ordering::Acquire);
        let last = self.last_range();
        let end = last.end.load(Ordering::Relaxed);
        let new_end = if position <= end && last.value_at_end(handle.stride) == first {
            // Relaxed: the range itself was published before, and nothing else was written.
            last.end.store(end + count, Ordering::Relaxed);
            end + count
        } else {
            let begin = end.max(position);
            self.first_range().overwrite(begin, first, count);
            begin + count
        };
        self.request_at.store(new_end.saturating_sub(low_water), Ordering::Relaxed);
    }

    /// Ends the tenancy and discards the values that are left. For the exclusive holder of the table's lock.
    fn end(&self, handle: RingHandle) {
        self.tenancy.store(handle.tenancy.wrapping_add(1), Ordering::Relaxed);
        let end = self.last_range().end.load(Ordering::Relaxed).max(self.position.load(Ordering::Relaxed));
        // Past every range, and moved even if every value is used. Release, for rule 2: a load that sees this position
        // sees the number above.
        self.position.swap(end + 1, Ordering::AcqRel);
        self.request_at.store(REQUESTED, Ordering::Relaxed);
    }

    /// Begins the next tenancy, with nothing to draw. For the exclusive holder of the table's lock, on a ring without a
    /// tenant.
    fn begin(&self, stride: i64) -> RingHandle {
        RingHandle { tenancy: self.tenancy.load(Ordering::Relaxed), stride }
    }

    /// The range that was installed last.
    fn last_range(&self) -> &Range {
        let [a, b] = &self.ranges;
        if a.end.load(Ordering::Relaxed) >= b.end.load(Ordering::Relaxed) { a } else { b }
    }

    fn first_range(&self) -> &Range {
        let [a, b] = &self.ranges;
        if std::ptr::eq(self.last_range(), a) { b } else { a }
    }
}

/// The rest of a range, from a position on.
struct Left {
    first: i64,
    count: u64,
    /// Another range follows, so no values can be appended to this one.
    ends_in_a_skip: bool,
}

impl Range {
    /// The value that would continue the range.
    fn value_at_end(&self, stride: i64) -> i64 {
        let length = self.end.load(Ordering::Relaxed) - self.from.load(Ordering::Relaxed);
        value_at(self.first.load(Ordering::Relaxed), length, stride)
    }

    fn overwrite(&self, from: u64, first: i64, count: u64) {
        // Rule 3: the position has passed the old end. Release: see `left_at`.
        self.from.store(from, Ordering::Release);
        self.first.store(first, Ordering::Relaxed);
        // Release: a load that sees the end sees the range.
        self.end.store(from + count, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
