//! Which ids come next: the state machine of one id space.
//!
//! The ids of a space form one line of *slots*, `tick << sequence_bits | sequence`: every id is one slot, and later
//! slots have later ids. The whole state is one number, the first slot that is still free; issuing n ids moves it on
//! by at least n. This module says to where; [`crate::generator`] does it atomically.

use crate::layout::{Span, tick_at, tick_start_ms};

/// The ids one server makes in one layout. Equal spaces issue from one state, however their layouts were spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSpace {
    pub(crate) time: Span,
    pub(crate) sequence: Span,
    pub(crate) unit_ms: u32,
    pub(crate) epoch_ms: i64,
    pub(crate) tag_bits: u64,
    pub(crate) node_bits: u64,
}

/// What an issue may not pass. All in milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub now_ms: i64,
    /// No id has a later time than this. Not before `now_ms`.
    pub limit_ms: i64,
    /// No id has this time or a later one: what is durably promised ends here.
    pub mark_ms: i64,
}

/// A run of slots that belongs to one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub first: u64,
    /// At least 1, at most what was wanted.
    pub count: u64,
    /// How many of them have a time ahead of the clock.
    pub borrowed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Issued(Run),
    /// The mark is in the way of ids with these times: move it past the last one, or at least the first, then ask again.
    Reserve {
        first_ms: i64,
        last_ms: i64,
    },
    /// Every slot up to the limit is taken: ask again when the limit is this time.
    Wait {
        time_ms: i64,
    },
    /// Clock and limit are before the layout's epoch.
    BeforeEpoch,
    /// The time bits have come to their end.
    Exhausted,
}

impl IdSpace {
    /// The id of a slot.
    #[inline]
    pub fn id(&self, slot: u64) -> i64 {
        let (tick, sequence) = (slot >> self.sequence.bits, slot & self.sequence.max());
        (self.time.put(tick) | self.sequence.put(sequence) | self.tag_bits | self.node_bits) as i64
    }

    /// Start of a slot's tick, in milliseconds since 1970.
    #[inline]
    pub fn time_ms(&self, slot: u64) -> i64 {
        self.tick_start_ms(slot >> self.sequence.bits)
    }

    /// Start of tick 0, in milliseconds since 1970.
    pub fn epoch_ms(&self) -> i64 {
        self.epoch_ms
    }

    /// The first instant without ids, in milliseconds since 1970; `i64::MAX` when it is beyond that.
    pub fn ends_at_ms(&self) -> i64 {
        self.tick_start_ms(self.time.max() + 1)
    }

    /// The first slot at or after an instant: the state of a space that may have issued everything before it.
    pub fn first_slot_from(&self, time_ms: i64) -> u64 {
        let unit_ms = i64::from(self.unit_ms);
        let tick = tick_at(self.epoch_ms, self.unit_ms, time_ms.saturating_add(unit_ms - 1)).unwrap_or(0);
        self.opening(tick.min(self.time.max() + 1))
    }

    /// The first instant at which no tick has anything issued, given the first free slot.
    pub fn settled_ms(&self, free: u64) -> i64 {
        self.tick_start_ms(free.div_ceil(self.sequence.max() + 1))
    }

    /// Do both spaces belong to one layout, made by servers of different numbers?
    pub fn same_layout(&self, other: &IdSpace) -> bool {
        IdSpace { node_bits: 0, ..*self } == IdSpace { node_bits: 0, ..*other }
    }

    /// A number that is the same for spaces of one layout, and seldom for others.
    pub(crate) fn layout_hash(&self) -> u64 {
        let bits = [self.time, self.sequence].map(|span| u64::from(span.shift) << 8 | u64::from(span.bits));
        let parts = [bits[0], bits[1], u64::from(self.unit_ms), self.epoch_ms as u64, self.tag_bits];
        parts.into_iter().fold(0, |hash, part| mix(hash ^ part))
    }

    /// Takes up to `want` (at least 1) slots, `free` being the first that is free.
    ///
    /// The next slot is the later of `free` and the start of the current tick; a full tick borrows the next one, as
    /// far as the bounds allow. What fits is given, also when it is less than was wanted.
    ///
    /// Inlined where it is called, and what is not needed for most ids is not: a call and a `Run` through memory would
    /// be a tenth of an issue.
    #[inline(always)]
    pub fn next(&self, free: u64, want: u64, bounds: &Bounds) -> Answer {
        let now_tick = match tick_at(self.epoch_ms, self.unit_ms, bounds.now_ms) {
            Some(tick) => tick,
            // Far set back; the limit knows better, and ids go on up to it.
            None if bounds.limit_ms >= self.epoch_ms => 0,
            None => return Answer::BeforeEpoch,
        };
        if now_tick > self.time.max() {
            return Answer::Exhausted;
        }
        let opening = self.opening(now_tick);
        let first = if free > opening { free } else { opening + self.lead_in(now_tick, free) };
        let mut last = first + (want - 1);
        let ahead = self.opening(now_tick + 1);
        if last >= ahead {
            last = match self.within_limit(first, last, bounds) {
                Ok(last) => last,
                Err(answer) => return answer,
            };
        }
        if self.time_ms(last) >= bounds.mark_ms {
            last = match self.below_mark(first, last, bounds.mark_ms) {
                Ok(last) => last,
                Err(answer) => return answer,
            };
        }
        Answer::Issued(Run { first, count: last - first + 1, borrowed: (last + 1).saturating_sub(first.max(ahead)) })
    }

    /// The last slot up to `last` that the limit allows.
    #[inline(never)]
    fn within_limit(&self, first: u64, last: u64, bounds: &Bounds) -> Result<u64, Answer> {
        let first_tick = first >> self.sequence.bits;
        if first_tick > self.time.max() {
            return Err(Answer::Exhausted);
        }
        // The limit is not before the epoch: see `next`.
        let limit = tick_at(self.epoch_ms, self.unit_ms, bounds.limit_ms).unwrap_or(0);
        if first_tick > limit {
            return Err(Answer::Wait { time_ms: self.tick_start_ms(first_tick) });
        }
        Ok(last.min(self.opening(limit.min(self.time.max()) + 1) - 1))
    }

    /// The last slot up to `last` whose time is before the mark.
    #[cold]
    fn below_mark(&self, first: u64, last: u64, mark_ms: i64) -> Result<u64, Answer> {
        if self.time_ms(first) >= mark_ms {
            return Err(Answer::Reserve { first_ms: self.time_ms(first), last_ms: self.time_ms(last) });
        }
        Ok(last.min(self.first_slot_from(mark_ms) - 1))
    }

    /// Where in a fresh tick the sequence begins: at a hash of the tick, in the lower half of the range, so that ids
    /// drawn slowly spread evenly over `id % n` for any n. A tick that follows a crowded one begins at 0 and gives all
    /// it has. A tick that reached the upper half counts as crowded; drawn slowly, none does.
    #[inline(never)]
    fn lead_in(&self, tick: u64, free: u64) -> u64 {
        let half = 1 << (self.sequence.bits - 1);
        let crowded = free.wrapping_sub(1) & self.sequence.max() >= half;
        if crowded { 0 } else { mix(tick) & (half - 1) }
    }

    /// The first slot of a tick.
    #[inline]
    fn opening(&self, tick: u64) -> u64 {
        tick << self.sequence.bits
    }

    #[inline]
    fn tick_start_ms(&self, tick: u64) -> i64 {
        tick_start_ms(self.epoch_ms, self.unit_ms, tick)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): every bit
/// of the number reaches every bit of the result.
#[inline]
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
