//! The keeper: the background worker that leases this server's worker id from the coordinator, and renews the lease
//! long before it ends. It runs from the start of the server, and sleeps while no pool is configured. It stores its
//! lease in shared memory. Sessions wait for the keeper only while there is no worker id yet.
//!
//! A keeper that starts again continues the lease in shared memory. A server that starts again, also after a crash of a
//! backend, ends its last lease, which the file `idgen_worker` names, and acquires another one.

use super::errors;
use super::state::{LeaseFile, NO_REQUEST, SERVER_LEASE, STATE, ServerLease};
use crate::clock;
use crate::coordinator::{self, Client};
use crate::pg::bgworker::{self, Worker};
use crate::pg::latch::{self, WaitEvent};
use crate::pg::libpq::Error;
use crate::pg::{recovery, session, system_clock, xact};
use crate::settings::{self, Pool};
use crate::snowflake::node;
use idgen_core::worker::memory::LastWorkerId;
use idgen_core::worker::pace::Pace;
use pgrx::bgworkers::BgWorkerStartTime;
use pgrx::prelude::*;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const WORKER: Worker = Worker { name: "idgen keeper", function: "idgen_keeper", connects: false };

/// While the postmaster preloads libraries. Always: a reload can configure a pool.
pub fn register() {
    // SAFETY: a flag that is set earlier. A server that is being upgraded issues no ids.
    if !unsafe { pg_sys::IsBinaryUpgrade } {
        WORKER.register(BgWorkerStartTime::RecoveryFinished, Duration::from_secs(1));
    }
}

/// The main function of the keeper.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_keeper(_arg: pg_sys::Datum) {
    // SIGTERM has a handler of its own: PostgreSQL's would end a request half-way.
    bgworker::handle_signals(Some(on_terminate), None);
    let Some(state) = STATE.get() else { return };
    state.keeper.enter();
    xact::before_exit(|_| STATE.require().keeper.leave());
    // A reload before the handler was installed would be missed.
    session::reload_configuration();
    Keeper::new().run();
}

pub struct Keeper {
    /// The configured pool; `None` if there is none.
    pub pool: Option<Pool>,
    /// The pool of the current lease, if the configuration has changed since it was granted.
    pub former: Option<Pool>,
    pub client: Client,
    pub pace: Pace,
    /// The request of sessions, as in `KeeperHandle`, until it is fulfilled.
    pub needed_ms: i64,
    /// When the requests were last read, by CLOCK_BOOTTIME.
    pub requested_us: i64,
    /// When the next attempt is due.
    due: Instant,
}

static MAIN_WAIT: WaitEvent = WaitEvent::new(c"IdgenKeeperMain");

/// Until the coordinator has told the ttl of the pool.
pub const FIRST_PACE: Pace = Pace { ttl: Duration::from_secs(30) };

impl Keeper {
    /// Continues the lease of an earlier keeper of this server.
    fn new() -> Self {
        let lease = SERVER_LEASE.shared(|lease| *lease);
        // The coordinator of the lease is known if it is still that of the configured pool.
        let pool_of_lease = |name: String| {
            let configured = settings::worker_pool().filter(|pool| pool.name == name);
            configured.unwrap_or_else(|| Pool { name, coordinator: c"".to_owned() })
        };
        Self {
            pool: lease.pool.text().map(pool_of_lease),
            former: None,
            client: Client::new(c"idgen keeper", Duration::ZERO),
            pace: lease.newest().map_or(FIRST_PACE, |_| Pace { ttl: lease.ttl }),
            needed_ms: NO_REQUEST,
            requested_us: 0,
            due: Instant::now(),
        }
    }

    /// The main loop.
    fn run(mut self) {
        loop {
            check_for_interrupts!();
            if is_stop_requested() {
                self.stop();
            }
            if session::is_reload_pending() {
                session::reload_configuration();
            }
            self.follow_settings();
            // Before the requests are read: this attempt fulfills every request made before this time.
            self.requested_us = system_clock::boot_us();
            self.needed_ms = STATE.require().keeper.take_request().max(self.needed_ms);
            // After a failure requests do not shorten the pause.
            let is_requested = self.needed_ms != NO_REQUEST && self.client.link.failures == 0;
            let pause = self.due.saturating_duration_since(Instant::now());
            let has_pool = self.pool.is_some();
            if has_pool && (is_requested || pause.is_zero()) {
                // Its waits may reset the latch, so requests are read again before a sleep.
                self.due = self.attempt_and_report();
            } else if !is_interrupted() {
                // Rounded up: the latch counts in milliseconds.
                latch::wait(has_pool.then(|| pause + Duration::from_millis(1)), &MAIN_WAIT);
            }
        }
    }

