//! The lease of a server's worker id, as its keeper knows it.

use super::Rectangle;
use crate::coordinator::CoordinatorId;
use std::time::Duration;

/// A worker id that a coordinator has granted to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLease {
    pub worker_id: u32,
    pub token: i64,
    pub coordinator: CoordinatorId,
    /// The id times that this server may use. The end is confirmed: every standby that may be promoted has it.
    pub rectangle: Rectangle,
    /// The last `not_after` that the coordinator has returned, confirmed or not. The next renewal compares it.
    pub last_not_after_us: i64,
}

/// The lease of this server, and the keeper's last attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerLease {
    pub current: Option<WorkerLease>,
    /// Acquired, but not confirmed to be on the coordinator's standbys: no id is issued under it.
    pub pending: Option<WorkerLease>,
    pub ttl: Duration,
    /// When the last grant or renewal was requested, by the clock that never steps, in microseconds.
    pub renewed_us: i64,
    /// The last grant or renewal ends before the time that the server's ids or clock have reached, or soon after it:
    /// the coordinator allows no more.
    pub falls_short: bool,
    /// Milliseconds since 1970; `None` if the last attempt succeeded.
    pub failing_since_ms: Option<i64>,
}

impl ServerLease {
    pub fn rectangle(&self) -> Option<Rectangle> {
        self.current.map(|lease| lease.rectangle)
    }

    /// The lease to renew: one that is not confirmed yet, else the current one.
    pub fn newest(&self) -> Option<WorkerLease> {
        self.pending.or(self.current)
    }

    /// True if it was not renewed for its ttl, and the time that a renewal takes.
    pub fn is_overdue(&self, now_us: i64) -> bool {
        now_us.saturating_sub(self.renewed_us) >= self.ttl.as_micros() as i64 + 1_000_000
    }
}
