//! One attempt of the keeper: it connects to the coordinator, renews or acquires, and confirms.
//!
//! A grant is used only after the coordinator has confirmed it. Before that, only the coordinator itself may have it,
//! and a standby that is promoted may not.

use super::keeper::{Keeper, LONGEST_US, end, give_back, has_lost, last_used_us};
use super::lease::WorkerLease;
use super::memory::{remember, remember_pool, remembered};
use super::pace::Pace;
use super::server::{Coordinator, Event, Failure, Interrupt, Server};
use std::time::Duration;

impl Keeper {
    /// Returns the pause until the next attempt. Keeps the connection, if the coordinator has room: a new one costs the
    /// coordinator several times the CPU time of a renewal.
    pub(super) fn renew_or_acquire<S: Server>(&mut self, server: &mut S) -> Result<Duration, S::Error> {
        // The latest time of this server's ids, clock and requests. The lease lasts from there, so that a server ahead of the
        // coordinator's clock is not stopped.
        let reached_ms = server.next_ms().max(self.needed_ms).max(server.now_us().div_euclid(1000));
        remember_pool(server)?;
        let limit = self.pace.patience(server.failures(), server.connected_in());
        let mut coordinator = server.open(limit)?;
        let is_renewed = self.lease_from(server, &mut coordinator, reached_ms)?;
        // After a common start or a common outage, servers spread their renewals.
        let pause = match is_renewed && server.failures() == 0 {
            true => self.pace.renew_after(server.random_fraction()),
            false => self.pace.first_renewal_after(server.random_fraction()),
        };
        server.answered(coordinator, pause);
        Ok(pause)
    }

    /// True if it has renewed.
    fn lease_from<S: Server>(
        &mut self,
        server: &mut S,
        coordinator: &mut S::Coordinator,
        reached_ms: i64,
    ) -> Result<bool, S::Error> {
        let (identity, reached_us) = (coordinator.identity(), reached_ms.saturating_mul(1000));
        // One of an earlier start or an earlier pool may not have been given back. All its id times count as used.
        if let Some(last) = remembered(server)
            && last.coordinator == identity
            && ![self.lease.current, self.lease.pending].iter().flatten().any(|lease| lease.token == last.token)
        {
            end(coordinator, &last.pool, last.token)?;
        }
        // Another coordinator than the one that granted the lease does not know it.
        let known = self.lease.newest().filter(|lease| lease.coordinator == identity);
        let renewed = known.map_or(Ok(None), |lease| self.renew(server, coordinator, lease, reached_us))?;
        let mut lease = renewed.map_or_else(|| self.acquire(server, coordinator, reached_us), Ok)?;
        let confirmed_us = coordinator.confirm(self.pool_name(), lease.token)?;
        // At most the end that this server was told: another process with the token may have renewed it since.
        let certain_us = confirmed_us.min(lease.last_not_after_us);
        lease.rectangle.not_after_us = certain_us.max(lease.rectangle.not_after_us);
        let is_new = self.lease.pending.is_some();
        let half_ms = self.pace.ttl.as_millis() as i64 / 2;
        self.lease.falls_short = lease.rectangle.end_ms() < reached_ms.saturating_add(half_ms);
        (self.lease.ttl, self.lease.renewed_us, self.lease.pending) = (self.pace.ttl, self.requested_us, None);
        let before = self.lease.current.replace(lease);
        if is_new {
            self.begin(server, lease.worker_id, before);
        } else {
            // The end first: a waiting session that sees the new lease must see its end too.
            server.extend_to(lease.rectangle.end_ms());
            server.publish(self.pool_name(), &self.lease);
            server.tell(self.pool_name(), Event::Renewed);
        }
        Ok(renewed.is_some())
    }

