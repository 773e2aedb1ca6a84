//! The keeper: the background worker that leases this server's worker id from the coordinator, and renews the lease long
//! before it ends. It runs from the start of the server on, and sleeps while no pool is configured. It writes down here what it has
//! been granted; sessions wait for it only while there is no worker id yet.
//!
//! A lease is known by its token, which is in shared memory: a keeper that was ended goes on with it. A server that starts
//! again, also after a crash of a backend, ends its last term, which the file `idgen_worker` names, and acquires again.

use super::errors;
use super::handle::NOTHING;
use super::leasing::LeftTerm;
use super::memory::{self, Recollection};
use super::state::{self, LEASE, Lease, STATE};
use crate::clock;
use crate::pg::bgworker::{self, Worker};
use crate::pg::libpq::{Resolver, Trouble};
use crate::pg::wait_event::WaitEvent;
use crate::pg::{latch, session, system_clock, xact};
use crate::settings::{self, Pool};
use crate::snowflake::node;
use idgen_core::worker::coordinator::Pace;
use pgrx::bgworkers::BgWorkerStartTime;
use pgrx::prelude::*;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const WORKER: Worker = Worker { name: "idgen keeper", function: "idgen_keeper", connects: false };

/// While the postmaster preloads libraries. Always: a reload can configure a pool.
pub fn register() {
    // SAFETY: a flag that is set before. A server that is upgraded makes no ids.
    if !unsafe { pg_sys::IsBinaryUpgrade } {
        WORKER.register(BgWorkerStartTime::RecoveryFinished, Duration::from_secs(1));
    }
}

/// SIGTERM has come. Not PostgreSQL's own handler: what is under way is to end in order.
static IS_STOP_REQUESTED: AtomicBool = AtomicBool::new(false);

unsafe extern "C-unwind" fn on_stop(_signal: c_int) {
    // SAFETY: in a signal handler.
    unsafe { bgworker::in_signal_handler(|| IS_STOP_REQUESTED.store(true, Relaxed)) };
}

pub(super) fn is_stop_requested() -> bool {
    IS_STOP_REQUESTED.load(Relaxed)
}

/// Does what is asked of the coordinator have to end? A reload may have taken the pool away.
pub(super) fn is_interrupted() -> bool {
    is_stop_requested() || session::is_reload_pending()
}

/// The worker.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_keeper(_arg: pg_sys::Datum) {
    bgworker::handle_signals(Some(on_stop), None);
    let Some(state) = STATE.get() else {
        return;
    };
    state.keeper.enter();
    xact::before_exit(|_| STATE.require().keeper.leave());
    // A reload before the handler was installed would be missed.
    session::reload_configuration();
    Keeper::new().run();
}

pub(super) struct Keeper {
    /// As configured; `None` while there is none.
    pub pool: Option<Pool>,
    /// What was configured when the term was granted that the server still has, if that was something else.
    pub former: Option<Pool>,
    /// The term that the server had before this start, until it is ended.
    pub left: Option<LeftTerm>,
    /// The worker id to ask for where it cannot be known from a term: the last one before this start.
    pub last_worker: Option<u32>,
    pub resolver: Resolver,
    /// Which address is asked first.
    pub turn: usize,
    /// Tries that have failed in a row.
    pub failures: u32,
    pub pace: Pace,
    /// As in `Handle`, until it was asked for.
    pub needed_ms: i64,
    /// When it was looked last what is needed, by CLOCK_BOOTTIME.
    pub asked_us: i64,
    /// When to ask next.
    due: Instant,
}

/// Until the pool has said how long its leases last.
pub(super) const FIRST_PACE: Pace = Pace { ttl: Duration::from_secs(30) };

impl Keeper {
    /// Goes on with what an earlier keeper of this server has leased.
    fn new() -> Self {
        let lease = LEASE.exclusive(|lease| *lease);
        let is_leased = lease.term.or(lease.pending).is_some();
        let left = if is_leased { None } else { recall() };
        Self {
            pool: lease.pool.text().map(pool_of_lease),
            former: None,
            last_worker: left.as_ref().map(|left| left.term.worker),
            left,
            resolver: Resolver::default(),
            turn: 0,
            failures: 0,
            pace: if is_leased { Pace { ttl: lease.ttl } } else { FIRST_PACE },
            needed_ms: NOTHING,
            asked_us: 0,
            due: Instant::now(),
        }
    }

