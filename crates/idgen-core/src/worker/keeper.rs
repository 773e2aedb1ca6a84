//! The keeper of a server: it leases the worker id of the server from the coordinator, renews the lease long before it ends,
//! follows the settings, and gives former worker ids back.

use super::lease::{ServerLease, WorkerLease};
use super::memory::LastWorkerId;
use super::pace::Pace;
use super::server::{ConfiguredPool, Coordinator, Event, Failure, Interrupt, NO_REQUEST, Server};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Keeper {
    pub(super) pool: Option<ConfiguredPool>,
    /// The pool of the current lease, if the configuration has changed since it was granted.
    pub(super) former: Option<ConfiguredPool>,
    pub(super) lease: ServerLease,
    pub(super) pace: Pace,
    /// The request of sessions, until it is fulfilled.
    pub(super) needed_ms: i64,
    /// When the requests were last read, as `renewed_us`.
    pub(super) requested_us: i64,
    /// When the next attempt is due, by the same clock.
    due_us: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next turn: signals during an attempt may have been missed.
    Turn,
    /// Until a signal; after this time in any case.
    Sleep(Option<Duration>),
}

/// Until the coordinator has told the ttl of the pool.
const FIRST_PACE: Pace = Pace { ttl: Duration::from_secs(30) };

/// The longest time that a stop of the server waits for its worker id to be given back.
pub(super) const LONGEST_US: i64 = 5_000_000;

impl Keeper {
    /// Continues the lease of an earlier keeper of this server. `pool` is that of the lease.
    pub fn new(lease: ServerLease, pool: Option<ConfiguredPool>) -> Self {
        let pace = lease.newest().map_or(FIRST_PACE, |_| Pace { ttl: lease.ttl });
        Self { pool, former: None, lease, pace, needed_ms: NO_REQUEST, requested_us: 0, due_us: i64::MIN }
    }

    /// Applies the current settings.
    pub fn follow<S: Server>(&mut self, server: &mut S, pool: Option<ConfiguredPool>) {
        // An earlier keeper may have ended before it left its pool, and may have had no lease.
        let setting = server.setting();
        let must_leave = pool.is_none() && !setting.is_undecided && !setting.is_in_use;
        if pool == self.pool && !must_leave {
            return;
        }
        match &pool {
            Some(_) => self.change_pool(server),
            None => self.leave_pool(server),
        }
        server.reset();
        self.due_us = server.boot_us();
        self.pool = pool;
    }

    /// The new pool may know the current lease: the pool was moved, or only its address has changed. Until that is
    /// known, ids go on under the lease. A lease that is not confirmed is ended, so that it occupies no worker id.
    fn change_pool<S: Server>(&mut self, server: &mut S) {
        self.lease.pending = None;
        server.store(&self.lease);
        if self.former.is_none() && self.lease.current.is_some() {
            self.former = self.pool.take();
        }
    }

    fn leave_pool<S: Server>(&mut self, server: &mut S) {
        self.give_back(server, Interrupt::Stop);
        if !server.setting().is_undecided {
            server.issue_by_setting();
            // The worker id is a setting: no pool is in charge of it.
            server.try_write_memory(LastWorkerId::Unknown);
        }
        self.lease = ServerLease::default();
        server.clear();
    }

    /// Makes an attempt if it is due, or if sessions request it.
    pub fn turn<S: Server>(&mut self, server: &mut S) -> Next {
        // Before the requests are read: this attempt fulfills every request made before this time.
        self.requested_us = server.boot_us();
        self.needed_ms = server.take_request().max(self.needed_ms);
        if self.pool.is_none() {
            return Next::Sleep(None);
        }
        // After a failure requests do not shorten the pause.
        let is_requested = self.needed_ms != NO_REQUEST && server.failures() == 0;
        let pause_us = self.due_us.saturating_sub(server.boot_us()).max(0);
        if !is_requested && pause_us > 0 {
            return Next::Sleep(Some(Duration::from_micros(pause_us as u64)));
        }
        let pause = self.attempt(server);
        self.due_us = server.boot_us().saturating_add(pause.as_micros() as i64);
        Next::Turn
    }

