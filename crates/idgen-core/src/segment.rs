//! Segment ids: a ring of ranges in shared memory that every process draws from without a lock.
//!
//! Ranges come from a row of the allocation table, installed by whoever holds the table's lock; values are drawn by
//! anybody. As in a generator, a *position* counts what was drawn, and never comes back: not with the next range, and
//! not with the next tag that lives in the ring. Three rules follow, and all of the correctness rests on them:
//!
//! 1. A compare-and-swap of the position that succeeds proves that nothing happened since its load.
//! 2. A range is overwritten only when the position has passed its end. So whoever reads a range half overwritten has
//!    loaded a position that is gone, and its swap fails.
//! 3. Whoever ends a tenancy first writes the new tenancy number and then moves the position past every range. Whoever
//!    draws loads the position first. So a draw under an ended tenancy sees the new number, or its swap fails.

use crate::sync::{AtomicI64, AtomicU64, Ordering};

pub mod allocation;
pub mod definition;
pub mod refillers;
pub mod step;
pub mod table;

/// Two are enough: a range that continues the last one is made part of it, so a second is needed only where values
/// were skipped.
const RANGES: usize = 2;

/// No position reaches this: no refill is to be asked for, because one is being made.
const ASKED: u64 = u64::MAX;

/// The shared state of one tag, in cache lines of its own: see `Generator`.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Ring {
    /// Which tenancy the ranges belong to. Written under the table's lock only.
    tenancy: AtomicU64,
    /// Number of values drawn or discarded since the ring was made.
    position: AtomicU64,
    /// A refill is to be asked for when the position gets here.
    ask_from: AtomicU64,
    ranges: [Range; RANGES],
}

/// The positions from `from` up to and without `end`, and the value at `from`. Empty when the position is past it.
#[derive(Debug)]
struct Range {
    end: AtomicU64,
    from: AtomicU64,
    first: AtomicI64,
}

/// A tenancy as a backend remembers it. Stays harmless for ever: once the tenancy has ended, drawing by it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    tenancy: u64,
    /// From one value to the next.
    stride: i64,
}

/// The tenancy has ended: attach again.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended;

/// Values that were drawn together: `count` of them, each by `stride` above the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: i64,
    pub count: u64,
    pub stride: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `ask`: the ring runs low, and it is this caller who asks for a refill.
    Drawn { run: Run, ask: bool },
    /// Too little is left for what was wanted.
    Dry,
}

/// What is left to draw, to show it: the rest of the range in use, and the range after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    pub current: Option<Run>,
    pub next: Option<Run>,
}

impl Run {
    /// The last value. A run is never empty.
    pub fn last(&self) -> i64 {
        value_at(self.first, self.count - 1, self.stride)
    }

    /// Takes the first value off.
    #[inline]
    pub fn split_first(&mut self) -> i64 {
        let first = self.first;
        // Wraps only past the last value, where nothing is left.
        self.first = first.wrapping_add(self.stride);
        self.count -= 1;
        first
    }
}

/// The value so many strides above the first. It is in a range, and every range ends within the numbers of its tag.
#[inline]
fn value_at(first: i64, offset: u64, stride: i64) -> i64 {
    first.wrapping_add((offset as i64).wrapping_mul(stride))
}

impl Ring {
    /// Empty; no tag lives here yet.
    #[allow(clippy::new_without_default, reason = "a ring is made in place, in shared memory")]
    pub fn new() -> Self {
        let empty = || Range { end: AtomicU64::new(0), from: AtomicU64::new(0), first: AtomicI64::new(0) };
        Self {
            tenancy: AtomicU64::new(0),
            position: AtomicU64::new(0),
            ask_from: AtomicU64::new(ASKED),
            ranges: [empty(), empty()],
        }
    }

    /// Draws up to `want` values, at least one.
    #[inline]
    pub fn draw(&self, handle: Handle, want: u64) -> Result<Answer, Ended> {
        self.draw_by(handle, |left| Some(want.min(left.count)))
    }

    /// Draws `want` values that follow each other, or none. Where they cannot, because values were skipped after the
    /// range in use, the rest of that range is discarded.
    pub fn draw_block(&self, handle: Handle, want: u64) -> Result<Answer, Ended> {
        let mut asked = false;
        loop {
            let answer = self.draw_by(handle, |left| match left.count >= want {
                true => Some(want),
                false => left.ends_in_a_skip.then_some(left.count),
            })?;
            match answer {
                Answer::Drawn { run, ask } if run.count < want => asked |= ask,
                Answer::Drawn { run, ask } => return Ok(Answer::Drawn { run, ask: ask || asked }),
                // Whoever finds it dry asks in any case.
                Answer::Dry => return Ok(Answer::Dry),
            }
        }
    }