    /// The main loop.
    fn run(mut self) {
        loop {
            if is_stop_requested() {
                self.stop();
            }
            if session::is_reload_pending() {
                session::reload_configuration();
            }
            self.follow_settings();
            if self.pool.is_none() {
                sleep_until_woken();
                continue;
            }
            // Before it is looked what is needed: what was asked for before this is answered by what is asked now.
            self.asked_us = system_clock::boot_us();
            self.needed_ms = STATE.require().keeper.take_needed_ms().max(self.needed_ms);
            // After a failure at the pace of failures, however many need more.
            let is_asked = self.needed_ms != NOTHING && self.failures == 0;
            if is_asked || self.due <= Instant::now() {
                let pause = self.ask_and_tell();
                self.due = Instant::now() + pause;
            }
            if !is_interrupted() {
                // Rounded up: the latch counts in milliseconds.
                latch::sleep(self.due.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
            }
            check_for_interrupts!();
        }
    }

    /// SIGTERM: ends this process. If the server is stopping, its worker id is given back first.
    fn stop(&mut self) {
        if is_server_stopping() {
            self.give_back(|| false);
        }
        // SAFETY: flags of this process; PostgreSQL's own handler sets them.
        unsafe {
            pg_sys::ProcDiePending = 1;
            pg_sys::InterruptPending = 1;
        }
        check_for_interrupts!();
    }

    /// Goes by the settings as they are now.
    fn follow_settings(&mut self) {
        state::follow_settings();
        let pool = settings::worker_pool();
        STATE.require().has_pool.store(pool.is_some(), Relaxed);
        // A keeper before this one may have ended in between, and may have had no lease.
        let is_left = pool.is_none() && !settings::worker_undecided() && !node::CURRENT.require().is_setting();
        if pool == self.pool && !is_left {
            return;
        }
        match &pool {
            Some(_) => self.turn_to_another_pool(),
            None => self.leave_pool(),
        }
        (self.turn, self.failures, self.due) = (0, 0, Instant::now());
        self.pool = pool;
    }

    /// The term that the server has may be known there too: the pool was moved, or is only reached another way. Until that is
    /// known, its ids go on. One that is not used yet is ended like that of an earlier start, so that it takes no worker id away.
    fn turn_to_another_pool(&mut self) {
        if let Some(pending) = LEASE.exclusive(|lease| lease.pending.take()) {
            self.last_worker = Some(pending.number);
            self.left = recall().filter(|left| left.term.token == pending.token);
        }
        if self.former.is_none() && LEASE.exclusive(|lease| lease.term.is_some()) {
            self.former = self.pool.take();
        }
    }

    /// No pool is configured any more.
    fn leave_pool(&mut self) {
        self.give_back(is_stop_requested);
        if !settings::worker_undecided() {
            clock::confine(i64::MIN, i64::MAX, || node::CURRENT.require().set_to_setting());
            // The worker id is set by hand: no pool is in charge of it.
            if let Err(error) = memory::remember(None) {
                errors::memory_not_written(&error).warn();
            }
        }
        (self.former, self.left, self.last_worker) = (None, None, None);
        LEASE.exclusive(|lease| *lease = Lease::default());
        STATE.require().changed.broadcast();
    }

    /// Asks the coordinator once, and tells how it went. Returns when to ask again.
    fn ask_and_tell(&mut self) -> Duration {
        let pause = match self.ask() {
            Ok(()) => {
                (self.failures, self.needed_ms) = (0, NOTHING);
                let failed = LEASE.exclusive(|lease| {
                    lease.last_error.clear();
                    lease.failing_since_ms.take()
                });
                if failed.is_some() {
                    log!("the coordinator of worker pool \"{}\" answers again", self.pool_name());
                }
                self.pace.renew_after(jitter())
            }
            // No failure: it was this process that ended it.
            Err(_) if is_interrupted() => Duration::ZERO,
            Err(trouble) => {
                self.turn += 1;
                self.note(&trouble);
                let pause = self.pace.retry_after(self.failures, jitter());
                self.failures += 1;
                pause
            }
        };
        STATE.require().changed.broadcast();
        pause
    }

    /// Keeps what went wrong for the view, and for errors of sessions; the first time in a row the server's log has it too.
    fn note(&self, trouble: &Trouble) {
        let message = &trouble.message;
        STATE.require().failures.fetch_add(1, Relaxed);
        let now_ms = system_clock::wall_ms();
        let is_first = LEASE.exclusive(|lease| {
            let is_first = lease.failing_since_ms.is_none();
            lease.failing_since_ms.get_or_insert(now_ms);
            lease.last_error.set(message);
            is_first
        });
        if is_first {
            log!("could not lease a worker id from pool \"{}\": {message}", self.pool_name());
        }
    }

    pub fn pool_name(&self) -> &str {
        self.pool.as_ref().map_or("", |pool| &pool.name)
    }
}

/// The term that this data directory had before this start.
fn recall() -> Option<LeftTerm> {
    match memory::recall() {
        Recollection::Nothing => None,
        Recollection::Pool(memory) => LeftTerm::of(memory),
        Recollection::Unreadable(why) => {
            errors::memory_unreadable(&why).warn();
            None
        }
    }
}

/// The pool of an earlier keeper's lease. How it was reached is known if it is still the configured one.
fn pool_of_lease(name: String) -> Pool {
    let configured = settings::worker_pool().filter(|pool| pool.name == name);
    configured.unwrap_or_else(|| Pool { name, coordinator: c"".to_owned() })
}

/// Sleeps until a signal comes, or not at all if one has come that is not answered yet: whoever waited since may have reset the
/// latch. Interrupts of PostgreSQL's own are served.
fn sleep_until_woken() {
    if is_interrupted() {
        return;
    }
    latch::wait(None, WaitEvent::EXTENSION);
    check_for_interrupts!();
}

/// Random in [0, 1).
fn jitter() -> f64 {
    (session::random_i64() as u64 >> 11) as f64 / (1u64 << 53) as f64
}

/// Is it the server that is stopping, and not only this process? As the postmaster's own file says, in its last line.
fn is_server_stopping() -> bool {
    let status = std::fs::read_to_string("postmaster.pid").unwrap_or_default();
    status.lines().nth(7).is_some_and(|line| line.trim() == "stopping")
}
