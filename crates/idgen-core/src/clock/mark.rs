//! The mark and the lease end, and the ceiling that they make.

use crate::sync::{AtomicI64, Ordering};

/// In shared memory, in cache lines of its own: see `Generator`. The process that has written the file publishes the
/// mark; the process that renews the lease publishes its end. All in milliseconds since 1970.
#[repr(C, align(128))]
pub struct Mark {
    /// `UNKNOWN` until the file has been read.
    mark_ms: AtomicI64,
    due_ms: AtomicI64,
    lease_end_ms: AtomicI64,
    /// The earlier of `due_ms` and `lease_end_ms`, so that the hot path reads one word.
    early_ceiling_ms: AtomicI64,
}

/// Before every time, so that nothing may be issued.
pub(super) const UNKNOWN: i64 = i64::MIN;

/// The next mark, and the time at which the move after it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub mark_ms: i64,
    pub due_ms: i64,
}

impl Target {
    /// The mark that the file has already: the next move is due before the first id.
    pub fn at(mark_ms: i64) -> Self {
        Self { mark_ms, due_ms: mark_ms }
    }

    /// For ids with times up to `limit_ms`. The next move is due after a window, and has half a window of time before
    /// ids reach the mark. So the mark moves at most once a window.
    pub fn past(limit_ms: i64, window_ms: i64) -> Self {
        let due_ms = limit_ms.saturating_add(window_ms);
        Self { mark_ms: due_ms.saturating_add(window_ms / 2), due_ms }
    }
}

/// The part of the ceiling that keeps ids from being issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The ceiling has moved since.
    Gone,
    /// The mark: move it past this time.
    Mark { reserve_ms: i64 },
    /// The lease end.
    LeaseEnd,
}

impl Mark {
    /// The file is not read yet, and no lease limits the worker id.
    pub fn unknown() -> Self {
        Self {
            mark_ms: AtomicI64::new(UNKNOWN),
            due_ms: AtomicI64::new(UNKNOWN),
            lease_end_ms: AtomicI64::new(i64::MAX),
            early_ceiling_ms: AtomicI64::new(UNKNOWN),
        }
    }

    /// The mark; `None` until a record of the file promises it, which can be later than the file is read.
    pub fn known_ms(&self) -> Option<i64> {
        Some(self.mark_ms()).filter(|mark_ms| *mark_ms != UNKNOWN)
    }

    #[inline]
    pub fn mark_ms(&self) -> i64 {
        // Acquire: the file holds the mark that is read here.
        self.mark_ms.load(Ordering::Acquire)
    }

    pub fn due_ms(&self) -> i64 {
        self.due_ms.load(Ordering::Relaxed)
    }

    pub fn lease_end_ms(&self) -> i64 {
        // Relaxed: a draw of a tenancy that has ended fails, whatever lease end it has read, see `crate::tenancy`.
        self.lease_end_ms.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn early_ceiling_ms(&self) -> i64 {
        // Acquire: as in `mark_ms`, because a due time can be past the mark before.
        self.early_ceiling_ms.load(Ordering::Acquire)
    }

    pub fn ceiling_ms(&self) -> i64 {
        self.mark_ms().min(self.lease_end_ms())
    }

    /// The obstacle for ids up to `time_ms`, the first of which was found to be at or above `ceiling_ms`. Judged by the
    /// ceiling that was seen: if it has moved since, the other half of the minimum has stopped no id.
    pub fn obstacle(&self, ceiling_ms: i64, time_ms: i64) -> Obstacle {
        let (mark_ms, lease_end_ms) = (self.mark_ms(), self.lease_end_ms());
        if mark_ms.min(lease_end_ms) != ceiling_ms {
            Obstacle::Gone
        } else if mark_ms < lease_end_ms {
            // If the lease ends within the run, a part of it can be issued.
            Obstacle::Mark { reserve_ms: time_ms.min(lease_end_ms - 1) }
        } else {
            Obstacle::LeaseEnd
        }
    }

    /// Publishes the mark that the file holds. For the holder of the generators' lock. The mark never moves back while
    /// the server runs.
    pub fn publish(&self, target: Target) {
        self.mark_ms.fetch_max(target.mark_ms, Ordering::Release);
        self.due_ms.fetch_max(target.due_ms, Ordering::Relaxed);
        // After the mark: a due time read as part of the early ceiling must never be past the mark.
        self.publish_early_ceiling();
    }

    /// Publishes the lease end. For the holder of the generators' lock: without it, a concurrent change of the other
    /// half of the minimum could be lost, and ids could pass the end of the lease.
    pub fn set_lease_end(&self, lease_end_ms: i64) {
        self.lease_end_ms.store(lease_end_ms, Ordering::Relaxed);
        self.publish_early_ceiling();
    }

    fn publish_early_ceiling(&self) {
        let ceiling_ms = self.due_ms.load(Ordering::Relaxed).min(self.lease_end_ms.load(Ordering::Relaxed));
        self.early_ceiling_ms.store(ceiling_ms, Ordering::Release);
    }
}
