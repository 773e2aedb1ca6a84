//! The keeper: the background worker that leases this server's number from the coordinator, and renews the lease long
//! before it ends. It writes down here what it has been granted; nobody waits for it but who has no number yet.
//!
//! A lease is known by its token, which is in shared memory: a keeper that was ended goes on with it, and a server that
//! starts again, or whose memory was made anew after a crash, leases anew. A copy of it could not be told from it.

use super::coordinator::{Coordinator, Grant, Renewal};
use super::libpq::{Patience, Resolver, Trouble};
use super::place::NOTHING;
use super::state::{Lease, Term};
use crate::clock::{self, boot_us, wall_ms};
use crate::pg_compat::set_signal_handler;
use crate::random;
use crate::settings::{self, Pool};
use crate::shmem::{self, Shared};
use idgen_core::worker::Interval;
use idgen_core::worker::coordinator::Pace;
use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder, BgWorkerStartTime, SignalWakeFlags};
use pgrx::prelude::*;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

fn builder() -> BackgroundWorkerBuilder {
    BackgroundWorkerBuilder::new("idgen keeper")
        .set_library("idgen")
        .set_function("idgen_keeper")
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(Duration::from_secs(1)))
}

/// Called while the postmaster preloads libraries.
pub fn register() {
    // SAFETY: a flag that is set before. A server that is upgraded makes no ids.
    if settings::has_worker_pool() && !unsafe { pg_sys::IsBinaryUpgrade } {
        builder().load();
    }
}

/// Starts the keeper where there is none: the pool was set after the server had started.
pub fn ensure_running() {
    if !settings::has_worker_pool() {
        return;
    }
    let Some(shared) = shmem::shared() else {
        return;
    };
    let place = &shared.worker.keeper;
    if place.may_start() && builder().load_dynamic().is_err() {
        // Who has no number hears of it; the next one tries again.
        place.give_up();
    }
}

unsafe extern "C-unwind" {
    /// PostgreSQL's handler of SIGTERM. Declared here, because pgrx's wrapper of it is no C function.
    fn die(signal: std::ffi::c_int);
}

/// The worker.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_keeper(_arg: pg_sys::Datum) {
    // SAFETY: as the first thing of a background worker.
    unsafe { set_signal_handler(libc::SIGTERM, Some(die)) };
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP);
    let Some(shared) = shmem::shared().filter(|shared| shared.worker.keeper.take()) else {
        return;
    };
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
    unsafe { pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP) };
}

struct Keeper {
    shared: &'static Shared,
    pool: Pool,
    resolver: Resolver,
    /// Which host is asked first.
    turn: usize,
    /// Tries that have failed in a row.
    failures: u32,
    pace: Pace,
    /// As in `Place`, until it was asked for.
    needed_ms: i64,
    /// When it was looked last what is needed, by CLOCK_BOOTTIME.
    asked_us: i64,
    /// When to ask next.
    due: Instant,
}

/// Until the pool has said how long its leases last.
const FIRST_PACE: Pace = Pace { ttl: Duration::from_secs(30) };

impl Keeper {
    /// Goes on with what an earlier keeper of this server has leased.
    fn new(shared: &'static Shared) -> Self {
        let lease = shared.with_worker(|lease| *lease);
        Self {
            shared,
            // Until the settings are looked at.
            pool: Pool { name: lease.pool.text().unwrap_or_default(), coordinator: c"".to_owned() },
            resolver: Resolver::default(),
            turn: 0,
            failures: 0,
            pace: if lease.term.is_some() { Pace { ttl: lease.ttl } } else { FIRST_PACE },
            needed_ms: NOTHING,
            asked_us: 0,
            due: Instant::now(),
        }
    }

