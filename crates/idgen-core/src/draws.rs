//! Since when each open transaction draws. A reader of settled values needs it: what the transaction has drawn can still
//! be committed.
//!
//! Each backend has an [`EarliestDraw`] in shared memory: a number from a source that never falls, such as the time of
//! an id. The order of accesses makes the reader's answer correct, without a lock:
//!
//! - A transaction lowers its number, then draws. It clears the number after its rows are visible.
//! - A reader loads the position of what is drawn from, then these numbers.
//!
//! A draw that the position counts has released its number, so the reader sees the number, or that the transaction has
//! ended. A draw that the position does not count comes later.

use crate::sync::{AtomicI64, Ordering};

/// That of one backend, in cache lines of its own. A worker of a parallel query lowers that of its leader.
#[repr(C, align(128))]
pub struct EarliestDraw {
    /// Or `NONE`.
    since: AtomicI64,
}

/// The transaction has drawn nothing.
const NONE: i64 = i64::MAX;

impl EarliestDraw {
    #[allow(clippy::new_without_default, reason = "it is made in place, in shared memory")]
    pub fn new() -> Self {
        Self { since: AtomicI64::new(NONE) }
    }

    /// Call before a draw that can have this number.
    #[inline]
    pub fn lower_to(&self, since: i64) {
        // Relaxed: the draw itself releases it, by moving the position.
        self.since.fetch_min(since, Ordering::Relaxed);
    }

    /// Call when the transaction has ended and its rows are visible, and no worker of it draws any more.
    #[inline]
    pub fn clear(&self) {
        if self.get().is_some() {
            // Release: a reader that sees no number sees what the transaction left, such as the lock of a prepared one.
            self.since.store(NONE, Ordering::Release);
        }
    }

    /// `None` if the transaction has drawn nothing.
    #[inline]
    pub fn get(&self) -> Option<i64> {
        Some(self.since.load(Ordering::Acquire)).filter(|since| *since != NONE)
    }
}

/// A prepared transaction, as the keys of locks that it holds. PostgreSQL keeps the locks of prepared transactions over
/// restarts and failovers, and releases them after the transaction's rows are visible. The upper half of each key is the
/// transaction's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedDraw {
    pub xid: u32,
    /// `None` if it has drawn nothing.
    pub since: Option<i64>,
}

/// The lower halves of the keys of a prepared transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedKeys {
    /// The number in units, or `NO_DRAW`.
    pub units: u32,
    /// What units leave. Transactions that 0.14.0 prepared have no lock of it: their number is taken as up to a unit
    /// lower, which only delays consumers.
    pub rest: Option<u32>,
}

/// So that 32 bits of units of milliseconds last until 2109. Larger numbers are taken as the last, which only delays
/// consumers.
const UNIT: i64 = 1024;
const NO_DRAW: u32 = u32::MAX;

impl PreparedDraw {
    pub fn keys(self) -> PreparedKeys {
        let Some(since) = self.since else {
            return PreparedKeys { units: NO_DRAW, rest: None };
        };
        let units = (since / UNIT).clamp(0, i64::from(NO_DRAW) - 1) as u32;
        PreparedKeys { units, rest: Some((since % UNIT) as u32) }
    }

    pub fn of_keys(xid: u32, keys: PreparedKeys) -> Self {
        let since = i64::from(keys.units) * UNIT + i64::from(keys.rest.unwrap_or(0));
        Self { xid, since: (keys.units != NO_DRAW).then_some(since) }
    }

    /// The key of a lock with this lower half.
    pub fn key(self, lower: u32) -> i64 {
        (u64::from(self.xid) << 32 | u64::from(lower)) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn earliest_draw_counts_until_it_is_cleared() {
        let earliest = EarliestDraw::new();
        assert_eq!(earliest.get(), None);
        [7, 5, 6].into_iter().for_each(|since| earliest.lower_to(since));
        assert_eq!(earliest.get(), Some(5));
        earliest.clear();
        assert_eq!(earliest.get(), None);
    }

    proptest! {
        #[test]
        fn prepared_draw_reads_back(xid in any::<u32>(), since in 0i64..4_398_046_510_000, drawn in any::<bool>()) {
            let prepared = PreparedDraw { xid, since: drawn.then_some(since) };
            let keys = prepared.keys();
            prop_assert_eq!(PreparedDraw::of_keys(xid, keys), prepared);
            prop_assert_eq!(prepared.key(keys.units) >> 32, i64::from(xid as i32), "a key of its own");
            prop_assert_eq!(prepared.key(keys.units) as u32, keys.units);
            let of_release_0_14_0 = PreparedDraw::of_keys(xid, PreparedKeys { rest: None, ..keys });
            prop_assert_eq!(of_release_0_14_0.since.is_some(), drawn);
            prop_assert!(!drawn || (since - UNIT + 1..=since).contains(&of_release_0_14_0.since.unwrap()));
        }

        #[test]
        fn draw_that_is_too_late_for_the_keys_counts_as_an_earlier_one(since in 4_398_046_510_000..i64::MAX) {
            let read = PreparedDraw::of_keys(7, PreparedDraw { xid: 7, since: Some(since) }.keys());
            prop_assert!((4_398_046_509_000..=since).contains(&read.since.unwrap()));
        }
    }
}
