//! One attempt of the keeper: it connects to the coordinator, renews or acquires, and confirms. It also gives former
//! worker ids back.
//!
//! A grant is used only after the coordinator has confirmed it. Before that, only the coordinator itself may have it,
//! and a standby that is promoted may not.

use super::errors;
use super::keeper::{FIRST_PACE, Keeper, is_interrupted, is_stop_requested};
use super::state::{LeaseFile, SERVER_LEASE, STATE, WorkerLease};
use crate::clock;
use crate::coordinator::{COORDINATOR_WAIT, Coordinator};
use crate::pg::libpq::{Error, Timeout};
use crate::pg::{session, system_clock};
use crate::settings::{self, Pool};
use crate::snowflake::node;
use idgen_core::worker::memory::RememberedLease;
use idgen_core::worker::pace::Pace;
use pgrx::prelude::*;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

impl Keeper {
    /// Returns the pause until the next attempt. Keeps the connection, if the coordinator has room: a new one costs the
    /// coordinator several times the CPU time of a renewal.
    pub fn attempt(&mut self) -> Result<Duration, Error> {
        // The latest time of this server's ids, clock and requests. The lease lasts from there, so that a server ahead of the
        // coordinator's clock is not stopped.
        let next_ms = clock::GENERATORS.shared(|table| table.next_ms());
        let reached_ms = next_ms.max(self.needed_ms).max(system_clock::wall_ms());
        LeaseFile::remember_pool()?;
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
        let reached_us = reached_ms.saturating_mul(1000);
        // One of an earlier start or an earlier pool may not have been given back. All its id times count as used.
        let is_abandoned = |last: &RememberedLease| {
            last.coordinator == coordinator.identity && SERVER_LEASE.shared(|lease| !lease.has(last.token))
        };
        if let Some(last) = LeaseFile::remembered().filter(is_abandoned) {
            coordinator.end(&last.pool, last.token)?;
        }
        // Another coordinator than the one that granted the lease does not know it.
        let newest = SERVER_LEASE.shared(|lease| lease.newest());
        let known = newest.filter(|lease| lease.coordinator == coordinator.identity);
        let renewed = known.map_or(Ok(None), |lease| self.renew(coordinator, lease, reached_us))?;
        let mut lease = renewed.map_or_else(|| self.acquire(coordinator, reached_us), Ok)?;
        let confirmed_us = coordinator.confirm(self.pool_name(), lease.token)?;
        // At most the end that this server was told: another process with the token may have renewed it since.
        let certain_us = confirmed_us.min(lease.last_not_after_us);
        lease.rectangle.not_after_us = certain_us.max(lease.rectangle.not_after_us);
        match SERVER_LEASE.shared(|state| state.pending.is_some()) {
            true => self.begin(lease, reached_ms),
            false => {
                // The end first: a waiting session that sees the new lease must see its end too.
                clock::extend_to(lease.rectangle.end_ms());
                self.publish(lease, reached_ms);
                STATE.require().renewals.fetch_add(1, Relaxed);
            }
        }
        let host = coordinator.host();
        SERVER_LEASE.exclusive(|lease| lease.coordinator.set(&host));
        Ok(renewed.is_some())
    }

    /// `None` if the lease is lost: it has ended, or another process has renewed it.
    fn renew(
        &mut self,
        coordinator: &mut Coordinator,
        lease: WorkerLease,
        reached_us: i64,
    ) -> Result<Option<WorkerLease>, Error> {
        let pool = self.pool_name();
        let (last_not_after_us, ttl) = match coordinator.renew(pool, &lease, reached_us) {
            Ok(renewed) => renewed,
            Err(error) => {
                // Once its id times are over, another worker id costs nothing.
                let is_over = lease.last_not_after_us <= system_clock::now_us() && error.sqlstate.is_some();
                if !is_over && !coordinator.has_lost(pool, &lease, &error)? {
                    return Err(error);
                }
                // Until there is another lease, each attempt fails here.
                if self.client.link.failures == 0 {
                    log!("worker id {} of pool \"{pool}\" is lost: {}", lease.worker_id, error.message);
                }
                // Ends it, so that its worker id is free for this server. Keeps one of the former pool until there is another.
                if self.former.as_ref().is_none_or(|former| former.name == pool) {
                    coordinator.end(pool, lease.token)?;
                    SERVER_LEASE.exclusive(|lease| lease.pending = None);
                }
                return Ok(None);
            }
        };
        let lease = WorkerLease { last_not_after_us, ..lease };
        let is_current = SERVER_LEASE.exclusive(|state| {
            let is_current = state.pending.is_none();
            *(if is_current { &mut state.current } else { &mut state.pending }) = Some(lease);
            is_current
        });
        // The file may not have been written for a pending lease.
        LeaseFile::remember(pool, &lease)?;
        if is_current {
            // The pool of the settings knows it.
            self.former = None;
        }
        self.pace = Pace { ttl };
        Ok(Some(lease))
    }