    /// SIGTERM: ends this process. If the server is stopping, gives the worker id back first.
    fn stop(&mut self) {
        if recovery::is_server_stopping() {
            self.give_back(|| false);
        }
        // SAFETY: flags of this process; PostgreSQL's own handler sets them.
        unsafe {
            pg_sys::ProcDiePending = 1;
            pg_sys::InterruptPending = 1;
        }
        check_for_interrupts!();
    }

    /// Applies the current settings.
    fn follow_settings(&mut self) {
        node::follow_settings();
        if self.client.follow(settings::coordinator()) {
            coordinator::tell_followers();
        }
        let pool = settings::worker_pool();
        // An earlier keeper may have ended before it left its pool, and may have had no lease.
        let must_leave = pool.is_none() && !settings::worker_undecided() && !node::CURRENT.require().is_setting();
        if pool == self.pool && !must_leave {
            return;
        }
        match &pool {
            Some(_) => self.change_pool(),
            None => self.leave_pool(),
        }
        self.client.link.reset();
        self.due = Instant::now();
        self.pool = pool;
    }

    /// The new pool may know the current lease: the pool was moved, or only its address has changed. Until that is
    /// known, ids go on under the lease. A lease that is not confirmed is ended, so that it occupies no worker id.
    fn change_pool(&mut self) {
        SERVER_LEASE.exclusive(|lease| lease.pending = None);
        if self.former.is_none() && SERVER_LEASE.shared(|lease| lease.current.is_some()) {
            self.former = self.pool.take();
        }
    }

    /// No pool is configured any more.
    fn leave_pool(&mut self) {
        self.give_back(is_stop_requested);
        if !settings::worker_undecided() {
            let publish = || {
                STATE.require().has_issued_by_hand.store(false, Relaxed);
                node::CURRENT.require().set_to_setting();
            };
            clock::restrict_times(|| true, i64::MIN, i64::MAX, publish);
            // The worker id is a setting: no pool is in charge of it.
            if let Err(error) = LeaseFile::write(LastWorkerId::Unknown) {
                errors::lease_file_not_written(&error).warn();
            }
        }
        self.former = None;
        SERVER_LEASE.exclusive(|lease| *lease = ServerLease::default());
        STATE.require().changed.broadcast();
    }

    /// Makes one attempt, and reports its outcome. Returns when the next one is due.
    fn attempt_and_report(&mut self) -> Instant {
        let due = match self.attempt() {
            Ok(pause) => {
                self.needed_ms = NO_REQUEST;
                if SERVER_LEASE.exclusive(|lease| lease.note(None)) {
                    log!("the coordinator of worker pool \"{}\" answers again", self.pool_name());
                }
                Instant::now() + pause
            }
            // Not a failure: this process has ended the attempt.
            Err(_) if is_interrupted() => Instant::now(),
            Err(Error { message, sqlstate }) => {
                if sqlstate.is_some() {
                    // The coordinator has refused the request, perhaps because of a time that is too far ahead. The clock of
                    // the session may be right again. A session that still needs such a time asks again.
                    self.needed_ms = NO_REQUEST;
                }
                STATE.require().failures.fetch_add(1, Relaxed);
                if SERVER_LEASE.exclusive(|lease| lease.note(Some(&message))) {
                    log!("could not lease a worker id from pool \"{}\": {message}", self.pool_name());
                }
                let pause = self.pace.retry_after(self.client.link.failures, session::random_fraction());
                self.client.link.failed(Instant::now(), pause);
                Instant::now() + pause
            }
        };
        STATE.require().changed.broadcast();
        due
    }

    pub fn pool_name(&self) -> &str {
        self.pool.as_ref().map_or("", |pool| &pool.name)
    }
}

static IS_STOP_REQUESTED: AtomicBool = AtomicBool::new(false);

unsafe extern "C-unwind" fn on_terminate(
    _signal: c_int,
    #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17", feature = "pg18")))]
    _sender: *const bgworker::Sender,
) {
    // SAFETY: in a signal handler.
    unsafe { bgworker::in_signal_handler(|| IS_STOP_REQUESTED.store(true, Relaxed)) };
}

/// SIGTERM has arrived.
pub fn is_stop_requested() -> bool {
    IS_STOP_REQUESTED.load(Relaxed)
}

/// True if a wait for the coordinator has to end: a reload may have removed the pool.
pub fn is_interrupted() -> bool {
    is_stop_requested() || session::is_reload_pending()
}
