//! What the keeper does with a coordinator: it renews or acquires, has that confirmed, and gives back.
//!
//! A grant counts once the coordinator has confirmed it: the answer to the grant says only that the coordinator itself has it, and
//! a standby that is promoted may not. Nothing else that the coordinator says decides.

use super::coordinator::{self, Coordinator};
use super::keeper::{FIRST_PACE, Keeper, is_interrupted, is_stop_requested};
use super::memory;
use super::place;
use super::state::Term;
use super::state::{LEASE, STATE};
use crate::clock;
use crate::pg::libpq::{Patience, Trouble};
use crate::pg::system_clock;
use crate::settings::{self, Pool};
use crate::snowflake::node;
use idgen_core::worker::coordinator::Pace;
use idgen_core::worker::memory::{Memory, Remembered};
use pgrx::prelude::*;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long a stop of the server waits for its worker id to be given back.
const LONGEST_STOP: Duration = Duration::from_secs(5);

/// What the server had before this start.
pub(super) struct LeftTerm {
    pub term: Remembered,
}

impl LeftTerm {
    /// `None` where another directory has written it: this one is a copy, and the term its origin's.
    pub fn of(memory: Memory) -> Option<Self> {
        let is_own = place::of_data_directory().is_ok_and(|place| place == memory.place);
        memory.term.filter(|_| is_own).map(|term| Self { term })
    }
}

impl Keeper {
    /// By a connection of its own: one that was kept would have to be watched, and would keep the coordinator from an orderly
    /// stop, all the more if that is this server.
    pub fn ask(&mut self) -> Result<(), Trouble> {
        let reached_ms = self.reached_ms();
        self.remember_the_pool()?;
        let patience = Patience { time: self.pace.patience(), is_interrupted };
        let mut coordinator = self.connect(patience)?;
        self.end_left_term(&mut coordinator)?;
        // A coordinator that is another than the one that granted the term knows nothing of it.
        let is_renewed = match self.held().filter(|term| term.coordinator == coordinator.identity) {
            Some(term) => self.renew(&mut coordinator, term, reached_ms)?,
            None => false,
        };
        if !is_renewed {
            self.acquire(&mut coordinator, reached_ms)?;
        }
        self.confirm(&mut coordinator, reached_ms)?;
        let host = coordinator.host();
        LEASE.exclusive(|lease| lease.coordinator.set(&host));
        Ok(())
    }

    fn connect(&mut self, patience: Patience) -> Result<Coordinator, Trouble> {
        let pool = self.pool.as_ref().ok_or_else(|| Trouble::new("idgen.worker_pool is not set"))?;
        Coordinator::connect(pool, &mut self.resolver, self.turn, patience)
    }

    /// The time that ids or clocks of this server have come to, in milliseconds since 1970. A lease is to last from there on, so
    /// that it stops no server that is ahead of the coordinator's clock.
    fn reached_ms(&self) -> i64 {
        let next_ms = clock::next_ms();
        next_ms.max(self.needed_ms).max(system_clock::wall_ms())
    }

    /// The term to go on with: one that is not confirmed yet, else the one that is used.
    fn held(&self) -> Option<Term> {
        LEASE.exclusive(|lease| lease.pending.or(lease.term))
    }

    /// Notes durably that this server has a pool, before it has a worker id of it. What is known of an earlier term stays.
    fn remember_the_pool(&self) -> Result<(), Trouble> {
        match memory::recall() {
            memory::Recollection::Nothing => memory::remember(None).map_err(unwritten),
            // What cannot be read may name a term: it is replaced by the next term only.
            memory::Recollection::Pool(_) | memory::Recollection::Unreadable(_) => Ok(()),
        }
    }

    /// Ends the term that the server had before this start. It had no time to give it back, so all its id times count as used.
    fn end_left_term(&mut self, coordinator: &mut Coordinator) -> Result<(), Trouble> {
        let Some(LeftTerm { term }) = &self.left else {
            return Ok(());
        };
        if term.coordinator == coordinator.identity {
            match coordinator.end(&term.pool, term.token) {
                Err(trouble) if !coordinator::is_loss(&trouble) => return Err(trouble),
                _ => {}
            }
        }
        self.left = None;
        Ok(())
    }

