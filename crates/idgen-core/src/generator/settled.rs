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

/// A prepared transaction, as the keys of locks that it holds. PostgreSQL keeps the locks of prepared transactions over
/// restarts and failovers, and releases them after the transaction's rows are visible. The upper half of each key is the
/// transaction's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedDraw {
    pub xid: u32,
    /// `None` if it has drawn no id.
    pub earliest_ms: Option<i64>,
}

/// The lower halves of the keys of a prepared transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedKeys {
    /// The time in units, or `NO_DRAW`.
    pub units: u32,
    /// The milliseconds that units leave. Transactions that 0.14.0 prepared have no lock of it: their time is taken as up
    /// to a unit earlier, which only delays consumers.
    pub rest: Option<u32>,
}

/// Milliseconds, so that 32 bits of units last until 2109. Later times are taken as that, which only delays consumers.
const UNIT_MS: i64 = 1024;
const NO_DRAW: u32 = u32::MAX;

impl PreparedDraw {
    pub fn keys(self) -> PreparedKeys {
        let Some(time_ms) = self.earliest_ms else {
            return PreparedKeys { units: NO_DRAW, rest: None };
        };
        let units = (time_ms / UNIT_MS).clamp(0, i64::from(NO_DRAW) - 1) as u32;
        PreparedKeys { units, rest: Some((time_ms % UNIT_MS) as u32) }
    }

    pub fn of_keys(xid: u32, keys: PreparedKeys) -> Self {
        let time_ms = i64::from(keys.units) * UNIT_MS + i64::from(keys.rest.unwrap_or(0));
        Self { xid, earliest_ms: (keys.units != NO_DRAW).then_some(time_ms) }
    }

    /// The key of a lock with this lower half.
    pub fn key(self, lower: u32) -> i64 {
        (u64::from(self.xid) << 32 | u64::from(lower)) as i64
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
        #[test]
        fn prepared_draw_reads_back(xid in any::<u32>(), time_ms in 0i64..4_398_046_510_000, drawn in any::<bool>()) {
            let prepared = PreparedDraw { xid, earliest_ms: drawn.then_some(time_ms) };
            let keys = prepared.keys();
            prop_assert_eq!(PreparedDraw::of_keys(xid, keys), prepared);
            let of_release_0_14_0 = PreparedDraw::of_keys(xid, PreparedKeys { rest: None, ..keys });
            prop_assert_eq!(of_release_0_14_0.earliest_ms.is_some(), drawn);
            prop_assert!(!drawn || (time_ms - UNIT_MS + 1..=time_ms).contains(&of_release_0_14_0.earliest_ms.unwrap()));
        }
    }
}
