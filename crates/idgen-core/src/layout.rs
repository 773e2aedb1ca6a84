//! A layout: which bits of an id mean what, in which unit of time, since when.
//!
//! A layout is a value and not an object: its text stands in a column's DEFAULT, so the table's own definition says
//! how its ids decode. Two texts with the same bits, unit and epoch are the same layout.

use crate::error::{IdError, NodeError};
use crate::snowflake::IdSpace;

mod preset;
mod spec;

pub use preset::PRESETS;
pub use spec::{time_text, time_text_us};

/// A run of bits in an id.
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

    /// The value at its place; the caller has checked that it fits.
    #[inline]
    pub const fn put(self, value: u64) -> u64 {
        value << self.shift
    }
}

/// A field that holds the same value in every id: what the id belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    pub span: Span,
    pub value: u32,
}

/// Which server makes the ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub datacenter: u32,
    pub worker: u32,
}

/// Bits, unit and epoch. Made by [`Layout::parse`] only, so every layout keeps the rules written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    time: Span,
    datacenter: Option<Span>,
    worker: Option<Span>,
    tag: Option<Tag>,
    sequence: Span,
    /// Milliseconds of one tick, 1 to 1000.
    unit_ms: u32,
    /// Start of tick 0, in milliseconds since 1970.
    epoch_ms: i64,
}

/// An id taken apart. A field that the layout does not have is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Start of the id's tick, in milliseconds since 1970; `i64::MAX` when it is beyond that.
    pub time_ms: i64,
    pub datacenter: Option<u32>,
    pub worker: Option<u32>,
    pub tag: Option<u32>,
    pub sequence: u64,
}

impl Layout {
    /// Bits used in all, time included: at most 63, so that an id is never negative.
    pub fn bits(&self) -> u32 {
        u32::from(self.time.shift) + u32::from(self.time.bits)
    }

    pub fn unit_ms(&self) -> u32 {
        self.unit_ms
    }

    pub fn epoch_ms(&self) -> i64 {
        self.epoch_ms
    }

    /// How many servers can be told apart.
    pub fn workers(&self) -> u64 {
        let bits = |span: Option<Span>| span.map_or(0, |s| u32::from(s.bits));
        1 << (bits(self.worker) + bits(self.datacenter))
    }

    /// Ids that one server can sustain, a second.
    pub fn ids_per_second(&self) -> u64 {
        (self.sequence.max() + 1) * 1000 / u64::from(self.unit_ms)
    }

    /// The first instant without ids, in milliseconds since 1970; `i64::MAX` when it is beyond that.
    pub fn ends_at_ms(&self) -> i64 {
        self.tick_start_ms(self.time.max() + 1)
    }

    /// Is the end less than a year of 365 days away, or past?
    pub fn ends_within_a_year(&self, now_ms: i64) -> bool {
        self.ends_at_ms().saturating_sub(now_ms) < 365 * 86_400_000
    }

    /// The ids one server makes in this layout. Its numbers count where the layout has the field.
    pub fn space(&self, node: Node) -> Result<IdSpace, NodeError> {
        let node = Node {
            datacenter: self.datacenter.map_or(0, |_| node.datacenter),
            worker: self.worker.map_or(0, |_| node.worker),
        };
        Ok(IdSpace {
            time: self.time,
            sequence: self.sequence,
            unit_ms: self.unit_ms,
            epoch_ms: self.epoch_ms,
            tag_bits: self.tag_bits(),
            node_bits: self.node_bits(node)?,
        })
    }

    /// Takes an id apart.
    pub fn unpack(&self, id: i64) -> Result<Parts, IdError> {
        let bits = self.bits();
        let raw = u64::try_from(id).map_err(|_| IdError::Negative)?;
        if raw >> bits != 0 {
            return Err(IdError::TooManyBits { bits });
        }
        // A field of at most 31 bits fits.
        let field = |span: Option<Span>| span.map(|s| s.get(raw) as u32);
        Ok(Parts {
            time_ms: self.tick_start_ms(self.time.get(raw)),
            datacenter: field(self.datacenter),
            worker: field(self.worker),
            tag: field(self.tag.map(|tag| tag.span)),
            sequence: self.sequence.get(raw),
        })
    }

    /// Puts an id together. The layout's tag is filled in.
    pub fn pack(&self, time_ms: i64, node: Node, sequence: u64) -> Result<i64, IdError> {
        let tick = self.tick_at(time_ms).ok_or(IdError::BeforeEpoch)?;
        if tick > self.time.max() {
            return Err(IdError::AfterEnd);
        }
        if sequence > self.sequence.max() {
            return Err(IdError::Sequence { max: self.sequence.max() });
        }
        let node_bits = self.node_bits(node).map_err(IdError::Node)?;
        let id = self.time.put(tick) | self.sequence.put(sequence) | self.tag_bits() | node_bits;
        Ok(id as i64)
    }

    /// The least id of the tick that holds this time, whatever its other fields; the first or the last tick for a
    /// time outside of the layout.
    pub fn floor(&self, time_ms: i64) -> i64 {
        let tick = self.tick_at(time_ms).unwrap_or(0).min(self.time.max());
        self.time.put(tick) as i64
    }

    /// The greatest id of that tick.
    pub fn ceil(&self, time_ms: i64) -> i64 {
        self.floor(time_ms) | ((1 << self.time.shift) - 1)
    }

    fn tick_at(&self, time_ms: i64) -> Option<u64> {
        tick_at(self.epoch_ms, self.unit_ms, time_ms)
    }

    fn tick_start_ms(&self, tick: u64) -> i64 {
        tick_start_ms(self.epoch_ms, self.unit_ms, tick)
    }

    fn tag_bits(&self) -> u64 {
        self.tag.map_or(0, |tag| tag.span.put(u64::from(tag.value)))
    }

    fn node_bits(&self, node: Node) -> Result<u64, NodeError> {
        let place = |field, span: Option<Span>, value: u32| {
            // A layout without the field tells no servers apart: only number 0 can be in it.
            let max = span.map_or(0, Span::max);
            if u64::from(value) > max {
                return Err(NodeError { field, value, max });
            }
            Ok(span.map_or(0, |s| s.put(u64::from(value))))
        };
        Ok(place("datacenter", self.datacenter, node.datacenter)? | place("worker", self.worker, node.worker)?)
    }
}

/// The tick that holds an instant; `None` before the epoch.
#[inline]
pub(crate) fn tick_at(epoch_ms: i64, unit_ms: u32, time_ms: i64) -> Option<u64> {
    // An epoch is never negative, so the difference overflows only far below it.
    let since = u64::try_from(time_ms.saturating_sub(epoch_ms)).ok()?;
    // Most layouts count milliseconds, and a division costs as much as the rest of an issue.
    Some(if unit_ms == 1 { since } else { since / u64::from(unit_ms) })
}

/// When a tick begins; `i64::MAX` for ticks beyond what milliseconds can say.
#[inline]
pub(crate) fn tick_start_ms(epoch_ms: i64, unit_ms: u32, tick: u64) -> i64 {
    let since = tick.saturating_mul(u64::from(unit_ms));
    i64::try_from(since).unwrap_or(i64::MAX).saturating_add(epoch_ms)
}

#[cfg(test)]
pub(crate) mod tests;
