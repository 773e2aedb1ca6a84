//! Giving worker ids back to the coordinator.

use super::APPLICATION;
use super::run::{FIRST_PACE, Keeper};
use crate::clock;
use crate::coordinator::{COORDINATOR_WAIT, Coordinator};
use crate::pg::libpq::{Error, Timeout};
use crate::settings::Pool;
use crate::snowflake::node;
use crate::worker::state::{SERVER_LEASE, WorkerLease};
use pgrx::prelude::*;
use std::time::{Duration, Instant};

/// The longest time that a stop of the server waits for its worker id to be given back.
const LONGEST: Duration = Duration::from_secs(5);

impl Keeper {
    /// Ends issuing, and gives the worker id back with the last time used. So the next holder, which may be this server
    /// after a restart, begins right after it.
    pub fn give_back(&mut self, is_interrupted: fn() -> bool) {
        let (current, pending) = SERVER_LEASE.exclusive(|lease| (lease.current.take(), lease.pending.take()));
        let (former, pool) = (self.former.take(), self.pool.take());
        // A release opens its own, also to the former coordinator.
        self.coordinator = None;
        let until = Instant::now() + LONGEST;
        if let (Some(current), Some(pool)) = (current, former.as_ref().or(pool.as_ref())) {
            clock::confine(|| true, i64::MIN, i64::MIN, || node::CURRENT.require().set_none());
            self.release(pool, &current, Some(last_used_us()), until, is_interrupted);
        }
        // No id was issued under it here, but a copy of this server's memory may have it too.
        if let (Some(pending), Some(pool)) = (pending, &pool) {
            self.release(pool, &pending, None, until, is_interrupted);
        }
        self.pace = FIRST_PACE;
    }

    /// Gives back a lease of the former pool, under which no ids are issued any more.
    pub fn give_back_former(&mut self, former: &Pool, lease: &WorkerLease, is_interrupted: fn() -> bool) {
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
            let (conninfo, first) = (&pool.coordinator, self.first_address);
            let connected = Coordinator::connect(conninfo, APPLICATION, &mut self.resolver, first, timeout);
            outcome = connected.and_then(|mut coordinator| match lease.coordinator == coordinator.identity {
                true => coordinator.release(&pool.name, lease, last_us),
                false => Err(Error::new("another coordinator has granted it")),
            });
            if outcome.is_ok() {
                return;
            }
            self.first_address += 1;
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
