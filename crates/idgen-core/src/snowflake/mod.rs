//! The state machine of one id space: it decides the next ids.
//!
//! The ids of a space form one sequence of *slots*, `tick << sequence_bits | sequence`: every id is one slot, and later
//! slots have later ids. The whole state is one number, the first free slot. Issuing n ids advances it by at least n.
//! [`IdSpace::next`] computes the next state. `generator::Generator` keeps the state in one atomic word.

/// A bit field of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub shift: u8,
    pub bits: u8,
}

impl Span {
    /// The greatest value that fits.
    #[inline]
    pub const fn max(self) -> u64 {
        (1 << self.bits) - 1
    }

    #[inline]
    pub const fn get(self, id: u64) -> u64 {
        (id >> self.shift) & self.max()
    }

    /// The value shifted to its field. It must fit.
    #[inline]
    pub const fn put(self, value: u64) -> u64 {
        value << self.shift
    }
}

/// How time is counted: ticks of one unit since the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticks {
    /// Milliseconds of one tick, 1 to 1000.
    pub unit_ms: u32,
    /// Start of tick 0, in milliseconds since 1970. Never negative.
    pub epoch_ms: i64,
}

impl Ticks {
    /// The tick that holds an instant; `None` before the epoch.
    #[inline]
    pub fn at(self, time_ms: i64) -> Option<u64> {
        // The epoch is not negative, so only instants far before it saturate.
        let since = u64::try_from(time_ms.saturating_sub(self.epoch_ms)).ok()?;
        // Most layouts count milliseconds, and a division costs as much as the rest of an issue.
        Some(if self.unit_ms == 1 { since } else { since / u64::from(self.unit_ms) })
    }

    /// The instant at which a tick begins; `i64::MAX` if it is later than that.
    #[inline]
    pub fn start_ms(self, tick: u64) -> i64 {
        let since = tick.saturating_mul(u64::from(self.unit_ms));
        i64::try_from(since).unwrap_or(i64::MAX).saturating_add(self.epoch_ms)
    }
}

/// The ids that one server makes in one layout. Layouts with the same bits, unit and epoch have equal spaces, however
/// they are spelled, and share one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSpace {
    pub(crate) time: Span,
    pub(crate) sequence: Span,
    pub(crate) ticks: Ticks,
    pub(crate) tag_bits: u64,
    pub(crate) node_bits: u64,
}

/// The limits of an issue. All in milliseconds since 1970; the header of `clock` explains the words.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub now_ms: i64,
    /// No tick after this time is begun. Not before `now_ms`.
    pub limit_ms: i64,
    /// No id has this time or a later one.
    pub ceiling_ms: i64,
}

/// Consecutive slots that belong to one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRun {
    pub first: u64,
    /// From 1 to the number wanted.
    pub count: u64,
    /// How many of them have a time ahead of the clock.
    pub borrowed: u64,
}

