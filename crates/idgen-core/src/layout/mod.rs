//! A layout: the bit fields of an id, the unit of its time, and its epoch.
//!
//! A layout is a value, not a database object: its text is part of a column's DEFAULT, so the table's own definition
//! tells how its ids decode. Texts with the same bits, unit and epoch are the same layout.

use crate::snowflake::{IdSpace, Span, Ticks};

mod spec;

pub use spec::{PRESETS, time_text, time_text_us};

/// A field with the same value in every id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    pub span: Span,
    pub value: u32,
}

/// The ids of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// `None` if the worker id numbers the pairs of both fields.
    pub datacenter: Option<u32>,
    pub worker: u32,
}

/// Made by [`Layout::parse`] only, so every layout obeys the rules listed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    time: Span,
    datacenter: Option<Span>,
    worker: Option<Span>,
    tag: Option<Tag>,
    sequence: Span,
    ticks: Ticks,
}

/// An unpacked id. A field that the layout does not have is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Start of the id's tick, in milliseconds since 1970; `i64::MAX` if it is later than that.
    pub time_ms: i64,
    pub datacenter: Option<u32>,
    pub worker: Option<u32>,
    pub tag: Option<u32>,
    pub sequence: u64,
}

/// A worker or datacenter id that does not fit its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeError {
    /// `"worker"` or `"datacenter"`.
    pub field: &'static str,
    pub value: u32,
    /// The greatest value that fits; 0 if the layout does not have the field.
    pub max: u64,
}

/// Why an id cannot be unpacked, or parts cannot be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdError {
    Negative,
    TooManyBits { bits: u32 },
    BeforeEpoch,
    AfterEnd,
    Sequence { max: u64 },
    Node(NodeError),
}

impl Layout {
    /// The number of bits, including time: at most 63, so that an id is never negative.
    pub fn bits(&self) -> u32 {
        u32::from(self.time.shift) + u32::from(self.time.bits)
    }

    pub fn unit_ms(&self) -> u32 {
        self.ticks.unit_ms
    }

    pub fn epoch_ms(&self) -> i64 {
        self.ticks.epoch_ms
    }

    /// The number of servers that can make ids without repeating each other's.
    pub fn workers(&self) -> u64 {
        let bits = |span: Option<Span>| span.map_or(0, |s| u32::from(s.bits));
        1 << (bits(self.worker) + bits(self.datacenter))
    }

    /// The rate that one server can sustain.
    pub fn ids_per_second(&self) -> u64 {
        (self.sequence.max() + 1) * 1000 / u64::from(self.ticks.unit_ms)
    }

    /// The first instant without ids, in milliseconds since 1970; `i64::MAX` if it is later than that.
    pub fn ends_at_ms(&self) -> i64 {
        self.ticks.start_ms(self.time.max() + 1)
    }

    /// True if the end is less than 365 days away, or past.
    pub fn ends_within_a_year(&self, now_ms: i64) -> bool {
        self.ends_at_ms().saturating_sub(now_ms) < 365 * 86_400_000
    }

    /// The ids that a server makes in this layout. The node's ids count only where the layout has the field.
    pub fn id_space(&self, node: Node) -> Result<IdSpace, NodeError> {
        let (datacenter, worker) = self.pair(node);
        let pair = (self.datacenter.map_or(0, |_| datacenter), self.worker.map_or(0, |_| worker));
        let node_bits = self.node_bits(pair).map_err(|error| match node.datacenter {
            Some(_) => error,
            None => NodeError { field: "worker", value: node.worker, max: self.workers() - 1 },
        })?;
        let tag_bits = self.tag_bits();
        Ok(IdSpace { time: self.time, sequence: self.sequence, ticks: self.ticks, tag_bits, node_bits })
    }

    /// The datacenter id and the worker id of a node. Where its worker id numbers pairs, the low bits of the number are the
    /// worker id, as many as the field has, and the others the datacenter id.
    pub fn pair(&self, node: Node) -> (u32, u32) {
        match (node.datacenter, self.datacenter.and(self.worker)) {
            (Some(datacenter), _) => (datacenter, node.worker),
            (None, None) => (0, node.worker),
            // A field has at most 31 bits.
            (None, Some(field)) => (node.worker >> field.bits, node.worker & field.max() as u32),
        }
    }

    pub fn unpack(&self, id: i64) -> Result<Parts, IdError> {
        let bits = self.bits();
        let raw = u64::try_from(id).map_err(|_| IdError::Negative)?;
        if raw >> bits != 0 {
            return Err(IdError::TooManyBits { bits });
        }
        // The fields have at most 31 bits.
        let field = |span: Option<Span>| span.map(|s| s.get(raw) as u32);
        Ok(Parts {
            time_ms: self.ticks.start_ms(self.time.get(raw)),
            datacenter: field(self.datacenter),
            worker: field(self.worker),
            tag: field(self.tag.map(|tag| tag.span)),
            sequence: self.sequence.get(raw),
        })
    }

    /// The id gets the layout's tag.
    pub fn pack(&self, time_ms: i64, node: Node, sequence: u64) -> Result<i64, IdError> {
        let tick = self.ticks.at(time_ms).ok_or(IdError::BeforeEpoch)?;
        if tick > self.time.max() {
            return Err(IdError::AfterEnd);
        }
        if sequence > self.sequence.max() {
            return Err(IdError::Sequence { max: self.sequence.max() });
        }
        let node_bits = self.node_bits(self.pair(node)).map_err(IdError::Node)?;
        let id = self.time.put(tick) | self.sequence.put(sequence) | self.tag_bits() | node_bits;
        Ok(id as i64)
    }

    /// The smallest possible id of the tick that holds this time. A time outside of the layout counts as the first or
    /// the last tick.
    pub fn floor(&self, time_ms: i64) -> i64 {
        let tick = self.ticks.at(time_ms).unwrap_or(0).min(self.time.max());
        self.time.put(tick) as i64
    }

    /// The greatest possible id of that tick.
    pub fn ceil(&self, time_ms: i64) -> i64 {
        self.floor(time_ms) | ((1 << self.time.shift) - 1)
    }

    fn tag_bits(&self) -> u64 {
        self.tag.map_or(0, |tag| tag.span.put(u64::from(tag.value)))
    }

    fn node_bits(&self, (datacenter, worker): (u32, u32)) -> Result<u64, NodeError> {
        let field_bits = |field, span: Option<Span>, value: u32| {
            // Only 0 fits a layout without the field.
            let max = span.map_or(0, Span::max);
            if u64::from(value) > max {
                return Err(NodeError { field, value, max });
            }
            Ok(span.map_or(0, |s| s.put(u64::from(value))))
        };
        Ok(field_bits("datacenter", self.datacenter, datacenter)? | field_bits("worker", self.worker, worker)?)
    }
}

#[cfg(test)]
pub(crate) mod tests;
