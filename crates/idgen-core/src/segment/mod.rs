//! Segment ids: a ring of ranges in shared memory that every process draws from without a lock.
//!
//! Ranges are taken from a tag's row in `idgen.segment`, and installed in the tag's ring under the lock of the table of
//! rings.

pub mod refillers;
mod ring;
mod table;
pub mod tag;

pub use ring::{Draw, Remaining, Ring, RingHandle, ValueRun};
pub use table::{DROPPED, RingTable, RingTenant, TagKey};

#[cfg(test)]
mod tests;