    /// `None` if the lease is lost: it has ended, or another process has renewed it.
    fn renew<S: Server>(
        &mut self,
        server: &mut S,
        coordinator: &mut S::Coordinator,
        lease: WorkerLease,
        reached_us: i64,
    ) -> Result<Option<WorkerLease>, S::Error> {
        let (last_not_after_us, ttl) = match coordinator.renew(self.pool_name(), &lease, reached_us) {
            Ok(renewed) => renewed,
            Err(error) => return self.lose(server, coordinator, lease, error).map(|()| None),
        };
        let lease = WorkerLease { last_not_after_us, ..lease };
        let is_current = self.lease.pending.is_none();
        *(if is_current { &mut self.lease.current } else { &mut self.lease.pending }) = Some(lease);
        server.store(&self.lease);
        // The file may not have been written for a pending lease.
        remember(server, self.pool_name(), &lease)?;
        if is_current {
            // The pool of the settings knows it.
            self.former = None;
        }
        self.pace = Pace { ttl };
        Ok(Some(lease))
    }

    /// After an error of a renewal: the lease is lost, unless the error is returned.
    fn lose<S: Server>(
        &mut self,
        server: &mut S,
        coordinator: &mut S::Coordinator,
        lease: WorkerLease,
        error: S::Error,
    ) -> Result<(), S::Error> {
        let pool = self.pool_name();
        // Once its id times are over, another worker id costs nothing.
        let is_over = lease.last_not_after_us <= server.now_us() && error.is_refusal();
        if !is_over && !has_lost(coordinator, pool, &lease, &error)? {
            return Err(error);
        }
        // Until there is another lease, each attempt fails here.
        if server.failures() == 0 {
            server.tell(pool, Event::Lost(lease.worker_id, &error));
        }
        // Ends it, so that its worker id is free for this server. Keeps one of the former pool until there is another.
        if self.former.as_ref().is_none_or(|former| former.name == pool) {
            end(coordinator, pool, lease.token)?;
            self.lease.pending = None;
            server.store(&self.lease);
        }
        Ok(())
    }

    fn acquire<S: Server>(
        &mut self,
        server: &mut S,
        coordinator: &mut S::Coordinator,
        reached_us: i64,
    ) -> Result<WorkerLease, S::Error> {
        let (lease, ttl) = coordinator.acquire(self.pool_name(), reached_us, self.preferred(server))?;
        self.pace = Pace { ttl };
        self.lease.pending = Some(lease);
        server.store(&self.lease);
        // Before the lease is used: a server that starts again ends it.
        remember(server, self.pool_name(), &lease)?;
        Ok(lease)
    }

    /// The worker id to ask for: the one of the setting if ids are issued under it, else the leased or the last one, else
    /// the one that is set.
    fn preferred(&self, server: &impl Server) -> Option<u32> {
        let setting = server.setting();
        if setting.is_in_use {
            return Some(setting.worker_id);
        }
        let leased = self.lease.newest().map(|lease| lease.worker_id);
        let known = leased.or_else(|| remembered(server).map(|last| last.worker_id));
        known.or((!setting.is_undecided).then_some(setting.worker_id))
    }

    /// From now on ids are issued under the lease that was confirmed. Gives a lease of the former pool back.
    fn begin<S: Server>(&mut self, server: &mut S, worker_id: u32, before: Option<WorkerLease>) {
        let setting = server.setting();
        server.issue_leased(self.pool_name(), &self.lease);
        let pool = self.pool_name();
        if setting.is_in_use && setting.worker_id != worker_id {
            server.tell(pool, Event::NotFree(setting.worker_id));
        }
        if before.is_none_or(|before| before.worker_id != worker_id) {
            server.tell(pool, Event::Changed(worker_id));
        }
        if let (Some(before), Some(former)) = (before, self.former.take()) {
            let (last_us, end_us) = (last_used_us(server), server.boot_us() + LONGEST_US);
            give_back(server, &former, &before, Some(last_us), end_us, Interrupt::Stop);
        }
    }
}
