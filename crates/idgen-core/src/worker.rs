//! Worker ids from a pool: which times a holder of a number may put into ids.
//!
//! A grant is a rectangle, a number by an interval of id time, and the rectangles of a number follow each other. So a holder
//! that keeps inside his own never makes an id that another makes, however late he is, and whatever his clock says: clocks
//! cost waiting, never a duplicate. Times are microseconds since 1970, as they stand in ids.

pub mod coordinator;

/// The id times that one holder of a number may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    pub not_before_us: i64,
    /// No id has this time or a later one. Moved on by each renewal, and durable before it is told.
    pub not_after_us: i64,
}

impl Interval {
    /// For a new holder, after all that holders before were allowed: `used_until_us`, `None` where there was none.
    pub fn grant(used_until_us: Option<i64>, now_us: i64, ttl_us: i64) -> Self {
        let not_before_us = used_until_us.unwrap_or(now_us);
        Self { not_before_us, not_after_us: not_before_us.max(now_us).saturating_add(ttl_us) }
    }

    /// For the same holder. What he was told once he is not told back, also when the clock was set back since.
    pub fn renewed(self, now_us: i64, ttl_us: i64) -> Self {
        Self { not_after_us: self.not_after_us.max(now_us.saturating_add(ttl_us)), ..self }
    }

    /// Up to where it has been used, when the holder says the last time in his ids. The next holder begins there.
    pub fn used_until_us(self, last_us: Option<i64>) -> i64 {
        last_us
            .map_or(self.not_after_us, |last_us| last_us.saturating_add(1).clamp(self.not_before_us, self.not_after_us))
    }

    /// The first millisecond since 1970 that is inside.
    pub fn first_ms(&self) -> i64 {
        self.not_before_us.saturating_add(999).div_euclid(1000)
    }

    /// The millisecond since 1970 that is the first one outside again.
    pub fn end_ms(&self) -> i64 {
        self.not_after_us.div_euclid(1000)
    }
}

#[cfg(test)]
mod tests;
