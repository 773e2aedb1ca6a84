//! The lease of this server's worker id, in shared memory.

use crate::coordinator::Held;
use crate::pg::latch::{self, ConditionVariable};
use crate::settings;
use crate::shmem::{FixedText, Locked, Part};
use idgen_core::coordinator::CoordinatorId;
use idgen_core::worker::Rectangle;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, AtomicUsize, Ordering::*};
use std::time::Duration;

pub static STATE: Part<WorkerState> = Part::new(c"idgen worker", |_| WorkerState::new());

/// The keeper writes it; sessions read it for their errors. Acquired under the generators' lock where a worker id and
/// its lease are published together.
pub static SERVER_LEASE: Locked<ServerLease> = Locked::new(c"idgen worker lease", 30, |_| ServerLease::default());

pub struct WorkerState {
    /// The file of the last lease could not be read when the server started: the server may have had a pool.
    pub is_file_unreadable: AtomicBool,
    /// A pool is configured, by the settings as the postmaster has read them. A long statement still has older ones.
    pub has_pool: AtomicBool,
    /// Ids were issued under the worker id that is set, before a pool was configured, and none was leased since.
    pub has_issued_by_hand: AtomicBool,
    pub keeper: KeeperHandle,
    pub renewals: AtomicU64,
    pub failures: AtomicU64,
    /// How often the worker id has changed.
    pub changes: AtomicU64,
    /// Signalled when the worker id or its lease has changed, and after each attempt of the keeper.
    pub changed: ConditionVariable,
}

/// The lease of this server, and the keeper's last attempts.
#[derive(Clone, Copy, Default)]
pub struct ServerLease {
    /// The pool of the lease.
    pub pool: FixedText<255>,
    /// The lease under which ids are issued.
    pub current: Option<WorkerLease>,
    /// Acquired, but not confirmed to be on the coordinator's standbys: no id is issued under it.
    pub pending: Option<WorkerLease>,
    pub ttl: Duration,
    /// When the last grant or renewal was requested, by CLOCK_BOOTTIME in microseconds.
    pub renewed_us: i64,
    /// The last grant or renewal ends before the time that the server's ids or clock have reached, or soon after it:
    /// the coordinator allows no more.
    pub falls_short: bool,
    /// Milliseconds since 1970; `None` if the last attempt succeeded.
    pub failing_since_ms: Option<i64>,
    pub last_error: FixedText<800>,
    /// Host and port of the last answer.
    pub coordinator: FixedText<255>,
}

/// A worker id that a coordinator has granted to this server.
#[derive(Clone, Copy)]
pub struct WorkerLease {
    pub worker_id: u32,
    pub token: i64,
    pub coordinator: CoordinatorId,
    /// The id times that this server may use. The end is confirmed: every standby that may be promoted has it.
    pub rectangle: Rectangle,
    /// The last `not_after` that the coordinator has returned, confirmed or not. The next renewal compares it.
    pub last_not_after_us: i64,
}

impl WorkerLease {
    /// The worker id as this server speaks of it to its coordinator.
    pub fn held<'a>(&self, pool: &'a str) -> Held<'a> {
        Held { pool, token: self.token, not_after_us: self.last_not_after_us }
    }
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

impl WorkerState {
    fn new() -> Self {
        Self {
            is_file_unreadable: AtomicBool::new(false),
            has_pool: AtomicBool::new(settings::has_worker_pool()),
            has_issued_by_hand: AtomicBool::new(false),
            keeper: KeeperHandle::new(),
            renewals: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            changed: ConditionVariable::new(),
        }
    }
}

pub fn reset_counters() {
    if let Some(state) = STATE.get() {
        for counter in [&state.renewals, &state.failures, &state.changes] {
            counter.store(0, Relaxed);
        }
    }
}

/// The keeper's process, and the request of sessions.
pub struct KeeperHandle {
    /// 0 if the keeper is not running, here and below.
    pid: AtomicI32,
    latch: AtomicUsize,
    /// A session needs id times beyond this, in milliseconds since 1970; else `NO_REQUEST`.
    needed_ms: AtomicI64,
}

pub const NO_REQUEST: i64 = i64::MIN;

impl KeeperHandle {
    fn new() -> Self {
        Self { pid: AtomicI32::new(0), latch: AtomicUsize::new(0), needed_ms: AtomicI64::new(NO_REQUEST) }
    }

    /// `None` if the keeper is not running.
    pub fn pid(&self) -> Option<i32> {
        Some(self.pid.load(Relaxed)).filter(|pid| *pid > 0)
    }

    /// Makes the keeper renew the lease now, beyond this time.
    pub fn request_beyond(&self, time_ms: i64) {
        // Before the latch is set: the keeper resets the latch, then reads the request.
        self.needed_ms.fetch_max(time_ms, Release);
        let latch = self.latch.load(Acquire);
        if latch != 0 {
            // SAFETY: `enter` has stored the address.
            unsafe { latch::set_at(latch) };
        }
    }

    pub fn take_request(&self) -> i64 {
        self.needed_ms.swap(NO_REQUEST, AcqRel)
    }

    /// Makes this process the keeper. PostgreSQL starts the next one only after this one has ended.
    pub fn enter(&self) {
        self.pid.store(std::process::id() as i32, Relaxed);
        self.latch.store(latch::address(), Release);
    }

    pub fn leave(&self) {
        self.latch.store(0, Release);
        self.pid.store(0, Release);
    }
}