    /// Makes one attempt, and tells its outcome. Returns the pause until the next one.
    fn attempt<S: Server>(&mut self, server: &mut S) -> Duration {
        match self.renew_or_acquire(server) {
            Ok(pause) => {
                self.needed_ms = NO_REQUEST;
                if self.lease.failing_since_ms.take().is_some() {
                    server.store(&self.lease);
                    server.tell(self.pool_name(), Event::Recovered);
                }
                pause
            }
            // Not a failure: this process has ended the attempt.
            Err(_) if server.is_interrupted() => Duration::ZERO,
            Err(error) => {
                if error.is_refusal() {
                    // Perhaps because of a time that is too far ahead. The clock of the session may be right again. A session
                    // that still needs such a time asks again.
                    self.needed_ms = NO_REQUEST;
                }
                let is_first = self.lease.failing_since_ms.is_none();
                self.lease.failing_since_ms.get_or_insert_with(|| server.now_us().div_euclid(1000));
                let pause = self.pace.retry_after(server.failures(), server.random_fraction());
                server.failed(self.pool_name(), &error, is_first, &self.lease, pause);
                pause
            }
        }
    }

    /// Ends issuing, and gives the worker id back with the last time used. So the next holder, which may be this server
    /// after a restart, begins right after it.
    pub fn give_back<S: Server>(&mut self, server: &mut S, until: Interrupt) {
        let (current, pending) = (self.lease.current.take(), self.lease.pending.take());
        server.store(&self.lease);
        let (former, pool) = (self.former.take(), self.pool.take());
        let end_us = server.boot_us() + LONGEST_US;
        if let (Some(current), Some(pool)) = (current, former.as_ref().or(pool.as_ref())) {
            server.issue_nothing();
            let last_us = last_used_us(server);
            give_back(server, pool, &current, Some(last_us), end_us, until);
        }
        // No id was issued under it here, but a copy of this server's memory may have it too.
        if let (Some(pending), Some(pool)) = (pending, &pool) {
            give_back(server, pool, &pending, None, end_us, until);
        }
        self.pace = FIRST_PACE;
    }

    pub fn pool_name(&self) -> &str {
        self.pool.as_ref().map_or("", |pool| &pool.name)
    }
}

/// Releases a worker id at one of two addresses, until this time. Without the last time used, or if that is not certain, all
/// id times count as used. Tells a failure: the lease ends by itself.
pub(super) fn give_back<S: Server>(
    server: &mut S,
    pool: &ConfiguredPool,
    lease: &WorkerLease,
    last_us: Option<i64>,
    end_us: i64,
    until: Interrupt,
) {
    let mut release = || {
        let left_us = end_us.saturating_sub(server.boot_us()).clamp(0, LONGEST_US / 2);
        server.once(&pool.coordinator, Duration::from_micros(left_us as u64), until, |coordinator| {
            if lease.coordinator != coordinator.identity() {
                return Err(S::Error::another_coordinator());
            }
            let Some(last_us) = last_us else { return end(coordinator, &pool.name, lease.token) };
            match coordinator.release(&pool.name, lease.token, Some((last_us, lease.last_not_after_us))) {
                // A renewal got no answer, or another process with the token may have used later times.
                Err(error) if has_lost(coordinator, &pool.name, lease, &error)? => {
                    coordinator.release(&pool.name, lease.token, None)
                }
                outcome => outcome,
            }
        })
    };
    if let Err(error) = release().or_else(|_| release()) {
        server.tell(&pool.name, Event::NotReleased(lease.worker_id, &error));
    }
}

/// The last microsecond since 1970 that an id of any layout may have used.
pub(super) fn last_used_us(server: &impl Server) -> i64 {
    server.unused_from_ms().saturating_mul(1000).saturating_sub(1)
}

/// Ends a worker id that is lost already, or never used again. All id times of its rectangle count as used. If the
/// coordinator refuses that, the worker id ends by itself.
pub(super) fn end<C: Coordinator<Error: Failure>>(coordinator: &mut C, pool: &str, token: i64) -> Result<(), C::Error> {
    coordinator.release(pool, token, None).or_else(|error| error.is_refusal().then_some(()).ok_or(error))
}

/// True if a worker id is lost whose renewal or release has failed: it has another holder, or another process with its
/// token has renewed it. The data tell that, not the kind of error. If they cannot be read, that is another failure.
pub(super) fn has_lost<C: Coordinator<Error: Failure>>(
    coordinator: &mut C,
    pool: &str,
    lease: &WorkerLease,
    error: &C::Error,
) -> Result<bool, C::Error> {
    Ok(error.is_refusal() && !coordinator.holds(pool, lease, error)?)
}