    /// Draws as many values as `choose` says of the range in use.
    #[inline]
    fn draw_by(&self, handle: Handle, choose: impl Fn(&Left) -> Option<u64>) -> Result<Answer, Ended> {
        // Acquire, here and on failure of the swap: rule 3, the tenancy is loaded after the position.
        let mut position = self.position.load(Ordering::Acquire);
        loop {
            if self.tenancy.load(Ordering::Relaxed) != handle.tenancy {
                return Err(Ended);
            }
            let chosen = self.left_at(position, handle.stride).and_then(|left| Some((left.first, choose(&left)?)));
            let Some((first, count)) = chosen else {
                let now = self.position.load(Ordering::Acquire);
                if now == position {
                    return Ok(Answer::Dry);
                }
                // Rule 2: the look may have been at a range being overwritten.
                position = now;
                continue;
            };
            let next = position + count;
            // Release: whoever overwrites the range has seen the position past it, and by that comes after the look
            // above. Rule 2.
            match self.position.compare_exchange_weak(position, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let run = Run { first, count, stride: handle.stride };
                    return Ok(Answer::Drawn { run, ask: self.is_mine_to_ask(next) });
                }
                Err(current) => position = current,
            }
        }
    }

    /// What is left of the range that holds a position. Right if the position is still the same afterwards.
    #[inline]
    fn left_at(&self, position: u64, stride: i64) -> Option<Left> {
        for (index, range) in self.ranges.iter().enumerate() {
            // Acquire: the rest of the range was written before its end.
            let end = range.end.load(Ordering::Acquire);
            if position >= end {
                continue;
            }
            // Acquire: whoever meets a range that took the place of his own then finds the position moved.
            let from = range.from.load(Ordering::Acquire);
            if position >= from {
                let first = value_at(range.first.load(Ordering::Relaxed), position - from, stride);
                let ends_in_a_skip = self.ranges[RANGES - 1 - index].end.load(Ordering::Relaxed) > end;
                return Some(Left { first, count: end - position, ends_in_a_skip });
            }
        }
        None
    }

    /// Is a refill due at this position, and has nobody asked for it yet?
    #[inline]
    fn is_mine_to_ask(&self, position: u64) -> bool {
        let ask_from = self.ask_from.load(Ordering::Relaxed);
        // Relaxed: whoever wins tells the refill worker by other means.
        position >= ask_from
            && self.ask_from.compare_exchange(ask_from, ASKED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Has the tenancy not ended yet? A look, for caches; a draw makes sure by itself.
    pub fn is_current(&self, handle: Handle) -> bool {
        self.tenancy.load(Ordering::Relaxed) == handle.tenancy
    }

    /// What is left, as of now. For the holder of the table's lock.
    pub fn rest(&self, handle: Handle) -> Rest {
        let position = self.position.load(Ordering::Acquire);
        let run = |left: Left| Run { first: left.first, count: left.count, stride: handle.stride };
        let current = self.left_at(position, handle.stride);
        let next_position = current.as_ref().filter(|left| left.ends_in_a_skip).map(|left| position + left.count);
        let next = next_position.and_then(|position| self.left_at(position, handle.stride));
        Rest { current: current.map(run), next: next.map(run) }
    }

    /// How many values were drawn or discarded, over all tenancies.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// Can a range be installed, wherever it begins? For the holder of the table's lock: draws only make room.
    pub fn has_room(&self) -> bool {
        let position = self.position.load(Ordering::Acquire);
        self.ranges.iter().any(|range| range.end.load(Ordering::Relaxed) <= position)
    }

    /// Adds a range of `count` values behind what is there. A refill is to be asked for when `low_water` values are
    /// left. For the holder of the table's lock, exclusively, in the tenancy of the handle, while there is room.
    pub fn install(&self, handle: Handle, first: i64, count: u64, low_water: u64) {
        // Acquire: rule 2, what is overwritten below has been left by everybody who drew from it.
        let position = self.position.load(Ordering::Acquire);
        let last = self.last_range();
        let end = last.end.load(Ordering::Relaxed);
        let new_end = if position <= end && last.value_at_end(handle.stride) == first {
            // Release is not needed for what was there before, and nothing else was written.
            last.end.store(end + count, Ordering::Relaxed);
            end + count
        } else {
            let begin = end.max(position);
            self.first_range().overwrite(begin, first, count);
            begin + count
        };
        self.ask_from.store(new_end.saturating_sub(low_water), Ordering::Relaxed);
    }

    /// Ends the tenancy: what is left of its values is discarded. For the holder of the table's lock, exclusively.
    pub(crate) fn end(&self, handle: Handle) {
        self.tenancy.store(handle.tenancy.wrapping_add(1), Ordering::Relaxed);
        let end = self.last_range().end.load(Ordering::Relaxed).max(self.position.load(Ordering::Relaxed));
        // Past every range, and moved even if all were used up. Release: rule 3, whoever sees this position sees the
        // number above.
        self.position.swap(end + 1, Ordering::AcqRel);
        self.ask_from.store(ASKED, Ordering::Relaxed);
    }

    /// Begins the tenancy that follows, with nothing to draw. For the holder of the table's lock, exclusively, on a
    /// ring without a tenant.
    pub(crate) fn begin(&self, stride: i64) -> Handle {
        Handle { tenancy: self.tenancy.load(Ordering::Relaxed), stride }
    }

    /// The range that was installed last, and the one before it.
    fn last_range(&self) -> &Range {
        let [a, b] = &self.ranges;
        if a.end.load(Ordering::Relaxed) >= b.end.load(Ordering::Relaxed) { a } else { b }
    }

    fn first_range(&self) -> &Range {
        let [a, b] = &self.ranges;
        if std::ptr::eq(self.last_range(), a) { b } else { a }
    }
}

/// What is left of a range from a position on.
struct Left {
    first: i64,
    count: u64,
    /// Another range follows, so this one cannot be continued any more.
    ends_in_a_skip: bool,
}

impl Range {
    /// The value that would continue the range.
    fn value_at_end(&self, stride: i64) -> i64 {
        let length = self.end.load(Ordering::Relaxed) - self.from.load(Ordering::Relaxed);
        value_at(self.first.load(Ordering::Relaxed), length, stride)
    }

    fn overwrite(&self, from: u64, first: i64, count: u64) {
        // The range is in nobody's way: its old end is behind the position. Rule 2. Release: see `left_at`.
        self.from.store(from, Ordering::Release);
        self.first.store(first, Ordering::Relaxed);
        // Release: whoever sees the end sees the range.
        self.end.store(from + count, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