    /// False if the term is lost: it has ended, or another process has renewed it.
    fn renew(&mut self, coordinator: &mut Coordinator, term: Term, reached_ms: i64) -> Result<bool, Trouble> {
        let pool = self.pool_name().to_owned();
        let told = match coordinator.renew(&pool, &term, reached_ms) {
            Ok(told) => told,
            Err(trouble) if coordinator::is_loss(&trouble) => {
                // While there is no other one, each try comes here.
                if self.failures == 0 {
                    log!("worker id {} of pool \"{pool}\" is lost: {}", term.number, trouble.message);
                }
                self.lose(coordinator, term)?;
                return Ok(false);
            }
            Err(trouble) => return Err(trouble),
        };
        self.pace = Pace { ttl: told.ttl };
        let (is_used, is_known) = LEASE.exclusive(|lease| {
            for held in [&mut lease.term, &mut lease.pending].into_iter().flatten() {
                if held.token == term.token {
                    held.told_us = told.not_after_us;
                }
            }
            let is_used = lease.pending.is_none();
            (is_used, is_used && lease.pool.text().as_deref() == Some(&pool))
        });
        // One that is not used yet may not have been remembered.
        if !is_known {
            self.remember_term(&pool, &term)?;
        }
        if is_used {
            self.former = None;
            LEASE.exclusive(|lease| lease.pool.set(&pool));
        }
        Ok(true)
    }

    /// Ends what is left of a term that is lost, so that its worker id is free for this server. Where it is a term of the pool before, it
    /// is kept until there is another.
    fn lose(&mut self, coordinator: &mut Coordinator, term: Term) -> Result<(), Trouble> {
        if self.former.as_ref().is_some_and(|former| former.name != self.pool_name()) {
            return Ok(());
        }
        match coordinator.end(self.pool_name(), term.token) {
            Err(trouble) if !coordinator::is_loss(&trouble) => return Err(trouble),
            _ => {}
        }
        LEASE.exclusive(|lease| lease.pending = None);
        self.last_worker = Some(term.number);
        Ok(())
    }

    /// The worker id to ask for: the one that the server issues under, else the one that it had last.
    fn preferred(&self) -> Option<u32> {
        match node::CURRENT.require().is_setting() {
            true => Some(settings::node().worker),
            false => self.held().map(|term| term.number).or(self.last_worker),
        }
    }

    fn acquire(&mut self, coordinator: &mut Coordinator, reached_ms: i64) -> Result<(), Trouble> {
        let pool = self.pool_name().to_owned();
        let (term, ttl) = coordinator.acquire(&pool, &label(), reached_ms, self.preferred())?;
        self.pace = Pace { ttl };
        LEASE.exclusive(|lease| lease.pending = Some(term));
        // Before it is used: a server that starts again ends it.
        self.remember_term(&pool, &term)
    }

    fn remember_term(&self, pool: &str, term: &Term) -> Result<(), Trouble> {
        let (coordinator, token, worker) = (term.coordinator, term.token, term.number);
        let term = Remembered { pool: pool.to_owned(), coordinator, token, worker };
        memory::remember(Some(term)).map_err(unwritten)
    }

    /// Has what was told confirmed, and uses it.
    fn confirm(&mut self, coordinator: &mut Coordinator, reached_ms: i64) -> Result<(), Trouble> {
        let Some(mut term) = self.held() else {
            return Ok(());
        };
        // No more than was told: what another process has renewed with this token is not this server's.
        let confirmed = coordinator.confirm(self.pool_name(), term.token).map_err(unconfirmed);
        let certain_us = confirmed?.min(term.told_us);
        term.interval.not_after_us = certain_us.max(term.interval.not_after_us);
        match LEASE.exclusive(|lease| lease.pending.is_some()) {
            true => self.begin(term, reached_ms),
            false => self.prolong(term, reached_ms),
        }
        Ok(())
    }

    fn prolong(&mut self, term: Term, reached_ms: i64) {
        // The end first: a waiting session that sees the new lease must see its end too.
        clock::extend_to(term.interval.end_ms());
        self.note_lease(term, reached_ms);
        STATE.require().renewals.fetch_add(1, Relaxed);
    }

