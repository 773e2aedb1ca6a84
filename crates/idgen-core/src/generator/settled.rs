//! Settled ids: no transaction of the server can commit a row with such an id any more.
//!
//! Each backend has an [`EarliestDraw`] in shared memory: no id that its transaction has drawn has an earlier time. The
//! order of accesses makes the answer correct, without a lock:
//!
//! - A transaction lowers its time, then draws. It clears the time after its rows are visible.
//! - A reader loads the generator's position, then these times.
//!
//! A draw that the position counts has released its time, so the reader sees the time, or that the transaction has ended.
//! A draw that the position does not count has a later id. A time in milliseconds serves all layouts: a transaction that
//! draws in several has the earliest of theirs.

use crate::layout::Layout;
use crate::snowflake::IdSpace;
use crate::sync::{AtomicI64, Ordering};

/// That of one backend, in cache lines of its own. A worker of a parallel query lowers that of its leader.
#[repr(C, align(128))]
pub struct EarliestDraw {
    /// Milliseconds since 1970, or `NONE`.
    time_ms: AtomicI64,
}

/// The transaction has drawn no id.
const NONE: i64 = i64::MAX;

impl EarliestDraw {
    #[allow(clippy::new_without_default, reason = "it is made in place, in shared memory")]
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
            // Release: a reader that sees no time sees what the transaction left, such as the lock of a prepared one.
            self.time_ms.store(NONE, Ordering::Release);
        }
    }

    /// `None` if the transaction has drawn no id.
    #[inline]
    pub fn get(&self) -> Option<i64> {
        Some(self.time_ms.load(Ordering::Acquire)).filter(|time_ms| *time_ms != NONE)
    }
}

/// The greatest settled id. `before_next` reads the space of the layout, and the greatest id below all later ones;
/// `open_ms` reads the earliest draws of the open transactions.
pub fn settled(
    layout: &Layout,
    before_next: impl FnOnce() -> (IdSpace, i64),
    open_ms: impl FnOnce() -> Vec<i64>,
) -> (IdSpace, i64) {
    // In this order: see above.
    let (space, before_next) = before_next();
    // A transaction past the end of the layout has drawn nothing in it.
    let earliest_ms = open_ms().into_iter().filter(|time_ms| *time_ms < layout.ends_at_ms()).min();
    (space, earliest_ms.map_or(before_next, |time_ms| before_next.min(layout.floor(time_ms) - 1)))
}

/// A prepared transaction, as the key of a lock that it holds. PostgreSQL keeps the locks of prepared transactions over
/// restarts and failovers, and releases them after the transaction's rows are visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedDraw {
    pub xid: u32,
    /// Not later than that of the transaction. `None` if it has drawn no id.
    pub earliest_ms: Option<i64>,
}

/// The time as a part of the key: this many milliseconds, so that 32 bits last until 2109. Later times are taken as that,
/// which only delays consumers.
const PREPARED_UNIT_MS: i64 = 1024;
const PREPARED_NOTHING: u32 = u32::MAX;

impl PreparedDraw {
    pub fn key(self) -> i64 {
        let units = self.earliest_ms.map_or(PREPARED_NOTHING, |time_ms| {
            (time_ms / PREPARED_UNIT_MS).clamp(0, i64::from(PREPARED_NOTHING) - 1) as u32
        });
        (u64::from(self.xid) << 32 | u64::from(units)) as i64
    }

    pub fn of_key(key: i64) -> Self {
        let (xid, units) = ((key as u64 >> 32) as u32, key as u32);
        let earliest_ms = (units != PREPARED_NOTHING).then(|| i64::from(units) * PREPARED_UNIT_MS);
        Self { xid, earliest_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Node;
    use proptest::prelude::*;

    #[test]
    fn earliest_draw_counts_until_it_is_cleared() {
        let earliest = EarliestDraw::new();
        assert_eq!(earliest.get(), None);
        [7, 5, 6].into_iter().for_each(|time_ms| earliest.lower_to(time_ms));
        assert_eq!(earliest.get(), Some(5));
        earliest.clear();
        assert_eq!(earliest.get(), None);
    }

    #[test]
    fn settled_ids_end_before_the_earliest_draw() {
        let layout = Layout::parse("time:41 worker:10 sequence:12 epoch:2020-01-01").unwrap();
        let at = |ms: i64| ms - layout.epoch_ms();
        let before_next = at(layout.epoch_ms() + 9) << 22 | 5;
        let space = layout.id_space(Node::default()).unwrap();
        let settled = |open: &[i64]| {
            let open_ms = || open.iter().map(|ms| ms + layout.epoch_ms()).collect();
            settled(&layout, || (space, before_next), open_ms).1
        };
        assert_eq!(settled(&[]), before_next);
        assert_eq!(settled(&[10, 20]), before_next);
        assert_eq!(settled(&[9, 7, 8]), (7 << 22) - 1);
        assert_eq!(settled(&[-5]), -1);
        assert_eq!(settled(&[1 << 41]), before_next);
    }

    proptest! {
        /// The time of a prepared transaction is not later than the one it had, and at most a second earlier.
        #[test]
        fn prepared_draw_reads_back(xid in any::<u32>(), time_ms in 0i64..4_398_046_510_000, drawn in any::<bool>()) {
            let prepared = PreparedDraw { xid, earliest_ms: drawn.then_some(time_ms) };
            let read = PreparedDraw::of_key(prepared.key());
            prop_assert_eq!(read.xid, xid);
            prop_assert_eq!(read.earliest_ms.is_some(), drawn);
            prop_assert!(!drawn || (time_ms - PREPARED_UNIT_MS + 1..=time_ms).contains(&read.earliest_ms.unwrap()));
        }
    }
}
