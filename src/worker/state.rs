//! The lease of this server's worker id, as all its processes know it.

use super::errors;
use super::handle::Handle;
use super::memory::{self, Recollection};
use crate::clock;
use crate::pg::condition_variable::ConditionVariable;
use crate::pg::system_clock;
use crate::pg::wait_event::WaitEvent;
use crate::settings;
use crate::shmem::{FixedText, Locked, Part};
use crate::snowflake::node;
use idgen_core::layout::Node;
use idgen_core::worker::Interval;
use idgen_core::worker::memory::Identity;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

pub static STATE: Part<State> = Part::new(c"idgen worker", |_| State::new());

/// The keeper writes it; sessions read it for their errors. Acquired under the generators' lock where a worker id and its
/// lease become known together.
pub static LEASE: Locked<Lease> = Locked::new(c"idgen worker lease", 30, |_| Lease::default());

pub struct State {
    /// The memory file could not be read when the server started: the server may have had a pool.
    pub is_memory_unreadable: AtomicBool,
    /// The worker id comes from a pool, by the settings as the keeper has read them. A long statement has older ones.
    pub has_pool: AtomicBool,
    pub keeper: Handle,
    pub renewals: AtomicU64,
    pub failures: AtomicU64,
    /// How often the worker id has changed.
    pub changes: AtomicU64,
    /// Signalled when the worker id or its lease has changed, and after each try of the keeper.
    pub changed: ConditionVariable,
}

/// What the keeper has from the coordinator.
#[derive(Clone, Copy, Default)]
pub struct Lease {
    /// The pool of the term.
    pub pool: FixedText<255>,
    pub term: Option<Term>,
    /// Acquired, and not known yet to be on the coordinator's standbys: no id is issued in it.
    pub pending: Option<Term>,
    pub ttl: Duration,
    /// When the last grant or renewal was asked for, by CLOCK_BOOTTIME in microseconds.
    pub renewed_us: i64,
    /// The last grant or renewal ends before, or soon after, where the server's ids or clock are: as far as the coordinator lets
    /// a lease go.
    pub falls_short: bool,
    /// Milliseconds since 1970; `None` when the last try went well.
    pub failing_since_ms: Option<i64>,
    pub last_error: FixedText<800>,
    /// Host and port that have answered last.
    pub coordinator: FixedText<255>,
}

/// What is leased, by what it is known, and where.
#[derive(Clone, Copy)]
pub struct Term {
    pub number: u32,
    pub token: i64,
    pub coordinator: Identity,
    /// What ids may use: its end is certain, whichever standby of the coordinator is promoted.
    pub interval: Interval,
    /// The last `not_after` that the coordinator has told, certain or not. The next renewal says it.
    pub told_us: i64,
}

impl Lease {
    pub fn interval(&self) -> Option<Interval> {
        self.term.map(|term| term.interval)
    }

    /// Has it not been renewed for as long as it lasts, and the time that a renewal takes?
    pub fn is_overdue(&self, now_us: i64) -> bool {
        now_us.saturating_sub(self.renewed_us) >= self.ttl.as_micros() as i64 + 1_000_000
    }
}

impl State {
    fn new() -> Self {
        Self {
            is_memory_unreadable: AtomicBool::new(false),
            has_pool: AtomicBool::new(settings::has_worker_pool()),
            keeper: Handle::new(),
            renewals: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            changed: ConditionVariable::new(),
        }
    }

    fn reset(&self) {
        for counter in [&self.renewals, &self.failures, &self.changes] {
            counter.store(0, Relaxed);
        }
    }
}

/// Sets the counters to zero.
pub fn reset() {
    STATE.get().into_iter().for_each(State::reset);
}

/// In the postmaster at the start, by what the server remembers. A worker id set by hand is good until the first lease: from
/// then on a pool is in charge of it, and may have given it to another server.
pub fn begin() {
    let memory = memory::recall();
    let is_good = match (settings::has_worker_pool(), settings::worker_undecided()) {
        (true, true) => false,
        (true, false) => !memory.is_of_term(),
        (false, true) => !memory.is_of_pool(),
        (false, false) => true,
    };
    STATE.require().is_memory_unreadable.store(matches!(memory, Recollection::Unreadable(_)), Relaxed);
    if !is_good {
        // Nothing is leased yet, so nothing is allowed.
        node::CURRENT.require().set_none();
        clock::confine_to_nothing_at_start();
    }
}

/// A server with a pool issues no id under a worker id that is not set. The keeper reads the settings at each reload; a session
/// that has read them before the keeper does not wait for it.
pub fn follow_settings() {
    let (state, node) = (STATE.require(), node::CURRENT.require());
    let is_unset = || settings::has_worker_pool() && settings::worker_undecided() && node.is_setting();
    if is_unset() {
        // Tested again under the lock: the keeper may have leased one.
        clock::confine_if(is_unset, i64::MIN, i64::MIN, || {
            state.has_pool.store(true, Relaxed);
            node.set_none();
        });
    }
}

/// How long to wait for the first answer of a coordinator, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to sleep at most: a lease ends without a signal.
const PAUSE: Duration = Duration::from_millis(100);

/// This server's worker id. Waits while the keeper is at its first try to lease one; raises 55000 if that has failed.
pub fn wait_for_node() -> Node {
    let state = STATE.require();
    let began = Instant::now();
    loop {
        state.changed.prepare_to_sleep();
        let node = node::CURRENT.require().get();
        let is_failing = LEASE.shared(|lease| lease.failing_since_ms.is_some());
        let is_pending = state.has_pool.load(Relaxed) && !is_failing && began.elapsed() < PATIENCE;
        if node.is_none() && is_pending {
            state.changed.sleep(PAUSE, WaitEvent::EXTENSION);
            continue;
        }
        ConditionVariable::cancel_sleep();
        return node.unwrap_or_else(|| refuse(state));
    }
}

/// Ids have reached the end of the lease, the next one has this time: asks the keeper for more, and waits while it asks the
/// coordinator. Raises 55000 if the clock is at the end too and the coordinator does not answer, or the keeper does not ask.
pub fn wait_for_renewal(time_ms: i64) {
    let (state, clock) = (STATE.require(), clock::STATE.require());
    if !LEASE.shared(|lease| lease.falls_short) {
        state.keeper.ask_beyond(time_ms);
    }
    // After the request, as the keeper reads the clock before it looks for requests.
    let asked_us = system_clock::boot_us();
    loop {
        state.changed.prepare_to_sleep();
        let (lease, end_ms) = (LEASE.shared(|lease| *lease), clock.end_ms());
        let is_failing = lease.failing_since_ms.is_some() && system_clock::wall_ms() >= end_ms;
        // A renewal that was asked for after the request asked for more than this time.
        let is_overdue = lease.is_overdue(system_clock::boot_us());
        let is_vain = lease.falls_short || lease.renewed_us > asked_us || is_overdue || is_failing;
        // A worker id that was released has ended: a session that attaches again waits for the next one.
        let is_done = end_ms > time_ms || node::CURRENT.require().get().is_none();
        if is_done || is_vain {
            ConditionVariable::cancel_sleep();
            if is_done {
                return;
            }
            refuse(state);
        }
        state.changed.sleep(PAUSE, WaitEvent::EXTENSION);
    }
}

fn refuse(state: &State) -> ! {
    let lease = LEASE.shared(|lease| *lease);
    errors::not_leased(state, &lease, system_clock::boot_us()).raise()
}