    /// From now on ids are issued in this term.
    fn begin(&mut self, term: Term, reached_ms: i64) {
        let node = node::CURRENT.require();
        let by_hand = node.is_setting().then(|| settings::node().worker);
        let before = clock::confine(term.interval.first_ms(), term.interval.end_ms(), || {
            node.set_leased(term.number);
            self.note_lease(term, reached_ms)
        });
        self.last_worker = Some(term.number);
        let pool = self.pool_name().to_owned();
        if let Some(by_hand) = by_hand.filter(|by_hand| *by_hand != term.number) {
            warning!(
                "worker id {by_hand}, which idgen.worker_id sets, is not free in pool \"{pool}\": another server may use it"
            );
        }
        if before.is_none_or(|before| before.number != term.number) {
            STATE.require().changes.fetch_add(1, Relaxed);
            log!("this server is worker {} of pool \"{pool}\" from now on", term.number);
        }
        let former = self.former.take();
        LEASE.exclusive(|lease| lease.pool.set(&pool));
        if let (Some(former), Some(before)) = (former, before) {
            self.release(&former, &before, Some(self.last_used_us()), Instant::now() + LONGEST_STOP, is_stop_requested);
        }
    }

    /// Writes down what is certain; returns what was before.
    fn note_lease(&self, term: Term, reached_ms: i64) -> Option<Term> {
        let (ttl, asked_us) = (self.pace.ttl, self.asked_us);
        LEASE.exclusive(|lease| {
            (lease.ttl, lease.renewed_us, lease.pending) = (ttl, asked_us, None);
            // It was asked for to last its ttl from there on.
            lease.falls_short = term.interval.end_ms() < reached_ms.saturating_add(ttl.as_millis() as i64 / 2);
            lease.term.replace(term)
        })
    }

    /// Nothing is issued at this microsecond since 1970 or later, by any layout.
    fn last_used_us(&self) -> i64 {
        let settled_ms = clock::settled_ms();
        settled_ms.saturating_mul(1000).saturating_sub(1)
    }

    /// Gives the worker id back, and says up to where it was used: so the next holder, which may be this server after its
    /// restart, begins right there. Nothing is issued any more when it does.
    pub fn give_back(&mut self, is_interrupted: fn() -> bool) {
        let (term, pending) = LEASE.exclusive(|lease| (lease.term.take(), lease.pending.take()));
        let (former, pool) = (self.former.take(), self.pool.take());
        let until = Instant::now() + LONGEST_STOP;
        if let (Some(term), Some(pool)) = (term, former.as_ref().or(pool.as_ref())) {
            clock::confine(i64::MIN, i64::MIN, || node::CURRENT.require().set_none());
            self.release(pool, &term, Some(self.last_used_us()), until, is_interrupted);
        }
        // No id was issued in it. But a copy of this server's memory may have it too.
        if let (Some(pending), Some(pool)) = (pending, &pool) {
            self.release(pool, &pending, None, until, is_interrupted);
        }
        self.pace = FIRST_PACE;
    }

    /// Gives a term back, by another address where the first is silent. What goes wrong is logged: the term ends by itself.
    fn release(
        &mut self,
        pool: &Pool,
        term: &Term,
        last_us: Option<i64>,
        until: Instant,
        is_interrupted: fn() -> bool,
    ) {
        let mut outcome = Ok(());
        for _ in 0..2 {
            let left = until.saturating_duration_since(Instant::now());
            let patience = Patience { time: left.min(LONGEST_STOP / 2), is_interrupted };
            outcome =
                Coordinator::connect(pool, &mut self.resolver, self.turn, patience).and_then(|mut coordinator| {
                    match term.coordinator == coordinator.identity {
                        true => coordinator.release(&pool.name, term, last_us),
                        false => Err(Trouble::new("it is another coordinator's")),
                    }
                });
            if outcome.is_ok() {
                return;
            }
            self.turn += 1;
        }
        if let Err(Trouble { message, .. }) = outcome {
            log!("could not give back worker {} of pool \"{}\": {message}", term.number, pool.name);
        }
    }
}

fn unconfirmed(trouble: Trouble) -> Trouble {
    let message = format!("not confirmed to be on the coordinator's synchronous standbys: {}", trouble.message);
    Trouble { message, ..trouble }
}

fn unwritten(error: std::io::Error) -> Trouble {
    Trouble::new(format!("could not write file \"{}\": {error}", memory::PATH))
}

/// What this server is called in the pool: for people, and so that it gets the worker id again that it had last.
fn label() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let directory = std::env::current_dir().unwrap_or_default();
    // SAFETY: set when the server starts.
    format!("{}:{}{}", host.trim(), unsafe { pg_sys::PostPortNumber }, directory.display())
}
