//! Segment ids: a ring of ranges in shared memory for each tag.
//!
//! Ranges are taken from a tag's row in `idgen.segment`, and installed in the tag's ring under the lock of the table of
//! rings. The row can be another server's, the coordinator's: then a fleet of servers draws from one tag.

pub mod chains;
pub mod fleet;
pub mod refill;
pub mod refillers;
pub mod requests;
mod ring;
pub mod settled;
pub mod supply;
mod table;
pub mod tag;
pub mod turns;

pub use ring::Ring;
pub use table::{DROPPED, Rest, RingTable, RingTenant, TagKey};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// `request`: few values are left, and this caller has to request the refill.
    Drawn { run: ValueRun, request: bool },
    /// Too few values are left.
    Dry,
}

/// The values left to draw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remaining {
    /// The rest of the current range.
    pub current: Option<ValueRun>,
    /// The range after it.
    pub next: Option<ValueRun>,
    /// Over all ranges.
    pub count: u64,
}

/// A ring at one moment.
#[derive(Clone, Copy, Debug)]
pub struct RingSnapshot {
    pub index: usize,
    pub tenant: RingTenant,
    pub remaining: Remaining,
    pub has_room: bool,
    pub position: u64,
    /// Values that sessions have asked for, and those that the next turn has to ask for.
    pub demand: u64,
    pub turn_due: u64,
}

/// Values for a ring, once the transaction has committed.
#[derive(Clone, Copy, Debug)]
pub struct NewRange {
    pub range: ValueRun,
    /// That of the row.
    pub version: i64,
    pub is_attached: bool,
    /// The ring requests values when this many are left; never if `None`.
    pub low_water: Option<u64>,
    /// The turn that brings them. Its calls draw them; the values that the ring has are discarded.
    pub turn: Option<u64>,
    pub began_us: i64,
}

/// Why a ring gets no values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoValues {
    /// Another transaction has locked the row.
    Busy,
    /// The coordinator grants nothing before servers with these names have reported.
    Unreported { tag: String, servers: String },
    /// A server has received values above the upper bound.
    BeyondBound { tag: String },
    /// A synchronous standby may lack the row that has them.
    Skipped(ValueRun),
    /// The coordinator has granted values that were not asked for.
    NotAskedFor(ValueRun),
    /// The coordinator waits for the reports of servers with these names.
    Withheld { waits_for: String },
    /// The message of an error, here or at the coordinator.
    Raised(String),
}

#[cfg(test)]
mod tests;
