//! Worker ids from a pool: which times the holder of a worker id may use in ids.
//!
//! A grant is a rectangle, a worker id by an interval of id time, and the rectangles of a worker id never overlap. So a
//! holder that stays inside its own makes no id of another holder, however late it is and whatever its clock says: a
//! wrong clock costs waiting, never a duplicate. Times are microseconds since 1970, as in ids.
//!
//! The end of a rectangle follows from the holder's own ids and clock, bounded by the coordinator's clock. So a step of
//! the coordinator's clock moves no rectangle of a holder that reports the time it has reached. And every rectangle
//! ends at most a known time ahead of the clock: the time to wait where rectangles may be forgotten.

mod attempt;
pub mod by_hand;
pub mod granting;
pub mod holding;
pub mod keeper;
pub mod lease;
pub mod memory;
pub mod pace;
pub mod recording;
pub mod search;
pub mod server;

use std::ops::RangeInclusive;

/// Why a call grants, renews, confirms or releases nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The database is a copy of the coordinator's, and grants nothing.
    Copied,
    /// No pool has this name.
    UnknownPool,
    /// The settings do not allow the ttl.
    TtlOutOfRange,
    /// The ttl is longer than this one, that of the pool.
    TtlBeyondThePools { ttl_us: i64 },
    /// The caller's ids or clock are ahead of this clock by more than the lead allows.
    TooFarAhead { excess_us: i64, max_lead_us: i64 },
    /// All worker ids of the pool are held.
    Exhausted { range: RangeInclusive<i32> },
    /// All free worker ids begin further ahead of the clock than a holder may be.
    BeginsTooFar { worker_id: i32, not_before_us: i64, bounds: PoolBounds },
    /// The token is not current.
    Stale { token: i64 },
    /// The token was granted or renewed in the same transaction.
    Uncommitted { worker_id: i32 },
    /// Two processes have the token, or the answer to a renewal was lost.
    RenewedByAnother { worker_id: i32, last_us: i64, not_after_us: i64 },
}

/// The bounds of a pool's rectangles: from the coordinator's clock, settings and history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolBounds {
    pub now_us: i64,
    /// The longest ttl of the pool's holders.
    pub ttl_us: i64,
    /// How far past `now_us + ttl_us` a rectangle may end, for holders whose ids or clocks are ahead.
    pub max_lead_us: i64,
    /// Every rectangle that an interruption of the history may have forgotten ends here or earlier.
    pub floor_us: Option<i64>,
}

impl PoolBounds {
    /// The longest time from the coordinator's clock to the end of a rectangle.
    pub fn longest_us(&self) -> i64 {
        self.ttl_us.saturating_add(self.max_lead_us)
    }

    /// No new rectangle begins before this time.
    pub fn earliest_start_us(&self) -> i64 {
        self.floor_us.map_or(self.now_us, |floor_us| floor_us.max(self.now_us))
    }

    /// The latest start of a new rectangle, and the latest time that a caller's ids or clock may have reached.
    pub fn latest_start_us(&self) -> i64 {
        self.earliest_start_us().saturating_add(self.max_lead_us)
    }

    fn latest_end_us(&self) -> i64 {
        self.earliest_start_us().saturating_add(self.longest_us())
    }

    /// How far the caller's ids or clock are ahead of this clock; `None` if that is allowed.
    pub fn excess_us(&self, reached_us: i64) -> Option<i64> {
        (reached_us > self.latest_start_us()).then(|| reached_us.saturating_sub(self.now_us))
    }

    /// Splits a ttl into the ttl of the lease, at most the pool's, and the time that the caller has reached. A caller
    /// that cannot report that time asks for a longer ttl, by as much as it is ahead of this clock. The result is at
    /// most the latest time allowed.
    pub fn split(&self, ttl_us: i64) -> (i64, i64) {
        let lease_us = ttl_us.min(self.ttl_us);
        let reached_us = self.now_us.saturating_add(ttl_us - lease_us);
        (lease_us, reached_us.min(self.latest_start_us()))
    }
}

/// The id times that one holder of a worker id may use, as an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rectangle {
    pub not_before_us: i64,
    /// No id has this time or a later one. Each renewal moves it, durably before the holder learns of it.
    pub not_after_us: i64,
}

impl Rectangle {
    /// For a new holder whose ids and clock have reached `reached_us`. Begins at `used_until_us`, the end of the
    /// previous rectangle, if there was one. If it would begin too far ahead, the error is that time.
    pub fn grant(used_until_us: Option<i64>, reached_us: i64, ttl_us: i64, bounds: &PoolBounds) -> Result<Self, i64> {
        let unused_from_us = used_until_us.unwrap_or_else(|| bounds.now_us.min(reached_us));
        let not_before_us = bounds.floor_us.map_or(unused_from_us, |floor_us| floor_us.max(unused_from_us));
        if not_before_us > bounds.latest_start_us() {
            return Err(not_before_us);
        }
        let end_us = not_before_us.max(reached_us).saturating_add(ttl_us);
        Ok(Self { not_before_us, not_after_us: end_us.min(bounds.latest_end_us()) })
    }

    /// For the same holder. The end never moves back, even if the coordinator's clock does.
    pub fn renewed(self, reached_us: i64, ttl_us: i64, bounds: &PoolBounds) -> Self {
        let end_us = reached_us.saturating_add(ttl_us).min(bounds.latest_end_us());
        Self { not_after_us: self.not_after_us.max(end_us), ..self }
    }

    /// Where the next rectangle begins, given the last time in the holder's ids if the holder reports it.
    pub fn used_until_us(self, last_us: Option<i64>) -> i64 {
        last_us
            .map_or(self.not_after_us, |last_us| last_us.saturating_add(1).clamp(self.not_before_us, self.not_after_us))
    }

    /// The first whole millisecond since 1970 inside the rectangle.
    pub fn first_ms(&self) -> i64 {
        self.not_before_us.saturating_add(999).div_euclid(1000)
    }

    /// The first millisecond since 1970 that is not wholly inside.
    pub fn end_ms(&self) -> i64 {
        self.not_after_us.div_euclid(1000)
    }
}

#[cfg(test)]
mod tests;