    fn acquire(&mut self, coordinator: &mut Coordinator, reached_us: i64) -> Result<WorkerLease, Error> {
        let (lease, ttl) = coordinator.acquire(self.pool_name(), reached_us, Self::preferred())?;
        self.pace = Pace { ttl };
        SERVER_LEASE.exclusive(|state| state.pending = Some(lease));
        // Before the lease is used: a server that starts again ends it.
        LeaseFile::remember(self.pool_name(), &lease)?;
        Ok(lease)
    }

    /// The worker id to ask for: the one of the setting if ids are issued under it, else the leased or the last one, else
    /// the one that is set.
    fn preferred() -> Option<u32> {
        let by_setting = settings::node().worker;
        if node::CURRENT.require().is_setting() {
            return Some(by_setting);
        }
        let leased = SERVER_LEASE.shared(|lease| lease.newest()).map(|lease| lease.worker_id);
        let known = leased.or_else(|| LeaseFile::remembered().map(|last| last.worker_id));
        known.or((!settings::worker_undecided()).then_some(by_setting))
    }

    /// From now on ids are issued under this lease. Gives a lease of the former pool back.
    fn begin(&mut self, lease: WorkerLease, reached_ms: i64) {
        let (node, worker_id) = (node::CURRENT.require(), lease.worker_id);
        let set_by_hand = node.is_setting().then(|| settings::node().worker);
        let publish = || {
            node.set_leased(worker_id);
            STATE.require().has_issued_by_hand.store(false, Relaxed);
            self.publish(lease, reached_ms)
        };
        let (first_ms, end_ms) = (lease.rectangle.first_ms(), lease.rectangle.end_ms());
        let before = clock::restrict_times(|| true, first_ms, end_ms, publish).flatten();
        if let Some(set) = set_by_hand.filter(|set| *set != worker_id) {
            errors::not_free(set, self.pool_name()).warn();
        }
        if before.is_none_or(|before| before.worker_id != worker_id) {
            STATE.require().changes.fetch_add(1, Relaxed);
            log!("this server now has worker id {worker_id} of pool \"{}\"", self.pool_name());
        }
        if let (Some(former), Some(before)) = (self.former.take(), before) {
            self.release(&former, &before, Some(last_used_us()), Instant::now() + LONGEST, is_stop_requested);
        }
    }

    /// Stores a confirmed lease in shared memory, and returns the one before.
    fn publish(&self, confirmed: WorkerLease, reached_ms: i64) -> Option<WorkerLease> {
        let (ttl, requested_us) = (self.pace.ttl, self.requested_us);
        SERVER_LEASE.exclusive(|lease| {
            lease.pool.set(self.pool_name());
            (lease.ttl, lease.renewed_us, lease.pending) = (ttl, requested_us, None);
            // The request was for the whole ttl from there.
            lease.falls_short = confirmed.rectangle.end_ms() < reached_ms.saturating_add(ttl.as_millis() as i64 / 2);
            lease.current.replace(confirmed)
        })
    }

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

    /// Tries two addresses. Logs a failure: the lease ends by itself.
    fn release(
        &mut self,
        pool: &Pool,
        lease: &WorkerLease,
        last_us: Option<i64>,
        until: Instant,
        is_interrupted: fn() -> bool,
    ) {
        let mut release = || {
            let duration = until.saturating_duration_since(Instant::now()).min(LONGEST / 2);
            let timeout = Timeout { duration, event: &COORDINATOR_WAIT, is_interrupted };
            self.client.once(&pool.coordinator, timeout, |coordinator| match last_us {
                _ if lease.coordinator != coordinator.identity => Err(Error::new("another coordinator has granted it")),
                Some(last_us) => coordinator.release(&pool.name, lease, last_us),
                None => coordinator.end(&pool.name, lease.token),
            })
        };
        if let Err(Error { message, .. }) = release().or_else(|_| release()) {
            log!("could not release worker id {} of pool \"{}\": {message}", lease.worker_id, pool.name);
        }
    }
}

/// The longest time that a stop of the server waits for its worker id to be given back.
const LONGEST: Duration = Duration::from_secs(5);

/// The last microsecond since 1970 that an id of any layout may have used.
fn last_used_us() -> i64 {
    clock::GENERATORS.shared(|table| table.unused_from_ms()).saturating_mul(1000).saturating_sub(1)
}
