//! Worker ids from a pool: which times a holder of a worker id may put into ids.
//!
//! A grant is a rectangle, a worker id by an interval of id time, and the rectangles of a worker id follow each other. A holder
//! that stays inside its own never makes an id that another makes, however late it is, and whatever its clock says: clocks
//! cost waiting, never a duplicate. Times are microseconds since 1970, as they stand in ids.
//!
//! The end of a rectangle follows from the holder's own ids and clock, bounded by the coordinator's clock. So a leap of the
//! coordinator's clock moves no rectangle of a holder that says how far it has come, and no rectangle ends further ahead than
//! a time that is known: the time to wait for where rectangles may be forgotten.

pub mod coordinator;
pub mod history;
pub mod memory;
pub mod targets;

/// What bounds the rectangles of a pool: the coordinator's clock, its settings and its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The coordinator's clock.
    pub now_us: i64,
    /// The longest ttl of the pool's holders.
    pub ttl_us: i64,
    /// How far beyond `now_us + ttl_us` a rectangle may reach, for holders whose ids or clocks are ahead.
    pub max_lead_us: i64,
    /// When the coordinator's history was interrupted: rectangles granted before may be forgotten. `None` if it is complete.
    pub since_us: Option<i64>,
    /// The longest time from the coordinator's clock to the end of a rectangle that may be forgotten.
    pub longest_forgotten_us: i64,
}

impl Bounds {
    /// The longest time from the coordinator's clock to the end of a rectangle.
    pub fn longest_us(&self) -> i64 {
        self.ttl_us.saturating_add(self.max_lead_us)
    }

    /// All rectangles that may be forgotten end here at the latest.
    pub fn floor_us(&self) -> Option<i64> {
        let longest_us = self.longest_us().max(self.longest_forgotten_us);
        self.since_us.map(|since_us| since_us.saturating_add(longest_us))
    }

    fn reference_us(&self) -> i64 {
        self.floor_us().map_or(self.now_us, |floor_us| floor_us.max(self.now_us))
    }

    /// The latest begin of a new rectangle, and the latest time that a caller's ids or clock may have come to.
    pub fn latest_start_us(&self) -> i64 {
        self.reference_us().saturating_add(self.max_lead_us)
    }

    fn latest_end_us(&self) -> i64 {
        self.reference_us().saturating_add(self.longest_us())
    }

    /// How far the caller's ids or clock are ahead of this clock; `None` if that is not too far.
    pub fn excess_us(&self, reached_us: i64) -> Option<i64> {
        (reached_us > self.latest_start_us()).then(|| reached_us.saturating_sub(self.now_us))
    }

    /// Splits a ttl into how long the term lasts, at most the pool's ttl, and the time that the caller has come to. A caller that
    /// cannot say that time asks for a longer ttl instead, by as much as it is ahead of this clock. It gets what is allowed.
    pub fn split(&self, ttl_us: i64) -> (i64, i64) {
        let term_us = ttl_us.min(self.ttl_us);
        let reached_us = self.now_us.saturating_add(ttl_us - term_us);
        (term_us, reached_us.min(self.latest_start_us()))
    }
}

/// The id times that one holder of a worker id may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    pub not_before_us: i64,
    /// No id has this time or a later one. Moved on by each renewal, and durable before it is told.
    pub not_after_us: i64,
}

impl Interval {
    /// For a new holder whose ids and clock have come to `reached_us`, after all that holders before were allowed:
    /// `used_until_us`, `None` if there was none. An error if it would begin too far ahead: where it would begin.
    pub fn grant(used_until_us: Option<i64>, reached_us: i64, ttl_us: i64, bounds: &Bounds) -> Result<Self, i64> {
        let unused_from_us = used_until_us.unwrap_or_else(|| bounds.now_us.min(reached_us));
        let not_before_us = bounds.floor_us().map_or(unused_from_us, |floor_us| floor_us.max(unused_from_us));
        if not_before_us > bounds.latest_start_us() {
            return Err(not_before_us);
        }
        let end_us = not_before_us.max(reached_us).saturating_add(ttl_us);
        Ok(Self { not_before_us, not_after_us: end_us.min(bounds.latest_end_us()) })
    }

    /// For the same holder. An end that the holder was told is never moved back, also when the coordinator's clock is.
    pub fn renewed(self, reached_us: i64, ttl_us: i64, bounds: &Bounds) -> Self {
        let end_us = reached_us.saturating_add(ttl_us).min(bounds.latest_end_us());
        Self { not_after_us: self.not_after_us.max(end_us), ..self }
    }

    /// Up to where it has been used, when the holder says the last time in its ids. The next holder begins there.
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
