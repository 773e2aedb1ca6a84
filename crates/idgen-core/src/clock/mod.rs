//! The time in ids, and how far it is durably promised.
//!
//! Two things keep ids unique when the wall clock cannot be trusted. The high-water mark is a time in a file that no id
//! has reached, so that ids begin at it after a crash. The effective clock continues from the ids when the wall clock
//! is behind them, after a backward step or a crash. It comes back to the wall clock as far as ids are drawn more
//! slowly.
//!
//! The words, all of them times:
//!
//! - *effective clock*: the wall clock, or CLOCK_BOOTTIME plus an offset where ids are ahead of the wall clock.
//! - *floor*: ids begin at it or later.
//! - *limit*: no id is later. The wall clock plus `idgen.max_drift`, or the effective clock if that is later. It rises
//!   as time passes; ids at the limit wait.
//! - *mark*: the high-water mark. No id has this time or a later one. It is *due* to be moved somewhat earlier, so that
//!   ids seldom wait for it.
//! - *lease end*: no id of this server's worker id has this time or a later one. Each renewal moves it.
//! - *ceiling*: the earlier of mark and lease end. Ids are below it. The *early ceiling* is the earlier of due time and
//!   lease end: the hot path stays below it, so that the mark is moved before ids reach it.

mod effective;
pub mod label;
mod mark;
pub mod record;
pub mod start;

pub use effective::{ClockStep, EffectiveClock, ForwardSteps};
pub use mark::{Mark, Obstacle, Target};

pub const NS_PER_MS: i64 = 1_000_000;

/// Both clocks, read together. Nanoseconds: wall time since 1970, boot time since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub wall_ns: i64,
    pub boot_ns: i64,
}

impl Reading {
    pub fn wall_ms(&self) -> i64 {
        self.wall_ns.div_euclid(NS_PER_MS)
    }

    fn offset_ns(&self) -> i64 {
        self.wall_ns - self.boot_ns
    }
}

#[cfg(test)]
mod tests;
