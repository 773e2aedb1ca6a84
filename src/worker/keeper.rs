//! The keeper: the background worker that leases this server's worker id from the coordinator, and renews the lease long
//! before it ends. It runs from the start of the server on, and sleeps while no pool is configured. It writes down here what it has
//! been granted; sessions wait for it only while there is no worker id yet.
//!
//! A lease is known by its token, which is in shared memory: a keeper that was ended goes on with it. A server that starts
//! again, also after a crash of a backend, ends its last term, which the file `idgen_worker` names, and acquires again.

use super::handle::NOTHING;
use super::leasing::LeftTerm;
use super::libpq::{Resolver, Trouble};
use super::memory::{self, Recollection};
use super::state::{self, Lease};
use crate::clock::{self, boot_us, wall_ms};
use crate::pg_compat::set_signal_handler;
use crate::settings::{self, Pool};
use crate::shmem::{self, Shared};
use crate::{error, random};
use idgen_core::worker::coordinator::Pace;
use pgrx::bgworkers::{BackgroundWorkerBuilder, BgWorkerStartTime};
use pgrx::prelude::*;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Called while the postmaster preloads libraries. Always: a pool can be configured by a reload.
pub fn register() {
    // SAFETY: a flag that is set before. A server that is upgraded makes no ids.
    if !unsafe { pg_sys::IsBinaryUpgrade } {
        BackgroundWorkerBuilder::new("idgen keeper")
            .set_library("idgen")
            .set_function("idgen_keeper")
            .set_start_time(BgWorkerStartTime::RecoveryFinished)
            .set_restart_time(Some(Duration::from_secs(1)))
            .load();
    }
}

unsafe extern "C-unwind" {
    /// PostgreSQL's handler of SIGHUP. Declared here, because pgrx's wrapper of it is no C function.
    fn SignalHandlerForConfigReload(signal: c_int);
}

/// SIGTERM has come. Not PostgreSQL's own handler: what is under way is to end in order.
static IS_STOP_REQUESTED: AtomicBool = AtomicBool::new(false);

unsafe extern "C-unwind" fn on_stop(_signal: c_int) {
    // SAFETY: as in PostgreSQL's own handlers: SetLatch may be called in one, and errno stays as it was.
    unsafe {
        let errno = *libc::__errno_location();
        IS_STOP_REQUESTED.store(true, Relaxed);
        pg_sys::SetLatch(pg_sys::MyLatch);
        *libc::__errno_location() = errno;
    }
}

pub(super) fn is_stop_requested() -> bool {
    IS_STOP_REQUESTED.load(Relaxed)
}

fn is_reload_requested() -> bool {
    // SAFETY: a flag of this process.
    unsafe { pg_sys::ConfigReloadPending != 0 }
}

/// Does what is asked of the coordinator have to end? A reload may have taken the pool away.
pub(super) fn is_interrupted() -> bool {
    is_stop_requested() || is_reload_requested()
}

/// The worker.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_keeper(_arg: pg_sys::Datum) {
    // SAFETY: as the first thing of a background worker.
    unsafe {
        set_signal_handler(libc::SIGTERM, Some(on_stop));
        set_signal_handler(libc::SIGHUP, Some(SignalHandlerForConfigReload));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
    let Some(shared) = shmem::shared() else {
        return;
    };
    shared.worker.keeper.enter();
    // SAFETY: the callback has the signature of one.
    unsafe { pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::null()) };
    // A reload before the handler was there would be missed.
    reload();
    Keeper::new(shared).run();
}

#[pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: i32, _arg: pg_sys::Datum) {
    if let Some(shared) = shmem::shared() {
        shared.worker.keeper.leave();
    }
}

fn reload() {
    // SAFETY: in the main loop of a process, as PostgreSQL's own do it.
    unsafe {
        pg_sys::ConfigReloadPending = 0;
        pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
    }
}

pub(super) struct Keeper {
    pub shared: &'static Shared,
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
    fn new(shared: &'static Shared) -> Self {
        let lease = shared.with_worker(|lease| *lease);
        let is_leased = lease.term.or(lease.pending).is_some();
        let left = if is_leased { None } else { recall() };
        Self {
            shared,
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
            if is_reload_requested() {
                reload();
            }
            self.follow_settings();
            if self.pool.is_none() {
                sleep_until_woken();
                continue;
            }
            // Before it is looked what is needed: what was asked for before this is answered by what is asked now.
            self.asked_us = boot_us();
            self.needed_ms = self.shared.worker.keeper.take_needed_ms().max(self.needed_ms);
            // After a failure at the pace of failures, however many need more.
            let is_asked = self.needed_ms != NOTHING && self.failures == 0;
            if is_asked || self.due <= Instant::now() {
                let pause = self.ask_and_tell();
                self.due = Instant::now() + pause;
            }
            if !is_interrupted() {
                // Rounded up: the latch counts in milliseconds.
                clock::sleep(self.due.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
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
        state::end_unset(self.shared);
        let pool = settings::worker_pool();
        self.shared.worker.has_pool.store(pool.is_some(), Relaxed);
        // A keeper before this one may have ended in between, and may have had no lease.
        let is_left = pool.is_none() && !settings::worker_undecided() && !self.shared.worker.is_set();
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
        if let Some(pending) = self.shared.with_worker(|lease| lease.pending.take()) {
            self.last_worker = Some(pending.number);
            self.left = recall().filter(|left| left.term.token == pending.token);
        }
        if self.former.is_none() && self.shared.with_worker(|lease| lease.term.is_some()) {
            self.former = self.pool.take();
        }
    }

    /// No pool is configured any more.
    fn leave_pool(&mut self) {
        self.give_back(is_stop_requested);
        if !settings::worker_undecided() {
            clock::confine(self.shared, i64::MIN, i64::MAX, || self.shared.worker.set_by_setting());
            // The worker id is set by hand: no pool is in charge of it.
            if let Err(error) = memory::remember(None) {
                error::worker::memory_not_written(&error).warn();
            }
        }
        (self.former, self.left, self.last_worker) = (None, None, None);
        self.shared.with_worker(|lease| *lease = Lease::default());
        self.shared.worker.changed.ring();
    }

    /// Asks the coordinator once, and tells how it went. Returns when to ask again.
    fn ask_and_tell(&mut self) -> Duration {
        let pause = match self.ask() {
            Ok(()) => {
                (self.failures, self.needed_ms) = (0, NOTHING);
                let failed = self.shared.with_worker(|lease| {
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
        self.shared.worker.changed.ring();
        pause
    }

    /// Keeps what went wrong for the view, and for errors of sessions; the first time in a row the server's log has it too.
    fn note(&self, trouble: &Trouble) {
        let message = &trouble.message;
        self.shared.worker.failures.fetch_add(1, Relaxed);
        let now_ms = wall_ms();
        let is_first = self.shared.with_worker(|lease| {
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
            error::worker::memory_unreadable(&why).warn();
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
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: every process has its latch, and waits on it alone.
    unsafe {
        pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, -1, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    check_for_interrupts!();
}

/// Random in [0, 1).
fn jitter() -> f64 {
    (random::number() as u64 >> 11) as f64 / (1u64 << 53) as f64
}

/// Is it the server that is stopping, and not only this process? As the postmaster's own file says, in its last line.
fn is_server_stopping() -> bool {
    let status = std::fs::read_to_string("postmaster.pid").unwrap_or_default();
    status.lines().nth(7).is_some_and(|line| line.trim() == "stopping")
}
