//! UUIDs of version 7, packed from snowflake ids.
//!
//! From the highest bit: 48 bits of milliseconds since 1970, the version, the upper 12 bits of a sequence number, the
//! variant, its lower 8 bits, and 54 random bits. That is RFC 9562, section 6.2, method 1. Milliseconds and sequence number
//! are those of an id in [`LAYOUT`], so UUIDs sort in the order of their ids. A `u128` sorts as the 16 bytes do, highest
//! byte first.

mod random;

pub use random::RandomWords;

/// The layout of the ids that become UUIDs. It has no worker id: `uuidv7_next(node => true)` takes random bits for it.
pub const LAYOUT: &str = "time:43 sequence:20 unit:1ms epoch:1970-01-01";

const SEQUENCE_BITS: u32 = 20;
const RANDOM_BITS: u32 = 54;
/// All of a worker id, which is at most `i32::MAX`.
const WORKER_BITS: u32 = 31;

/// The latest time that the 48 bits can say: in the year 10889.
const LAST_MS: i64 = (1 << 48) - 1;

const VERSION: u128 = 7;
const VERSION_SHIFT: u32 = 76;
/// The variant of RFC 9562, which defines the versions.
const VARIANT: u128 = 0b10;
const VARIANT_SHIFT: u32 = 62;

const fn ones(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// The UUID of an id in [`LAYOUT`], with the lower 54 bits of `random`.
#[inline]
pub fn of_id(id: i64, random: u64) -> u128 {
    pack(id >> SEQUENCE_BITS, id as u64 & ones(SEQUENCE_BITS), random)
}

#[inline]
fn pack(time_ms: i64, sequence: u64, random: u64) -> u128 {
    let upper = sequence >> 8;
    let lower = (sequence & 0xff) << RANDOM_BITS | random & ones(RANDOM_BITS);
    VERSION << VERSION_SHIFT
        | VARIANT << VARIANT_SHIFT
        | (time_ms as u128) << 80
        | u128::from(upper) << 64
        | u128::from(lower)
}

/// Random bits of which the first 31 of 54 are a worker id.
#[inline]
pub fn with_worker(worker: u32, random: u64) -> u64 {
    let rest = RANDOM_BITS - WORKER_BITS;
    (u64::from(worker) & ones(WORKER_BITS)) << rest | random & ones(rest)
}

/// The least UUID of version 7 in the millisecond, by any generator. An earlier or later time counts as the first or the
/// last millisecond.
pub fn floor(time_ms: i64) -> u128 {
    pack(time_ms.clamp(0, LAST_MS), 0, 0)
}

/// The greatest UUID of that millisecond.
pub fn ceil(time_ms: i64) -> u128 {
    pack(time_ms.clamp(0, LAST_MS), ones(SEQUENCE_BITS), u64::MAX)
}

/// Milliseconds since 1970; `None` if the UUID does not have version 7.
pub fn time_ms(uuid: u128) -> Option<i64> {
    (version(uuid) == Some(VERSION as u8)).then_some((uuid >> 80) as i64)
}

/// `None` if the UUID has another variant than that of RFC 9562.
pub fn version(uuid: u128) -> Option<u8> {
    ((uuid >> VARIANT_SHIFT) & 0b11 == VARIANT).then_some((uuid >> VERSION_SHIFT) as u8 & 0xf)
}

#[cfg(test)]
mod tests;
