//! Segment ids: a ring of ranges in shared memory that every process draws from without a lock.
//!
//! Ranges are taken from a tag's row in `idgen.segment`, and installed in the tag's ring under the lock of the table of
//! rings.

pub mod refillers;
mod ring;
mod table;
pub mod tag;

pub use ring::{Draw, Remaining, Ring, RingHandle};
pub use table::{DROPPED, RingTable, RingTenant, TagKey};

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

#[cfg(test)]
mod tests;
