//! The ring of one tag: ranges in shared memory that every process draws from without a lock.
//!
//! Ranges lie in a circular buffer and are used in the order in which they were installed. The positions of each begin
//! where those of the one before end. The rules of [`crate::tenancy`] hold, the position being the number of values
//! drawn or discarded. One more rule makes drawing safe while the next range is installed:
//!
//! 3. A range is overwritten only when the position has passed its end. So a draw that reads a range half overwritten
//!    has loaded a position that is gone, and its compare-and-swap fails.

use super::{Draw, Remaining, RingHandle, ValueRun, value_at};
use crate::sync::{AtomicI64, AtomicU64, Ordering};
use crate::tenancy::Ended;
use std::sync::atomic::AtomicUsize;

/// A range that continues the last one becomes part of it. Those of a fleet do not continue each other: the values
/// between them are other servers'. Two are enough for a model of the order of the accesses.
const RANGES: usize = if cfg!(loom) { 2 } else { 16 };

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
    /// The range that a draw looks at first. Only a hint, so it is no atomic of the model.
    hint: AtomicUsize,
    /// The range that was installed last. Read and written under the table's lock only.
    newest: AtomicUsize,
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

/// The values of a range from a position on; or the part of them that a draw takes, which moves the position past it and so
/// discards the values before it.
#[derive(Clone, Copy)]
struct Rest {
    /// The position of the first one.
    begin: u64,
    first: i64,
    /// Above 0, but for a draw that only discards.
    count: u64,
}

impl Rest {
    fn run(&self, stride: i64) -> ValueRun {
        ValueRun { first: self.first, count: self.count, stride }
    }
}

impl Ring {
    /// Empty, without a tenant.
    #[allow(clippy::new_without_default, reason = "a ring is made in place, in shared memory")]
    pub fn new() -> Self {
        let empty = |_| Range { end: AtomicU64::new(0), from: AtomicU64::new(0), first: AtomicI64::new(0) };
        Self {
            tenancy: AtomicU64::new(0),
            position: AtomicU64::new(0),
            request_at: AtomicU64::new(REQUESTED),
            hint: AtomicUsize::new(0),
            newest: AtomicUsize::new(0),
            ranges: std::array::from_fn(empty),
        }
    }

    /// Draws up to `want` values, at least one, from the first range that has any.
    #[inline]
    pub fn draw(&self, handle: RingHandle, want: u64) -> Result<Draw, Ended> {
        self.draw_by(handle, |position| {
            let rest = self.current_at(position, handle.stride)?;
            Some(Rest { count: want.min(rest.count), ..rest })
        })
    }

    /// Draws `want` consecutive values, or none. Takes them from the first range that has as many left, and discards
    /// the values before it. If no range has, nothing is discarded, because the next refill brings a range that does.
    /// But a full ring has no room for it: then the values of the first range are discarded.
    pub fn draw_block(&self, handle: RingHandle, want: u64) -> Result<Draw, Ended> {
        loop {
            match self.draw_by(handle, |position| self.block_at(position, handle.stride, want))? {
                // Values of a full ring were discarded. A request that is due is not lost: the caller finds the ring
                // dry and requests a refill in any case, or a refill came in between.
                Draw::Drawn { run, .. } if run.count == 0 => {}
                answer => return Ok(answer),
            }
        }
    }

    /// Draws what `choose` takes at a position.
    #[inline]
    fn draw_by(&self, handle: RingHandle, choose: impl Fn(u64) -> Option<Rest>) -> Result<Draw, Ended> {
        // Acquire, here and on failure of the swap, for rule 2: the tenancy is loaded after the position.
        let mut position = self.position.load(Ordering::Acquire);
        loop {
            if self.tenancy.load(Ordering::Relaxed) != handle.tenancy {
                return Err(Ended);
            }
            let Some(taken) = choose(position) else {
                let now = self.position.load(Ordering::Acquire);
                if now == position {
                    return Ok(Draw::Dry);
                }
                // Rule 3: a range may have been overwritten while it was read.
                position = now;
                continue;
            };
            let next = taken.begin + taken.count;
            // Release, for rule 3: a process that overwrites a range has seen the position past it, and so its writes
            // come after the reads above.
            match self.position.compare_exchange_weak(position, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(Draw::Drawn { run: taken.run(handle.stride), request: self.must_request(next) }),
                Err(current) => position = current,
            }
        }
    }

    /// The rest of the range that holds a position. Valid if the position is still the same afterwards.
    #[inline]
    fn current_at(&self, position: u64, stride: i64) -> Option<Rest> {
        // The remainder tells the compiler that the index is in bounds.
        let hint = self.hint.load(Ordering::Relaxed) % RANGES;
        self.ranges[hint].rest_at(position, stride).or_else(|| self.move_hint(hint, position, stride))
    }

    /// The same from the ranges after `hint`, which was wrong or has been used up.
    #[cold]
    #[inline(never)]
    fn move_hint(&self, hint: usize, position: u64, stride: i64) -> Option<Rest> {
        let at = |index: usize| Some((index, self.ranges[index].rest_at(position, stride)?));
        let (index, rest) = (1..RANGES).find_map(|distance| at((hint + distance) % RANGES))?;
        self.hint.store(index, Ordering::Relaxed);
        Some(rest)
    }

