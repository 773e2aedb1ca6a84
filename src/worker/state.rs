//! The lease of this server's worker id: in shared memory, and in a file that survives a restart.

use crate::pg::latch::{self, ConditionVariable};
use crate::pg::libpq::Error;
use crate::pg::{recovery, system_clock};
use crate::place;
use crate::settings;
use crate::shmem::{FixedText, Locked, Part};
use crate::snowflake::node;
use idgen_core::coordinator::CoordinatorId;
use idgen_core::worker::Rectangle;
use idgen_core::worker::memory::{LastWorkerId, Memory, RememberedLease};
use std::fs;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, AtomicUsize, Ordering::*};
use std::time::Duration;

pub static STATE: Part<WorkerState> = Part::new(c"idgen worker", |_| WorkerState {
    has_pool: AtomicBool::new(settings::has_worker_pool()),
    keeper: KeeperHandle { needed_ms: AtomicI64::new(NO_REQUEST), ..KeeperHandle::default() },
    ..WorkerState::default()
});

/// The keeper writes it; sessions read it for their errors. Acquired under the generators' lock where a worker id and
/// its lease are published together.
pub static SERVER_LEASE: Locked<ServerLease> = Locked::new(c"idgen worker lease", 30, |_| ServerLease::default());

#[derive(Default)]
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

impl ServerLease {
    pub fn rectangle(&self) -> Option<Rectangle> {
        self.current.map(|lease| lease.rectangle)
    }

    /// The lease to renew: one that is not confirmed yet, else the current one.
    pub fn newest(&self) -> Option<WorkerLease> {
        self.pending.or(self.current)
    }

    /// One of the leases has this token.
    pub fn has(&self, token: i64) -> bool {
        [self.current, self.pending].iter().flatten().any(|lease| lease.token == token)
    }

    /// Stores the outcome of an attempt. True for the first failure in a row, and for the success after it.
    pub fn note(&mut self, error: Option<&str>) -> bool {
        let was_failing = self.failing_since_ms.is_some();
        match error {
            None => {
                self.failing_since_ms = None;
                self.last_error.clear();
            }
            Some(error) => {
                self.failing_since_ms.get_or_insert_with(system_clock::wall_ms);
                self.last_error.set(error);
            }
        }
        was_failing != error.is_some()
    }

    /// True if it was not renewed for its ttl, and the time that a renewal takes.
    pub fn is_overdue(&self, now_us: i64) -> bool {
        now_us.saturating_sub(self.renewed_us) >= self.ttl.as_micros() as i64 + 1_000_000
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
#[derive(Default)]
pub struct KeeperHandle {
    /// 0 if the keeper is not running, here and below.
    pid: AtomicI32,
    latch: AtomicUsize,
    /// A session needs id times beyond this, in milliseconds since 1970; else `NO_REQUEST`.
    needed_ms: AtomicI64,
}

pub const NO_REQUEST: i64 = i64::MIN;

impl KeeperHandle {
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

/// The file `idgen_worker` in the data directory: whether this server has or had a pool of worker ids, and its last
/// worker id.
///
/// A worker id that is not set acts as 0 only if the file does not exist: otherwise the pool may have granted 0 to
/// another server. Beside a pool, one that is set counts only if the file has it, and this place has written the file:
/// a standby, a restored backup and a rewound server know nothing of what the pool has granted.
///
/// The file is not in the directory of the high-water file: an operator removes that directory when the mark is lost,
/// and this file must survive that. `pg_basebackup` copies the file. So a copy without a pool has no worker id until
/// one is set. The copy does not release its origin's lease, because the file names the place that it was written in.
#[derive(PartialEq)]
pub enum LeaseFile {
    /// No worker id was ever leased to this server.
    Missing,
    Valid(Memory),
    /// The reason. The server may have had a pool.
    Unreadable(String),
}

impl LeaseFile {
    pub const PATH: &str = "idgen_worker";

    pub fn read() -> Self {
        match fs::read(Self::PATH) {
            Ok(bytes) => Memory::decode(&bytes)
                .map_or_else(|| Self::Unreadable("its checksum or its format is wrong".to_owned()), Self::Valid),
            Err(error) if error.kind() == ErrorKind::NotFound => Self::Missing,
            Err(error) => Self::Unreadable(error.to_string()),
        }
    }

    /// The lease in the file. `None` if another directory has written the file: this directory is a copy, and the lease is
    /// its origin's.
    pub fn remembered() -> Option<RememberedLease> {
        let Self::Valid(Memory { worker: LastWorkerId::Leased(lease), place }) = Self::read() else { return None };
        place::read().is_ok_and(|here| here.is_directory_of(&place)).then_some(lease)
    }

    /// Records durably that this server has a pool, and the worker id by hand under which it has issued ids, before its first
    /// lease. Keeps what the file says of an earlier lease, also if it is unreadable: only the next lease replaces it.
    pub fn remember_pool() -> Result<(), Error> {
        let has_issued_by_hand =
            node::CURRENT.require().is_setting() && STATE.require().has_issued_by_hand.load(Relaxed);
        let worker = match has_issued_by_hand {
            true => LastWorkerId::ByHand(settings::node().worker),
            false => LastWorkerId::Unknown,
        };
        let is_current = match Self::read() {
            Self::Unreadable(_) | Self::Valid(Memory { worker: LastWorkerId::Leased(_), .. }) => true,
            Self::Valid(memory) => memory.worker == worker && place::read().is_ok_and(|here| here == memory.place),
            Self::Missing => false,
        };
        if is_current { Ok(()) } else { Self::write(worker).map_err(Self::unwritten) }
    }

    /// Records durably the lease that ids are about to be issued under.
    pub fn remember(pool: &str, lease: &WorkerLease) -> Result<(), Error> {
        let WorkerLease { coordinator, token, worker_id, .. } = *lease;
        let leased = LastWorkerId::Leased(RememberedLease { pool: pool.to_owned(), coordinator, token, worker_id });
        let is_current = matches!(Self::read(), Self::Valid(memory) if memory.worker == leased);
        if is_current { Ok(()) } else { Self::write(leased).map_err(Self::unwritten) }
    }

    /// Makes the file have this worker id, durably.
    pub fn write(worker: LastWorkerId) -> io::Result<()> {
        let place = place::read().map_err(|(_, error)| error)?;
        recovery::replace_file(Self::PATH, Memory { place, worker }.encode().as_bytes())
    }

    fn unwritten(error: io::Error) -> Error {
        Error::new(format!("could not write file \"{}\": {error}", Self::PATH))
    }
}
