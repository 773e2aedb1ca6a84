//! Settled ids: no transaction of the server can commit a row with such an id any more.
//!
//! Each backend has a [`DrawBound`] in shared memory: no id that its transaction has drawn has an earlier time. The order
//! of accesses makes the answer correct, without a lock:
//!
//! - A transaction lowers its bound, then draws. It clears the bound after its rows are visible.
//! - A reader loads the generator's position, then the bounds.
//!
//! A draw that the position counts has released its bound, so the reader sees the bound, or that the transaction has ended.
//! A draw that the position does not count has a later id. A bound in milliseconds serves all layouts: a transaction that
//! draws in several has the earliest of their bounds.

use crate::layout::Layout;
use crate::sync::{AtomicI64, Ordering};

/// The bound of one backend, in cache lines of its own. A worker of a parallel query lowers that of its leader.
#[repr(C, align(128))]
pub struct DrawBound {
    /// Milliseconds since 1970, or `NONE`.
    time_ms: AtomicI64,
}

/// The transaction has drawn no id.
const NONE: i64 = i64::MAX;

impl DrawBound {
    #[allow(clippy::new_without_default, reason = "a bound is made in place, in shared memory")]
    pub fn new() -> Self {
        Self { time_ms: AtomicI64::new(NONE) }
    }

    /// Call before a draw that can have this time.
    #[inline]
    pub fn lower_to(&self, time_ms: i64) {
        // Relaxed: the draw itself releases it, by moving the generator's position.
        self.time_ms.fetch_min(time_ms, Ordering::Relaxed);
    }

    /// Call when the transaction has ended and its rows are visible, and no worker of it draws any more.
    #[inline]
    pub fn clear(&self) {
        if self.get().is_some() {
            // Release: a reader that sees no bound sees what the transaction left, such as its bound as a prepared one.
            self.time_ms.store(NONE, Ordering::Release);
        }
    }

    /// `None` if the transaction has drawn no id.
    #[inline]
    pub fn get(&self) -> Option<i64> {
        Some(self.time_ms.load(Ordering::Acquire)).filter(|time_ms| *time_ms != NONE)
    }
}

/// The greatest settled id. `before_next` reads the greatest id below all later ones, `bounds_ms` the bounds of the open
/// transactions.
pub fn settled(layout: &Layout, before_next: impl FnOnce() -> i64, bounds_ms: impl FnOnce() -> Vec<i64>) -> i64 {
    // In this order: see above.
    let before_next = before_next();
    // A transaction past the end of the layout has drawn nothing in it.
    let earliest_ms = bounds_ms().into_iter().filter(|bound_ms| *bound_ms < layout.ends_at_ms()).min();
    earliest_ms.map_or(before_next, |bound_ms| before_next.min(layout.floor(bound_ms) - 1))
}

/// A prepared transaction, as the key of a lock that it holds. PostgreSQL keeps the locks of prepared transactions over
/// restarts and failovers, and releases them after the transaction's rows are visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedBound {
    pub xid: u32,
    /// At most that of the transaction.
    pub bound_ms: Option<i64>,
}

/// The bound as a part of the key: this many milliseconds, so that 32 bits last until 2109. Later bounds are too early,
/// which only delays consumers.
const PREPARED_UNIT_MS: i64 = 1024;
const PREPARED_NONE: u32 = u32::MAX;

impl PreparedBound {
    pub fn key(self) -> i64 {
        let units = self.bound_ms.map_or(PREPARED_NONE, |bound_ms| {
            (bound_ms / PREPARED_UNIT_MS).clamp(0, i64::from(PREPARED_NONE) - 1) as u32
        });
        (u64::from(self.xid) << 32 | u64::from(units)) as i64
    }

    pub fn of_key(key: i64) -> Self {
        let (xid, units) = ((key as u64 >> 32) as u32, key as u32);
        let bound_ms = (units != PREPARED_NONE).then(|| i64::from(units) * PREPARED_UNIT_MS);
        Self { xid, bound_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bound_is_the_earliest_until_it_is_cleared() {
        let bound = DrawBound::new();
        assert_eq!(bound.get(), None);
        [7, 5, 6].into_iter().for_each(|time_ms| bound.lower_to(time_ms));
        assert_eq!(bound.get(), Some(5));
        bound.clear();
        assert_eq!(bound.get(), None);
    }

    #[test]
    fn settled_ids_end_before_the_earliest_bound() {
        let layout = Layout::parse("time:41 worker:10 sequence:12 epoch:2020-01-01").unwrap();
        let at = |ms: i64| ms - layout.epoch_ms();
        let before_next = at(layout.epoch_ms() + 9) << 22 | 5;
        let settled = |bounds: &[i64]| {
            settled(&layout, || before_next, || bounds.iter().map(|ms| ms + layout.epoch_ms()).collect())
        };
        assert_eq!(settled(&[]), before_next);
        assert_eq!(settled(&[10, 20]), before_next);
        assert_eq!(settled(&[9, 7, 8]), (7 << 22) - 1);
        assert_eq!(settled(&[-5]), -1);
        assert_eq!(settled(&[1 << 41]), before_next);
    }

    proptest! {
        /// The bound of a prepared transaction is not later than the one it had, and at most a second earlier.
        #[test]
        fn prepared_bound_reads_back(xid in any::<u32>(), bound_ms in 0i64..4_398_046_510_000, drawn in any::<bool>()) {
            let prepared = PreparedBound { xid, bound_ms: drawn.then_some(bound_ms) };
            let read = PreparedBound::of_key(prepared.key());
            prop_assert_eq!(read.xid, xid);
            prop_assert_eq!(read.bound_ms.is_some(), drawn);
            prop_assert!(!drawn || (bound_ms - PREPARED_UNIT_MS + 1..=bound_ms).contains(&read.bound_ms.unwrap()));
        }
    }
}