    /// What a block of `want` values takes: see `draw_block`. It takes none of the values that it discards from a full
    /// ring. Valid if the position is still the same afterwards.
    fn block_at(&self, position: u64, stride: i64, want: u64) -> Option<Rest> {
        let long_enough = self.rests(position, stride).filter(|rest| rest.count >= want);
        if let Some(rest) = long_enough.min_by_key(|rest| rest.begin) {
            return Some(Rest { count: want, ..rest });
        }
        let is_full = self.rests(position, stride).count() == RANGES;
        let current = self.rests(position, stride).min_by_key(|rest| rest.begin).filter(|_| is_full)?;
        Some(Rest { begin: current.begin + current.count, count: 0, ..current })
    }

    /// The rests of all ranges, in no order. Valid if the position is still the same afterwards.
    fn rests(&self, position: u64, stride: i64) -> impl Iterator<Item = Rest> {
        self.ranges.iter().filter_map(move |range| range.rest(position, stride))
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
        let rests = || self.rests(position, handle.stride);
        let run = |rest: Rest| rest.run(handle.stride);
        Remaining {
            current: rests().find(|rest| rest.begin == position).map(run),
            next: rests().filter(|rest| rest.begin > position).min_by_key(|rest| rest.begin).map(run),
            count: rests().map(|rest| rest.count).sum(),
        }
    }

    /// Number of values drawn or discarded, over all tenancies.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// True if a range can be installed, whatever its first value. For the holder of the table's lock, under which
    /// draws can only make more room.
    pub fn has_room(&self) -> bool {
        self.oldest().end.load(Ordering::Relaxed) <= self.position.load(Ordering::Acquire)
    }

    /// Discards the values that are left, and counts others that calls get by another way. For the exclusive holder of the
    /// table's lock.
    pub fn pass(&self, count: u64) {
        // As a draw of all of them: rule 3 holds.
        self.position.fetch_max(self.last_range().end.load(Ordering::Relaxed), Ordering::AcqRel);
        self.position.fetch_add(count, Ordering::AcqRel);
    }

    /// Adds a range of `count` values. A refill is requested when `low_water` values are left, over all ranges. If that
    /// is `None`, no draw that succeeds requests one. For the exclusive holder of the table's lock, in the tenancy of
    /// the handle, if there is room.
    pub fn install(&self, handle: RingHandle, first: i64, count: u64, low_water: Option<u64>) {
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
            self.oldest().overwrite(begin, first, count);
            self.newest.store(self.after_newest(), Ordering::Relaxed);
            begin + count
        };
        let request_at = low_water.map_or(REQUESTED, |low_water| new_end.saturating_sub(low_water));
        self.request_at.store(request_at, Ordering::Relaxed);
    }

    /// Ends the tenancy. Returns what was left of its largest range, which no draw takes any more. For the exclusive holder of
    /// the table's lock.
    pub(super) fn end(&self, handle: RingHandle) -> Option<ValueRun> {
        self.tenancy.store(handle.tenancy.wrapping_add(1), Ordering::Relaxed);
        let end = self.last_range().end.load(Ordering::Relaxed).max(self.position.load(Ordering::Relaxed));
        // Past every range, and moved even if every value is used. Release, for rule 2: a load that sees this position
        // sees the number above. Acquire, for rule 3, and so no plain store: draws that have succeeded have read their
        // range before the next tenancy overwrites it.
        let position = self.position.swap(end + 1, Ordering::AcqRel);
        self.request_at.store(REQUESTED, Ordering::Relaxed);
        self.rests(position, handle.stride).max_by_key(|rest| rest.count).map(|rest| rest.run(handle.stride))
    }

    /// Begins the next tenancy, with nothing to draw. For the exclusive holder of the table's lock, on a ring without a
    /// tenant.
    pub(super) fn begin(&self, stride: i64) -> RingHandle {
        RingHandle { tenancy: self.tenancy.load(Ordering::Relaxed), stride }
    }

    fn last_range(&self) -> &Range {
        &self.ranges[self.newest.load(Ordering::Relaxed)]
    }

    fn after_newest(&self) -> usize {
        (self.newest.load(Ordering::Relaxed) + 1) % RANGES
    }

    /// The range that was installed first, and is overwritten next.
    fn oldest(&self) -> &Range {
        &self.ranges[self.after_newest()]
    }
}

impl Range {
    /// The values from a position on, if the range has the one there. Torn if the position has passed the end of the
    /// range since.
    #[inline]
    fn rest_at(&self, position: u64, stride: i64) -> Option<Rest> {
        // Acquire: the rest of the range was written before its end.
        let end = self.end.load(Ordering::Acquire);
        if position >= end {
            return None;
        }
        // Acquire: a draw that reads a range which has replaced its own then finds the position moved.
        let from = self.from.load(Ordering::Acquire);
        if position < from {
            return None;
        }
        let first = value_at(self.first.load(Ordering::Relaxed), position - from, stride);
        Some(Rest { begin: position, first, count: end - position })
    }

    /// The same for a range that may begin after the position.
    fn rest(&self, position: u64, stride: i64) -> Option<Rest> {
        // Relaxed: `rest_at` loads it again, and finds nothing if it has changed.
        self.rest_at(position.max(self.from.load(Ordering::Relaxed)), stride)
    }

    /// The value that would continue the range.
    fn value_at_end(&self, stride: i64) -> i64 {
        let length = self.end.load(Ordering::Relaxed) - self.from.load(Ordering::Relaxed);
        value_at(self.first.load(Ordering::Relaxed), length, stride)
    }

    fn overwrite(&self, from: u64, first: i64, count: u64) {
        // Rule 3: the position has passed the old end. Release: see `rest`.
        self.from.store(from, Ordering::Release);
        self.first.store(first, Ordering::Relaxed);
        // Release: a load that sees the end sees the range.
        self.end.store(from + count, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