/// The outcome of an issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issue {
    Issued(SlotRun),
    /// Every free slot within the limit is at the ceiling or above. Raise the ceiling above the last of these times, or
    /// at least above the first, and ask again.
    Reserve {
        first_ms: i64,
        last_ms: i64,
    },
    /// Every slot up to the limit is taken. Ask again when the limit is at this time, the start of the next tick.
    Wait {
        time_ms: i64,
    },
    /// The space is ahead of the limit: the next tick, at this time, is a later one than drawing alone gets to. Open it
    /// with `Generator::open_tick`, and ask again with this limit.
    Ahead {
        time_ms: i64,
    },
    /// Clock and limit are before the layout's epoch, and so are all earlier ids.
    BeforeEpoch,
    /// The layout has no later ids.
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
        self.ticks.start_ms(slot >> self.sequence.bits)
    }

    /// No issue within these bounds or later ones has an earlier time, `free` being the first free slot.
    pub fn earliest_ms(&self, free: u64, bounds: &Bounds) -> i64 {
        let now_tick = self.ticks.at(bounds.now_ms).unwrap_or(0);
        self.time_ms(free).max(self.ticks.start_ms(now_tick))
    }

    /// The greatest id below all later ones of the layout, `free` being the first free slot. Another worker id never
    /// issues in the tick of that slot, unless nothing has been issued in it.
    pub fn id_before(&self, free: u64) -> i64 {
        match free & self.sequence.max() {
            0 => self.time.put(free >> self.sequence.bits).wrapping_sub(1) as i64,
            _ => self.id(free - 1),
        }
    }

    /// The first slot at or after an instant: the state of a space that may have issued everything before it.
    pub fn first_slot_from(&self, time_ms: i64) -> u64 {
        let unit_ms = i64::from(self.ticks.unit_ms);
        let tick = self.ticks.at(time_ms.saturating_add(unit_ms - 1)).unwrap_or(0);
        self.first_slot_of(tick.min(self.time.max() + 1))
    }

    /// No id before the first free slot has this time or a later one. Exact to the millisecond, not to the tick: spaces
    /// with shorter ticks go on from here too.
    pub fn unused_from_ms(&self, free: u64) -> i64 {
        free.checked_sub(1).map_or(self.ticks.epoch_ms, |last| self.time_ms(last).saturating_add(1))
    }

    /// True if the spaces differ at most in worker and datacenter id.
    pub(crate) fn shares_layout_with(&self, other: &IdSpace) -> bool {
        IdSpace { node_bits: 0, ..*self } == IdSpace { node_bits: 0, ..*other }
    }

    /// A hash of the layout: equal for spaces that differ in worker and datacenter id only.
    pub(crate) fn layout_hash(&self) -> u64 {
        let bits = [self.time, self.sequence].map(|span| u64::from(span.shift) << 8 | u64::from(span.bits));
        let Ticks { unit_ms, epoch_ms } = self.ticks;
        let parts = [bits[0], bits[1], u64::from(unit_ms), epoch_ms as u64, self.tag_bits];
        parts.into_iter().fold(0, |hash, part| mix(hash ^ part))
    }

    /// Takes up to `want` (at least 1) slots, `free` being the first free one.
    ///
    /// The next slot is the later of `free` and the start of the current tick. A full tick borrows from the next one,
    /// as far as the bounds allow. If fewer slots fit than are wanted, those are issued.
    ///
    /// Inlined at each call; code that most ids do not need stays out of line. A call, and a `SlotRun` returned through
    /// memory, would take a tenth of the time of an issue.
    #[inline(always)]
    pub fn next(&self, free: u64, want: u64, bounds: &Bounds) -> Issue {
        let now_tick = match self.ticks.at(bounds.now_ms) {
            Some(tick) => tick,
            // The clock was set back far. Ids were not.
            None if free > 0 || bounds.limit_ms >= self.ticks.epoch_ms => 0,
            None => return Issue::BeforeEpoch,
        };
        if now_tick > self.time.max() {
            return Issue::Exhausted;
        }
        let opening = self.first_slot_of(now_tick);
        let first = if free > opening { free } else { opening + self.lead_in(now_tick, free) };
        let mut last = first + (want - 1);
        let ahead = self.first_slot_of(now_tick + 1);
        if last >= ahead {
            last = match self.within_limit(first, last, bounds) {
                Ok(last) => last,
                Err(issue) => return issue,
            };
        }
        if self.time_ms(last) >= bounds.ceiling_ms {
            last = match self.below_ceiling(first, last, bounds.ceiling_ms) {
                Ok(last) => last,
                Err(issue) => return issue,
            };
        }
        Issue::Issued(SlotRun { first, count: last - first + 1, borrowed: (last + 1).saturating_sub(first.max(ahead)) })
    }

    /// The last slot up to `last` that the limit allows. A tick that was begun may be used up, wherever the limit is now.
    #[inline(never)]
    fn within_limit(&self, first: u64, last: u64, bounds: &Bounds) -> Result<u64, Issue> {
        let first_tick = first >> self.sequence.bits;
        if first_tick > self.time.max() {
            return Err(Issue::Exhausted);
        }
        // The first tick that the limit does not allow.
        let end = self.ticks.at(bounds.limit_ms).map_or(0, |limit| limit + 1);
        let is_begun = first & self.sequence.max() > 0;
        if first_tick >= end && !is_begun {
            let time_ms = self.ticks.start_ms(first_tick);
            return Err(if first_tick == end { Issue::Wait { time_ms } } else { Issue::Ahead { time_ms } });
        }
        Ok(last.min(self.first_slot_of(end.max(first_tick + 1).min(self.time.max() + 1)) - 1))
    }

    /// The last slot up to `last` whose time is below the ceiling.
    #[cold]
    fn below_ceiling(&self, first: u64, last: u64, ceiling_ms: i64) -> Result<u64, Issue> {
        if self.time_ms(first) >= ceiling_ms {
            return Err(Issue::Reserve { first_ms: self.time_ms(first), last_ms: self.time_ms(last) });
        }
        Ok(last.min(self.first_slot_from(ceiling_ms) - 1))
    }

    /// The first sequence number of a new tick: a hash of the tick, in the lower half of the range, so that ids drawn
    /// slowly spread evenly over `id % n` for any n. A tick after a crowded one begins at 0, to use all of its slots. A
    /// tick counts as crowded once it reaches the upper half; at a slow rate, none does.
    #[inline(never)]
    fn lead_in(&self, tick: u64, free: u64) -> u64 {
        let half = 1 << (self.sequence.bits - 1);
        let crowded = free.wrapping_sub(1) & self.sequence.max() >= half;
        if crowded { 0 } else { mix(tick) & (half - 1) }
    }

    #[inline]
    fn first_slot_of(&self, tick: u64) -> u64 {
        tick << self.sequence.bits
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014): every bit of
/// the input affects every bit of the result.
#[inline]
fn mix(input: u64) -> u64 {
    let mut z = input.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
