//! The stock of an attached tag: what its ring holds, how fast it is drawn, and which request is due.

use super::Supply;
use crate::coordinator::link::retry_pause;
use crate::segment::tag::TagRow;
use crate::segment::{RingHandle, RingSnapshot};
use std::ops::RangeInclusive;
use std::time::Duration;

/// From one report to the next. After a change of its history the coordinator grants nothing until all have reported.
pub const REPORT_EVERY_US: i64 = 10_000_000;

/// From one request for a stock that runs low to the next. Waiting sessions are served at once.
const ASK_EVERY_US: i64 = 1_000_000;

/// Short enough that a session which waits for some seconds finds a coordinator that has returned.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// What a request is for, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Sessions wait.
    Demand,
    /// Few values are left.
    LowWater,
    Report,
    /// The tag was detached, and may be attached again.
    Leave,
}

/// An attached tag, as the supply worker follows it. Times are microseconds by a clock that never steps.
#[derive(Debug)]
pub struct Stock {
    pub row: TagRow,
    /// The rate of draws.
    supply: Supply,
    /// The tenancy of the ring in which it was measured last.
    handle: Option<RingHandle>,
    /// When values were asked for last.
    pub(super) asked_at_us: Option<i64>,
    report_at_us: i64,
    retry_at_us: i64,
    /// Requests that have failed in a row.
    failures: u32,
    /// The need whose request failed because of the tag.
    pub(super) refused: Option<Need>,
}

impl Stock {
    /// With the row as it is now; `before` is the stock with an earlier one.
    pub fn new(row: TagRow, before: Option<Self>, now_us: i64) -> Self {
        if let Some(before) = before {
            return Self { row, ..before };
        }
        let (supply, handle, asked_at_us, refused) = (Supply::new(0, now_us), None, None, None);
        Self { row, supply, handle, asked_at_us, report_at_us: now_us, retry_at_us: now_us, failures: 0, refused }
    }

    fn reserve(&self) -> Duration {
        Duration::from_micros(self.row.link.reserve_us.unwrap_or_default().max(0) as u64)
    }

    fn limits(&self) -> RangeInclusive<i64> {
        self.row.definition.min_step..=self.row.definition.max_step
    }

    /// Measures the rate of draws, and returns it.
    pub fn observe(&mut self, ring: &RingSnapshot, now_us: i64) -> f64 {
        let (handle, reserve) = (Some(ring.tenant.handle), self.reserve());
        match std::mem::replace(&mut self.handle, handle) == handle {
            true => self.supply.sample(ring.position, now_us, reserve, ring.remaining.count == 0),
            // What the ring held was discarded, not drawn.
            false => self.supply.restart(ring.position, now_us),
        }
        self.supply.rate
    }

    /// A request is due when fewer values are left; `None` if only waiting sessions make one due.
    pub(super) fn low_water(&self) -> Option<u64> {
        self.supply.low_water(self.reserve(), self.limits())
    }

    /// How many values to ask for; 0 for none.
    pub(super) fn wanted(&self, ring: &RingSnapshot) -> u64 {
        self.supply.wanted(ring.remaining.count, self.reserve(), ring.demand, self.limits())
    }

    /// When the next request is due, and which one.
    pub fn next(&self, ring: Option<&RingSnapshot>, now_us: i64) -> (i64, Need) {
        if self.row.link.received.is_some() {
            return (self.retry_at_us, Need::Leave);
        }
        let report = (self.report_at_us.max(self.retry_at_us), Need::Report);
        let values = ring.and_then(|ring| {
            if ring.turn_due > 0 || ring.has_room && ring.demand > 0 {
                return Some((self.retry_at_us, Need::Demand));
            }
            let ask_at_us = self.asked_at_us.map_or(self.retry_at_us, |us| self.retry_at_us.max(us + ASK_EVERY_US));
            self.low_water()
                .filter(|low_water| ring.has_room && ring.remaining.count < *low_water)
                .map(|_| (ask_at_us, Need::LowWater))
        });
        values.filter(|(at_us, _)| *at_us <= report.0 || *at_us <= now_us).unwrap_or(report)
    }

    /// The coordinator has answered. True if no earlier failure of the tag is left. `jitter` is random in [0, 1).
    pub(super) fn succeed(&mut self, need: Need, now_us: i64, jitter: f64) -> bool {
        let pause_us = match need {
            // The coordinator does not know a tag that was attached again since.
            Need::Leave => 0.0,
            // A request for values reports, too.
            _ => REPORT_EVERY_US as f64 * (0.8 + 0.2 * jitter),
        };
        self.report_at_us = now_us + pause_us as i64;
        // A report succeeds also while values are refused.
        let is_cleared = need != Need::Report || self.refused.is_none_or(|refused| refused == need);
        if is_cleared {
            (self.failures, self.refused) = (0, None);
        }
        is_cleared
    }

    /// A request has failed. True if the one before had not.
    pub(super) fn fail(&mut self, now_us: i64, jitter: f64) -> bool {
        self.retry_at_us = now_us + retry_pause(self.failures, LONGEST_PAUSE, jitter).as_micros() as i64;
        self.failures += 1;
        self.failures == 1
    }
}
