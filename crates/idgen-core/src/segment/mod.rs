//! Segment ids: a ring of ranges in shared memory for each tag.
//!
//! Ranges are taken from a tag's row in `idgen.segment`, and installed in the tag's ring under the lock of the table of
//! rings. The row can be another server's, the coordinator's: then a fleet of servers draws from one tag.

pub mod chains;
pub mod fleet;
pub mod refillers;
pub mod rests;
mod ring;
pub mod supply;
mod table;
pub mod tag;
pub mod turns;

pub use ring::Ring;
pub use table::{DROPPED, RingTable, RingTenant, TagKey};

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

#[cfg(test)]
mod tests;
