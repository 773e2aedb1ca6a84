//! What a keeper reads and changes: its server, and the coordinator. Between two calls, sessions may draw, and each process may
//! end.

use super::by_hand::WorkerSetting;
use super::lease::{ServerLease, WorkerLease};
use super::memory::{LastWorkerId, MemoryFile};
use crate::coordinator::{CoordinatorId, Place};
use std::ffi::{CStr, CString};
use std::time::Duration;

/// The pool from which a server leases its worker id, and the connection string of its coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredPool {
    pub name: String,
    pub coordinator: CString,
}

/// No session needs times beyond the end of the lease.
pub const NO_REQUEST: i64 = i64::MIN;

pub trait Server {
    type Error: Failure;
    type Coordinator: Coordinator<Error = Self::Error>;

    /// Microseconds by a clock that never steps.
    fn boot_us(&self) -> i64;
    /// Microseconds since 1970 by the wall clock.
    fn now_us(&self) -> i64;
    /// Random in [0, 1).
    fn random_fraction(&mut self) -> f64;
    fn setting(&self) -> WorkerSetting;

    /// The file in which this server remembers its worker id.
    fn read_memory(&self) -> MemoryFile;
    /// The place of this server; `None` if it cannot be read.
    fn here(&self) -> Option<Place>;
    /// Makes the file have this worker id and this place, durably.
    fn write_memory(&mut self, worker: LastWorkerId) -> Result<(), Self::Error>;
    /// The same, where operators alone hear of a failure.
    fn try_write_memory(&mut self, worker: LastWorkerId);

    /// Takes the time that sessions need, in milliseconds since 1970, or [`NO_REQUEST`].
    fn take_request(&mut self) -> i64;
    /// The latest time of a next id, in milliseconds since 1970.
    fn next_ms(&self) -> i64;
    /// The first millisecond that no id of any layout has used.
    fn unused_from_ms(&self) -> i64;
    /// Shows the lease to sessions.
    fn store(&mut self, lease: &ServerLease);
    /// As `store`, with the name of the pool of the current lease.
    fn publish(&mut self, pool: &str, lease: &ServerLease);
    /// Publishes, and in the same moment makes ids begin under the worker id and within the rectangle of the current lease.
    fn issue_leased(&mut self, pool: &str, lease: &ServerLease);
    /// From now on ids are issued under the worker id of the settings, within all times.
    fn issue_by_setting(&mut self);
    /// From now on no ids are issued.
    fn issue_nothing(&mut self);
    fn extend_to(&mut self, end_ms: i64);
    /// Shows that there is no lease.
    fn clear(&mut self);

    /// Failed attempts in a row.
    fn failures(&self) -> u32;
    /// How long the last connection took; zero before the first one.
    fn connected_in(&self) -> Duration;
    /// The wait for the coordinator has to end: a stop is requested, or the settings may have changed.
    fn is_interrupted(&self) -> bool;
    /// A connection for an attempt. A call on it takes this long at most.
    fn open(&mut self, limit: Duration) -> Result<Self::Coordinator, Self::Error>;
    /// The attempt has succeeded, and the next one is due after the pause.
    fn answered(&mut self, coordinator: Self::Coordinator, pause: Duration);
    /// The attempt has failed, and the next one is due after the pause. Shows the error with the lease. `is_first`: no
    /// attempt has failed since the last success.
    fn failed(&mut self, pool: &str, error: &Self::Error, is_first: bool, lease: &ServerLease, pause: Duration);
    /// The coordinator may be another one, and what failed may succeed.
    fn reset(&mut self);
    /// Calls on a connection of their own, as to a former coordinator. Closes the one that is kept.
    fn once<R>(
        &mut self,
        coordinator: &CStr,
        limit: Duration,
        until: Interrupt,
        calls: impl FnOnce(&mut Self::Coordinator) -> Result<R, Self::Error>,
    ) -> Result<R, Self::Error>;

    fn tell(&mut self, pool: &str, event: Event<Self::Error>);
}

/// What ends a wait for the coordinator early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    Stop,
    Never,
}

/// What operators hear of.
#[derive(Debug)]
pub enum Event<'a, E> {
    Renewed,
    /// The server has this worker id, and had another one or none.
    Changed(u32),
    /// Another server may use this worker id, which is set.
    NotFree(u32),
    Lost(u32, &'a E),
    NotReleased(u32, &'a E),
    /// The first success after a failure.
    Recovered,
}

pub trait Failure {
    /// The coordinator has answered with an error.
    fn is_refusal(&self) -> bool;
    /// Of a coordinator that has not granted the lease.
    fn another_coordinator() -> Self;
}

/// A connection to a coordinator. Each call is a statement of its own, whose answer can be lost.
pub trait Coordinator {
    type Error;

    fn identity(&self) -> CoordinatorId;
    /// Acquires a worker id for the ttl of the pool, from the time that the server has reached. Returns the ttl too.
    fn acquire(
        &mut self,
        pool: &str,
        reached_us: i64,
        prefer: Option<u32>,
    ) -> Result<(WorkerLease, Duration), Self::Error>;
    /// Renews a worker id if its end is the last known one. Returns the new end and the ttl of the pool.
    fn renew(&mut self, pool: &str, lease: &WorkerLease, reached_us: i64) -> Result<(i64, Duration), Self::Error>;
    /// Waits until the synchronous standbys have the rectangle, and returns its end.
    fn confirm(&mut self, pool: &str, token: i64) -> Result<i64, Self::Error>;
    /// After a refusal: true if the token is current, and its end the last known one.
    fn holds(&mut self, pool: &str, lease: &WorkerLease, refusal: &Self::Error) -> Result<bool, Self::Error>;
    /// Releases a worker id. `last` is the last microsecond since 1970 that was used, which counts only if the end is the
    /// last known one, and that end. `None`: all id times count as used, whatever the end.
    fn release(&mut self, pool: &str, token: i64, last: Option<(i64, i64)>) -> Result<(), Self::Error>;
}