    /// The main loop. Ends when no number is to be leased any more.
    fn run(mut self) {
        while self.follow_settings() {
            // Before it is looked what is needed: who has asked before this is answered by what is asked now.
            self.asked_us = boot_us();
            self.needed_ms = self.shared.worker.keeper.take_needed_ms().max(self.needed_ms);
            // After a failure at the pace of failures, however many need more.
            let is_asked = self.needed_ms != NOTHING && self.failures == 0;
            if is_asked || self.due <= Instant::now() {
                let pause = self.ask_and_tell();
                self.due = Instant::now() + pause;
            }
            // Rounded up: the latch counts in milliseconds.
            clock::sleep(self.due.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
            // SAFETY: a flag of this process.
            if unsafe { pg_sys::ProcDiePending } != 0 && is_server_stopping() {
                self.let_go();
            }
            check_for_interrupts!();
            if BackgroundWorker::sighup_received() {
                reload();
            }
        }
    }

    /// Goes by the settings as they are now. False if the number is a setting again.
    fn follow_settings(&mut self) -> bool {
        let Some(pool) = settings::worker_pool() else {
            self.let_go();
            // Undecided acts as 0, and that may be another server's by now.
            if self.shared.worker.is_set() || !settings::worker_undecided() {
                clock::confine(self.shared, i64::MIN, i64::MAX, || self.shared.worker.set_by_setting());
            }
            self.shared.with_worker(|lease| *lease = Lease::default());
            self.shared.worker.changed.ring();
            return false;
        };
        if pool != self.pool {
            if pool.name != self.pool.name {
                self.let_go();
                self.shared.with_worker(|lease| {
                    *lease = Lease::default();
                    lease.pool.set(&pool.name);
                });
            }
            // Elsewhere the lease may be unknown; that is for the coordinator to say.
            (self.turn, self.failures) = (0, 0);
            (self.pool, self.due) = (pool, Instant::now());
        }
        true
    }

    /// Asks the coordinator once, and tells how it went. Returns when to ask again.
    fn ask_and_tell(&mut self) -> Duration {
        let outcome = self.ask(self.reached_ms());
        let pause = match outcome {
            Ok(()) => {
                (self.failures, self.needed_ms) = (0, NOTHING);
                let failed = self.shared.with_worker(|lease| {
                    lease.last_error.clear();
                    lease.failing_since_ms.take()
                });
                if failed.is_some() {
                    log!("the coordinator of worker pool \"{}\" answers again", self.pool.name);
                }
                self.pace.renew_after(jitter())
            }
            Err(trouble) => {
                self.turn += 1;
                self.note(&trouble.message);
                let pause = self.pace.retry_after(self.failures, jitter());
                self.failures += 1;
                pause
            }
        };
        self.shared.worker.changed.ring();
        pause
    }

    /// Keeps what went wrong for the view, and for who needs an id; the first time in a row the server's log has it too.
    fn note(&self, message: &str) {
        self.shared.worker.failures.fetch_add(1, Relaxed);
        let now_ms = wall_ms();
        let is_first = self.shared.with_worker(|lease| {
            let is_first = lease.failing_since_ms.is_none();
            lease.failing_since_ms.get_or_insert(now_ms);
            lease.last_error.set(message);
            is_first
        });
        if is_first {
            log!("could not lease a worker id from pool \"{}\": {message}", self.pool.name);
        }
    }

    /// By a connection of its own: one that was kept would have to be watched, and would keep the coordinator from an orderly
    /// stop, all the more if that is this server.
    fn ask(&mut self, reached_ms: i64) -> Result<(), Trouble> {
        let mut coordinator = self.connect()?;
        let term = self.shared.with_worker(|lease| lease.term);
        // A coordinator that is another than the one that granted the lease knows nothing of it.
        let is_renewed = match term.filter(|term| term.coordinator == coordinator.identity) {
            Some(term) => self.renew(&mut coordinator, term, reached_ms)?,
            None => false,
        };
        if !is_renewed {
            self.acquire(&mut coordinator, reached_ms)?;
        }
        let host = coordinator.host();
        self.shared.with_worker(|lease| lease.coordinator.set(&host));
        Ok(())
    }

    fn connect(&mut self) -> Result<Coordinator, Trouble> {
        if self.pool.coordinator.is_empty() {
            return Err(Trouble::new("idgen.coordinator is not set"));
        }
        let patience = Patience { time: self.pace.patience(), is_interrupted: || false };
        Coordinator::connect(&self.pool.coordinator, &mut self.resolver, self.turn, patience)
    }

    /// The time that ids or clocks of this server have come to, in milliseconds since 1970. A lease is to last from there on, so
    /// that it stops no server that is ahead of the coordinator's clock.
    fn reached_ms(&self) -> i64 {
        let next_ms = self.shared.with_table(|table| table.next_ms());
        next_ms.max(self.needed_ms).max(wall_ms())
    }

    /// False if the lease is lost: it has ended, and somebody else has the number, or may have it.
    fn renew(&mut self, coordinator: &mut Coordinator, term: Term, reached_ms: i64) -> Result<bool, Trouble> {
        let Some(Renewal { not_after_us, ttl }) = coordinator.renew(&self.pool.name, term.token, reached_ms)? else {
            return Ok(false);
        };
        let interval = Interval { not_after_us, ..term.interval };
        // Before it is noted: whoever waits for it looks at that.
        self.shared.with_table(|_| self.shared.clock.mark.end_at(interval.end_ms()));
        self.note_lease(Term { interval, ..term }, ttl, reached_ms);
        self.shared.worker.renewals.fetch_add(1, Relaxed);
        Ok(true)
    }

    fn acquire(&mut self, coordinator: &mut Coordinator, reached_ms: i64) -> Result<(), Trouble> {
        let Grant { term, ttl } = coordinator.acquire(&self.pool.name, &label(), reached_ms)?;
        let (worker, interval) = (&self.shared.worker, term.interval);
        let before = clock::confine(self.shared, interval.first_ms(), interval.end_ms(), || {
            worker.set_number(term.number);
            self.note_lease(term, ttl, reached_ms)
        });
        if before.is_none_or(|before| before.number != term.number) {
            worker.changes.fetch_add(1, Relaxed);
            log!("this server is worker {} of pool \"{}\" from now on", term.number, self.pool.name);
        }
        Ok(())
    }

    /// Writes down what was granted; returns what was before.
    fn note_lease(&mut self, term: Term, ttl: Duration, reached_ms: i64) -> Option<Term> {
        self.pace = Pace { ttl };
        let asked_us = self.asked_us;
        self.shared.with_worker(|lease| {
            (lease.ttl, lease.renewed_us) = (ttl, asked_us);
            // It was asked for to last its ttl from there on.
            lease.falls_short = term.interval.end_ms() < reached_ms.saturating_add(ttl.as_millis() as i64 / 2);
            lease.term.replace(term)
        })
    }

    /// Gives the number back, and says up to where it was used: so the next holder, who may be this server after its
    /// restart, begins right there. Nothing is issued any more when it does.
    fn let_go(&mut self) {
        let Some(term) = self.shared.with_worker(|lease| lease.term.take()) else {
            return;
        };
        clock::confine(self.shared, i64::MIN, i64::MIN, || self.shared.worker.set_none());
        // The first time at which nothing was issued by any layout.
        let settled_ms = self.shared.with_table(|table| table.settled_ms());
        let last_us = settled_ms.saturating_mul(1000).saturating_sub(1);
        // A stop waits for it.
        self.pace = Pace { ttl: Duration::ZERO };
        // SAFETY: a variable of this process. A stop that has come already shall not end it before this is done.
        unsafe { pg_sys::InterruptHoldoffCount += 1 };
        let released = self.connect().and_then(|mut coordinator| match term.coordinator == coordinator.identity {
            true => coordinator.release(&self.pool.name, term.token, last_us),
            false => Err(Trouble::new("it is another coordinator's")),
        });
        // SAFETY: as above.
        unsafe { pg_sys::InterruptHoldoffCount -= 1 };
        self.pace = FIRST_PACE;
        if let Err(Trouble { message, .. }) = released {
            log!("could not give back worker {} of pool \"{}\": {message}", term.number, self.pool.name);
        }
    }
}

/// Random in [0, 1).
fn jitter() -> f64 {
    (random::number() as u64 >> 11) as f64 / (1u64 << 53) as f64
}

/// What this server is called in the pool: for people, and so that it gets the number again that it had last.
fn label() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let directory = std::env::current_dir().unwrap_or_default();
    // SAFETY: set when the server starts.
    format!("{}:{}{}", host.trim(), unsafe { pg_sys::PostPortNumber }, directory.display())
}

/// Is it the server that is stopping, and not only this process? As the postmaster's own file says, in its last line.
fn is_server_stopping() -> bool {
    let status = std::fs::read_to_string("postmaster.pid").unwrap_or_default();
    status.lines().nth(7).is_some_and(|line| line.trim() == "stopping")
}
