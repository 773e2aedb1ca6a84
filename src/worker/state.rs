//! The lease of this server's worker id: in shared memory, and in a file that survives a restart.

use crate::pg::latch::{self, ConditionVariable};
use crate::pg::recovery;
use crate::place;
use crate::settings;
use crate::shmem::{FixedText, Locked, Part};
use crate::snowflake::node;
use idgen_core::worker::by_hand::WorkerSetting;
use idgen_core::worker::lease::ServerLease;
use idgen_core::worker::memory::{LastWorkerId, Memory, MemoryFile};
use idgen_core::worker::server::NO_REQUEST;
use std::fs;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, AtomicUsize, Ordering::*};

pub static STATE: Part<WorkerState> = Part::new(c"idgen worker", |_| WorkerState {
    has_pool: AtomicBool::new(settings::has_worker_pool()),
    keeper: KeeperHandle { needed_ms: AtomicI64::new(NO_REQUEST), ..KeeperHandle::default() },
    ..WorkerState::default()
});

/// The keeper writes it; sessions read it for their errors. Acquired under the generators' lock where a worker id and
/// its lease are published together.
pub static SERVER_LEASE: Locked<SharedLease> = Locked::new(c"idgen worker lease", 30, |_| SharedLease::default());

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

/// The lease of this server, and what the keeper tells of it.
#[derive(Clone, Copy, Default)]
pub struct SharedLease {
    pub lease: ServerLease,
    /// The pool of the current lease.
    pub pool: FixedText<255>,
    /// Of the last attempt, if it has failed.
    pub last_error: FixedText<800>,
    /// Host and port of the last answer.
    pub coordinator: FixedText<255>,
}

/// The worker id of the settings, as the postmaster and sessions use it.
pub fn worker_setting() -> WorkerSetting {
    WorkerSetting {
        worker_id: settings::node().worker,
        is_undecided: settings::worker_undecided(),
        is_in_use: node::CURRENT.require().is_setting(),
        has_issued: STATE.require().has_issued_by_hand.load(Acquire),
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
    /// A session needs id times beyond this, in milliseconds since 1970; else [`NO_REQUEST`].
    needed_ms: AtomicI64,
}

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

/// The file of [`MemoryFile`]. It is not in the directory of the high-water file: an operator removes that directory when the
/// mark is lost, and this file must survive that. `pg_basebackup` copies the file.
pub const MEMORY_FILE: &str = "idgen_worker";

pub fn read_memory() -> MemoryFile {
    match fs::read(MEMORY_FILE) {
        Ok(bytes) => Memory::decode(&bytes).map_or_else(
            || MemoryFile::Unreadable("its checksum or its format is wrong".to_owned()),
            MemoryFile::Valid,
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => MemoryFile::Missing,
        Err(error) => MemoryFile::Unreadable(error.to_string()),
    }
}

/// Makes the file have this worker id, durably.
pub fn write_memory(worker: LastWorkerId) -> io::Result<()> {
    let place = place::read().map_err(|(_, error)| error)?;
    recovery::replace_file(MEMORY_FILE, Memory { place, worker }.encode().as_bytes())
}
