//! How many values a server asks the coordinator for, so that its stock lasts for the *reserve* while the coordinator
//! is away.
//!
//! A server asks when its stock lasts for less than 1.25 of the reserve (`LOW_WATER`), and asks for what makes it last for
//! 1.75 of it (`TARGET`). So at a steady rate a request comes every half reserve, and no outage shorter than the reserve
//! empties the ring.

pub mod requests;
pub mod stock;
pub mod supplier;

use super::tag::MAX_STEP;
use std::ops::RangeInclusive;
use std::time::Duration;

const LOW_WATER: f64 = 1.25;
const TARGET: f64 = 1.75;

/// A rate is measured over at least this time: a burst that is shorter does not count as a rate.
const SHORTEST_US: i64 = 100_000;
/// Fewer values than [`ENOUGH`] count as drawn in at least this time: the first ones come in a burst.
const SHORTEST_OF_FEW_US: i64 = 1_000_000;
/// A rate is measured over at least this many values, so that it does not depend on when the samples were taken.
const ENOUGH: u64 = 100;
/// A rate is measured once this time has passed, however few values were drawn.
const LONGEST_US: i64 = 10_000_000;
/// The longest time constant of the mean.
const LONGEST_TIME_CONSTANT: Duration = Duration::from_secs(10);

/// A rate below this, in values per second, counts as zero: one value in 11 days.
const NEGLIGIBLE: f64 = 1e-6;

/// The rate at which a ring is drawn from, as the supply worker has measured it.
#[derive(Clone, Copy, Debug)]
pub struct Supply {
    /// The ring's position when the measurement began that is still running.
    position: u64,
    since_us: i64,
    /// Values per second.
    pub rate: f64,
}

impl Supply {
    /// Nothing is known yet of a ring at this position.
    pub fn new(position: u64, now_us: i64) -> Self {
        Self { position, since_us: now_us, rate: 0.0 }
    }

    /// The stock was discarded, or the worker was away: the values up to this position were not drawn since the last
    /// sample. The rate stays.
    pub fn restart(&mut self, position: u64, now_us: i64) {
        (self.position, self.since_us) = (position, now_us);
    }

    /// Measures the rate of draws. It rises at once, and falls with a time constant of a quarter of the reserve. While
    /// the ring is dry, the draws that wait are not counted: then the rate can rise, and does not fall.
    pub fn sample(&mut self, position: u64, now_us: i64, reserve: Duration, is_dry: bool) {
        let count = position.saturating_sub(self.position);
        let time_us = now_us.saturating_sub(self.since_us);
        let is_measured = (time_us >= SHORTEST_US && count >= ENOUGH) || time_us >= LONGEST_US;
        if !is_measured && !is_dry {
            return;
        }
        let shortest_us = if count >= ENOUGH { SHORTEST_US } else { SHORTEST_OF_FEW_US };
        let seconds = time_us.max(shortest_us) as f64 / 1e6;
        let measured = count as f64 / seconds;
        if measured >= self.rate {
            self.rate = measured;
        } else if !is_dry {
            let time_constant = (reserve / 4).min(LONGEST_TIME_CONSTANT).as_secs_f64();
            self.rate = measured + (self.rate - measured) * (-seconds / time_constant).exp();
        }
        if self.rate < NEGLIGIBLE {
            self.rate = 0.0;
        }
        self.restart(position, now_us);
    }

    /// The server asks for more when this many values are left. `None`: not before its ring is dry, because it may ask
    /// for one value only. Then no server holds a value while others draw later ones, and all draw in one line.
    pub fn low_water(&self, reserve: Duration, limits: RangeInclusive<i64>) -> Option<u64> {
        (*limits.end() > 1).then(|| self.stock(LOW_WATER, reserve))
    }

    /// How many values the server asks for in one request: what the stock lacks within the limits `min_step..=max_step`,
    /// and at least the `demand` of sessions that wait: one of them may need that many in a row. 0 if it needs none.
    pub fn wanted(&self, left: u64, reserve: Duration, demand: u64, limits: RangeInclusive<i64>) -> u64 {
        let lacking = if *limits.end() > 1 { self.stock(TARGET, reserve).saturating_sub(left) } else { 0 };
        match lacking.max(demand) {
            0 => 0,
            // Not `clamp`, which panics on limits in the wrong order.
            wanted => wanted.max(*limits.start() as u64).min(*limits.end() as u64).max(demand.min(MAX_STEP as u64)),
        }
    }

    /// The values that last for so many reserves.
    fn stock(&self, reserves: f64, reserve: Duration) -> u64 {
        (reserves * reserve.as_secs_f64() * self.rate).ceil() as u64
    }
}

#[cfg(test)]
mod tests;
