//! One attempt of the keeper: it connects to the coordinator, renews or acquires, and confirms. It also gives former
//! worker ids back.
//!
//! A grant is used only after the coordinator has confirmed it. Before that, only the coordinator itself may have it,
//! and a standby that is promoted may not.

use super::errors;
use super::keeper::{FIRST_PACE, Keeper, is_interrupted, is_stop_requested};
use super::lease_file;
use super::state::{SERVER_LEASE, STATE, WorkerLease};
use crate::clock;
use crate::coordinator::{self, COORDINATOR_WAIT, Coordinator, Granted};
use crate::pg::libpq::{Error, Timeout};
use crate::pg::{session, system_clock};
use crate::settings::{self, Pool};
use crate::snowflake::node;
use idgen_core::worker::Rectangle;
use idgen_core::worker::pace::Pace;
use pgrx::prelude::*;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

impl Keeper {
    /// Returns the pause until the next attempt. Keeps the connection, if the coordinator has room: a new one costs the
    /// coordinator several times the CPU time of a renewal.
    pub fn attempt(&mut self) -> Result<Duration, Error> {
        let reached_ms = self.reached_ms();
        lease_file::remember_pool()?;
        if self.pool.is_none() {
            return Err(Error::new("idgen.worker_pool is not set"));
        }
        let duration = self.pace.patience(self.client.link.failures, self.client.connected_in);
        let mut coordinator = self.client.open(Timeout { duration, event: &COORDINATOR_WAIT, is_interrupted })?;
        let is_renewed = self.lease_from(&mut coordinator, reached_ms)?;
        // After a common start or a common outage, servers spread their renewals.
        let pause = match is_renewed && self.client.link.failures == 0 {
            true => self.pace.renew_after(session::random_fraction()),
            false => self.pace.first_renewal_after(session::random_fraction()),
        };
        self.client.answered(coordinator);
        self.client.link.pause(Instant::now() + pause);
        Ok(pause)
    }

    /// Renews or acquires, and confirms. True if it has renewed.
    fn lease_from(&mut self, coordinator: &mut Coordinator, reached_ms: i64) -> Result<bool, Error> {
        self.end_abandoned(coordinator)?;
        // Another coordinator than the one that granted the lease does not know it.
        let is_renewed = match newest_lease().filter(|lease| lease.coordinator == coordinator.identity) {
            Some(lease) => self.renew(coordinator, lease, reached_ms)?,
            None => false,
        };
        if !is_renewed {
            self.acquire(coordinator, reached_ms)?;
        }
        self.confirm(coordinator, reached_ms)?;
        let host = coordinator.host();
        SERVER_LEASE.exclusive(|lease| lease.coordinator.set(&host));
        Ok(is_renewed)
    }

    /// The latest time of this server's ids, clock and requests, in milliseconds since 1970. The lease lasts from
    /// there, so that a server ahead of the coordinator's clock is not stopped.
    fn reached_ms(&self) -> i64 {
        let next_ms = clock::GENERATORS.shared(|table| table.next_ms());
        next_ms.max(self.needed_ms).max(system_clock::wall_ms())
    }

    /// Ends a lease that was not given back. All its id times count as used.
    fn end_abandoned(&mut self, coordinator: &mut Coordinator) -> Result<(), Error> {
        if let Some(lease) = self.abandoned.as_ref().filter(|lease| lease.coordinator == coordinator.identity) {
            coordinator.end(&lease.pool, lease.token)?;
        }
        self.abandoned = None;
        Ok(())
    }

