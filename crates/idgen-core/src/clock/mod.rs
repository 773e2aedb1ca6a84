//! The time in ids, and how far it is durably promised.
//!
//! Two things keep ids unique when the wall clock cannot be trusted. The high-water mark is a time in a file that no id
//! has reached, so that ids begin at it after a crash. And each id space goes on from its own position: where that is
//! ahead of the wall clock, after a backward step or a crash, the space opens one tick in each tick's length of
//! CLOCK_BOOTTIME. So it is never further ahead than it was, and comes back as far as ids are drawn more slowly.
//!
//! The words, all of them times:
//!
//! - *floor*: ids begin at it or later.
//! - *limit*: no id is later, unless its space was already ahead. The wall clock plus `idgen.max_drift`. Ids at the limit
//!   wait.
//! - *mark*: the high-water mark. No id has this time or a later one. It is *due* to be moved somewhat earlier, so that
//!   ids seldom wait for it.
//! - *label*: a text in WAL with a time that the mark has not passed, for replicas.
//! - *lease end*: no id of this server's worker id has this time or a later one. Each renewal moves it.
//! - *ceiling*: the earlier of mark and lease end. Ids are below it. The *early ceiling* is the earlier of due time and
//!   lease end: the hot path stays below it, so that the mark is moved before ids reach it.

pub mod label;
pub mod labelling;
mod mark;
pub mod moves;
pub mod port;
pub mod record;
pub mod start;
mod steps;

pub use mark::{Mark, Obstacle, Target};
pub use steps::{ClockStep, ClockSteps};

pub const US_PER_MS: i64 = 1000;

/// The last millisecond of Linux' clocks, in 2262: they count nanoseconds since 1970 in 64 bits.
pub const LATEST_MS: i64 = i64::MAX / 1_000_000;

/// Both clocks, read together. Microseconds, which do not overflow at any time that PostgreSQL can represent: wall time
/// since 1970, boot time since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub wall_us: i64,
    pub boot_us: i64,
}

impl Reading {
    pub fn wall_ms(&self) -> i64 {
        self.wall_us.div_euclid(US_PER_MS)
    }

    fn offset_us(&self) -> i64 {
        self.wall_us - self.boot_us
    }
}

#[cfg(test)]
mod tests;
