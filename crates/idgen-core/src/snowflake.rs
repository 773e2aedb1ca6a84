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
    /// How far an id's time may be ahead of `now_ms`.
    pub drift_ms: i64,
    /// No id has this time or a later one, whatever the drift: what is durably promised ends here.
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
    /// The mark is in the way: move it past this time, then ask again.
    Reserve {
        time_ms: i64,
    },
    /// Every slot within the drift is taken: ask again at this time.
    Wait {
        until_ms: i64,
    },
    /// The clock is before the layout's epoch.
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

    /// Takes up to `want` (at least 1) slots, `free` being the first that is free.
    ///
    /// The next slot is the later of `free` and the start of the current tick; a full tick borrows the next one, as
    /// far as the bounds let it. What fits is given, also when it is less than was wanted.
    #[inline]
    pub fn next(&self, free: u64, want: u64, bounds: &Bounds) -> Answer {
        let Some(now_tick) = tick_at(self.epoch_ms, self.unit_ms, bounds.now_ms) else {
            return Answer::BeforeEpoch;
        };
        if now_tick > self.time.max() {
            return Answer::Exhausted;
        }
        let opening = self.opening(now_tick);
        let first = if free > opening { free } else { opening + self.lead_in(now_tick, free) };
        let mut last = first + (want - 1);
        let ahead = self.opening(now_tick + 1);
        if last >= ahead {
            last = match self.within_drift(first, last, bounds) {
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

    /// The last slot up to `last` that the drift allows.
    fn within_drift(&self, first: u64, last: u64, bounds: &Bounds) -> Result<u64, Answer> {
        let first_tick = first >> self.sequence.bits;
        if first_tick > self.time.max() {
            return Err(Answer::Exhausted);
        }
        let horizon_ms = bounds.now_ms.saturating_add(bounds.drift_ms);
        // The horizon is not before now, and now is not before the epoch.
        let horizon = tick_at(self.epoch_ms, self.unit_ms, horizon_ms).unwrap_or(0);
        if first_tick > horizon {
            return Err(Answer::Wait { until_ms: self.tick_start_ms(first_tick) - bounds.drift_ms });
        }
        Ok(last.min(self.opening(horizon.min(self.time.max()) + 1) - 1))
    }

    /// The last slot up to `last` whose time is before the mark.
    fn below_mark(&self, first: u64, last: u64, mark_ms: i64) -> Result<u64, Answer> {
        if self.time_ms(first) >= mark_ms {
            return Err(Answer::Reserve { time_ms: self.time_ms(last) });
        }
        Ok(last.min(self.first_slot_from(mark_ms) - 1))
    }

    /// Where in a fresh tick the sequence begins: at a hash of the tick, in the lower half of the range, so that ids
    /// drawn slowly spread evenly over `id % n` for any n. A tick that follows a crowded one begins at 0 and gives all
    /// it has. A tick that reached the upper half counts as crowded; drawn slowly, none does.
    #[inline]
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
/// of the tick reaches every bit of the result.
#[inline]
fn mix(tick: u64) -> u64 {
    let mut z = tick.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