    /// False if the lease is lost: it has ended, or another process has renewed it.
    fn renew(&mut self, coordinator: &mut Coordinator, lease: WorkerLease, reached_ms: i64) -> Result<bool, Error> {
        let pool = self.pool_name().to_owned();
        let held = lease.held(&pool);
        let (not_after_us, ttl) = match coordinator.renew(is_stop_requested, held, reached_us(reached_ms)) {
            Ok(renewed) => renewed,
            Err(error) if is_over(&lease) && error.sqlstate.is_some() || coordinator.has_lost(held, &error)? => {
                // Until there is another lease, each attempt fails here.
                if self.client.link.failures == 0 {
                    log!("worker id {} of pool \"{pool}\" is lost: {}", lease.worker_id, error.message);
                }
                self.lose(coordinator, lease)?;
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        self.pace = Pace { ttl };
        let (is_current, is_remembered) = SERVER_LEASE.exclusive(|state| {
            for held in [&mut state.current, &mut state.pending].into_iter().flatten() {
                if held.token == lease.token {
                    held.last_not_after_us = not_after_us;
                }
            }
            let is_current = state.pending.is_none();
            (is_current, is_current && state.pool.text().as_deref() == Some(&pool))
        });
        // The file may not have been written for a pending lease.
        if !is_remembered {
            lease_file::remember(&pool, &lease)?;
        }
        if is_current {
            self.former = None;
            SERVER_LEASE.exclusive(|lease| lease.pool.set(&pool));
        }
        Ok(true)
    }

    /// Ends a lost lease, so that its worker id is free for this server. Keeps a lease of the former pool until there
    /// is another.
    fn lose(&mut self, coordinator: &mut Coordinator, lost: WorkerLease) -> Result<(), Error> {
        if self.former.as_ref().is_some_and(|former| former.name != self.pool_name()) {
            return Ok(());
        }
        coordinator.end(self.pool_name(), lost.token)?;
        SERVER_LEASE.exclusive(|lease| lease.pending = None);
        self.last_worker_id = Some(lost.worker_id);
        Ok(())
    }

    /// The worker id to ask for: the one of the setting if ids are issued under it, else the leased or the last one, else
    /// the one that is set.
    fn preferred(&self) -> Option<u32> {
        let by_setting = settings::node().worker;
        if node::CURRENT.require().is_setting() {
            return Some(by_setting);
        }
        let leased = newest_lease().map(|lease| lease.worker_id).or(self.last_worker_id);
        leased.or((!settings::worker_undecided()).then_some(by_setting))
    }

    fn acquire(&mut self, coordinator: &mut Coordinator, reached_ms: i64) -> Result<(), Error> {
        let pool = self.pool_name().to_owned();
        // The owner, from which the coordinator grants its last worker id again.
        let owner = coordinator::name_of_this_server();
        let granted =
            coordinator.acquire(is_stop_requested, &pool, &owner, reached_us(reached_ms), self.preferred())?;
        let Granted { worker_id, token, not_before_us, not_after_us: last_not_after_us, ttl } = granted;
        // Nothing is confirmed yet.
        let rectangle = Rectangle { not_before_us, not_after_us: not_before_us };
        let lease = WorkerLease { worker_id, token, coordinator: coordinator.identity, rectangle, last_not_after_us };
        self.pace = Pace { ttl };
        SERVER_LEASE.exclusive(|state| state.pending = Some(lease));
        // Before the lease is used: a server that starts again ends it.
        lease_file::remember(&pool, &lease)
    }

    /// Confirms the newest lease, and uses it.
    fn confirm(&mut self, coordinator: &mut Coordinator, reached_ms: i64) -> Result<(), Error> {
        let Some(mut lease) = newest_lease() else {
            return Ok(());
        };
        let confirmed_us = coordinator.confirm(self.pool_name(), lease.token)?;
        // At most the end that this server was told: another process with the token may have renewed it since.
        let certain_us = confirmed_us.min(lease.last_not_after_us);
        lease.rectangle.not_after_us = certain_us.max(lease.rectangle.not_after_us);
        match SERVER_LEASE.exclusive(|state| state.pending.is_some()) {
            true => self.begin(lease, reached_ms),
            false => self.extend(lease, reached_ms),
        }
        Ok(())
    }

    fn extend(&mut self, lease: WorkerLease, reached_ms: i64) {
        // The end first: a waiting session that sees the new lease must see its end too.
        clock::extend_to(lease.rectangle.end_ms());
        self.publish(lease, reached_ms);
        STATE.require().renewals.fetch_add(1, Relaxed);
    }

    /// From now on ids are issued under this lease. Gives a lease of the former pool back.
    fn begin(&mut self, lease: WorkerLease, reached_ms: i64) {
        let node = node::CURRENT.require();
        let set_by_hand = node.is_setting().then(|| settings::node().worker);
        let before = clock::restrict_times(
            || true,
            lease.rectangle.first_ms(),
            lease.rectangle.end_ms(),
            || {
                node.set_leased(lease.worker_id);
                STATE.require().has_issued_by_hand.store(false, Relaxed);
                self.publish(lease, reached_ms)
            },
        )
        .flatten();
        self.last_worker_id = Some(lease.worker_id);
        let pool = self.pool_name().to_owned();
        if let Some(worker_id) = set_by_hand.filter(|worker_id| *worker_id != lease.worker_id) {
            errors::not_free(worker_id, &pool).warn();
        }
        if before.is_none_or(|before| before.worker_id != lease.worker_id) {
            STATE.require().changes.fetch_add(1, Relaxed);
            log!("this server now has worker id {} of pool \"{pool}\"", lease.worker_id);
        }
        let former = self.former.take();
        SERVER_LEASE.exclusive(|lease| lease.pool.set(&pool));
        if let (Some(former), Some(before)) = (former, before) {
            self.give_back_former(&former, &before, is_stop_requested);
        }
    }

    /// Stores a confirmed lease in shared memory, and returns the one before.
    fn publish(&self, confirmed: WorkerLease, reached_ms: i64) -> Option<WorkerLease> {
        let (ttl, requested_us) = (self.pace.ttl, self.requested_us);
        SERVER_LEASE.exclusive(|lease| {
            (lease.ttl, lease.renewed_us, lease.pending) = (ttl, requested_us, None);
            // The request was for the whole ttl from there.
            lease.falls_short = confirmed.rectangle.end_ms() < reached_ms.saturating_add(ttl.as_millis() as i64 / 2);
            lease.current.replace(confirmed)
        })
    }
}

fn newest_lease() -> Option<WorkerLease> {
    SERVER_LEASE.exclusive(|lease| lease.newest())
}

/// True if the id times of a lease are over: another worker id costs nothing then.
fn is_over(lease: &WorkerLease) -> bool {
    lease.last_not_after_us <= system_clock::now_us()
}

fn reached_us(reached_ms: i64) -> i64 {
    reached_ms.saturating_mul(1000)
}

/// The longest time that a stop of the server waits for its worker id to be given back.
const LONGEST: Duration = Duration::from_secs(5);

impl Keeper {
    /// Ends issuing, and gives the worker id back with the last time used. So the next holder, which may be this server
    /// after a restart, begins right after it.
    pub fn give_back(&mut self, is_interrupted: fn() -> bool) {
        let (current, pending) = SERVER_LEASE.exclusive(|lease| (lease.current.take(), lease.pending.take()));
        let (former, pool) = (self.former.take(), self.pool.take());
        // A release opens its own, also to the former coordinator.
        self.client.link.close();
        let until = Instant::now() + LONGEST;
        if let (Some(current), Some(pool)) = (current, former.as_ref().or(pool.as_ref())) {
            clock::restrict_times(|| true, i64::MIN, i64::MIN, || node::CURRENT.require().set_none());
            self.release(pool, &current, Some(last_used_us()), until, is_interrupted);
        }
        // No id was issued under it here, but a copy of this server's memory may have it too.
        if let (Some(pending), Some(pool)) = (pending, &pool) {
            self.release(pool, &pending, None, until, is_interrupted);
        }
        self.pace = FIRST_PACE;
    }

    /// Gives back a lease of the former pool, under which no ids are issued any more.
    fn give_back_former(&mut self, former: &Pool, lease: &WorkerLease, is_interrupted: fn() -> bool) {
        self.release(former, lease, Some(last_used_us()), Instant::now() + LONGEST, is_interrupted);
    }

    /// Tries two addresses. Logs a failure: the lease ends by itself.
    fn release(
        &mut self,
        pool: &Pool,
        lease: &WorkerLease,
        last_us: Option<i64>,
        until: Instant,
        is_interrupted: fn() -> bool,
    ) {
        let mut outcome = Ok(());
        for _ in 0..2 {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timeout { duration: left.min(LONGEST / 2), event: &COORDINATOR_WAIT, is_interrupted };
            outcome = self.client.once(&pool.coordinator, timeout, |coordinator| {
                match lease.coordinator == coordinator.identity {
                    true => coordinator.release(lease.held(&pool.name), last_us),
                    false => Err(Error::new("another coordinator has granted it")),
                }
            });
            if outcome.is_ok() {
                return;
            }
        }
        if let Err(Error { message, .. }) = outcome {
            log!("could not release worker id {} of pool \"{}\": {message}", lease.worker_id, pool.name);
        }
    }
}

/// The last microsecond since 1970 that an id of any layout may have used.
fn last_used_us() -> i64 {
    clock::GENERATORS.shared(|table| table.unused_from_ms()).saturating_mul(1000).saturating_sub(1)
}
