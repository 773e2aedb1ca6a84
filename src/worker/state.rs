//! This server's number, as all its processes know it: a setting, or leased from a pool by the keeper.

use super::handle::Handle;
use super::memory::Recollection;
use crate::bell::{self, Bell};
use crate::clock::{self, boot_us, wall_ms};
use crate::fixed_text::FixedText;
use crate::shmem::Shared;
use crate::{error, settings};
use idgen_core::layout::Node;
use idgen_core::worker::Interval;
use idgen_core::worker::memory::Identity;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// In shared memory.
pub struct State {
    /// A leased number, or one of the two below. Written under the table's lock, so that whoever attaches a space under
    /// that lock knows whose it is.
    number: AtomicI64,
    /// The memory file could not be read when the server started: the server may have had a pool.
    pub is_memory_unreadable: AtomicBool,
    /// The worker id comes from a pool, by the settings as the keeper has read them. A long statement has older ones.
    pub has_pool: AtomicBool,
    pub keeper: Handle,
    pub renewals: AtomicU64,
    pub failures: AtomicU64,
    /// How often the number became another.
    pub changes: AtomicU64,
    /// Who waits for a number, or for more time, sleeps here.
    pub changed: Bell,
}

/// The number is that of `idgen.worker_id`.
const SETTING: i64 = -1;
/// There is none: it is to be leased and has not been yet, or the server had a pool and no worker id is set.
const NONE: i64 = -2;

/// What the keeper has from the coordinator. Under the worker's lock; for the keeper to write, and for people to read.
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
    /// As the server starts, with what it remembers. A worker id that was set by hand is good until the first lease: from then on
    /// a pool is in charge of it, and may have given it to another server.
    pub fn new(memory: &Recollection) -> Self {
        let is_good = match (settings::has_worker_pool(), settings::worker_undecided()) {
            (true, true) => false,
            (true, false) => !memory.is_of_term(),
            (false, true) => !memory.is_of_pool(),
            (false, false) => true,
        };
        Self {
            number: AtomicI64::new(if is_good { SETTING } else { NONE }),
            is_memory_unreadable: AtomicBool::new(matches!(memory, Recollection::Unreadable(_))),
            has_pool: AtomicBool::new(settings::has_worker_pool()),
            keeper: Handle::new(),
            renewals: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            changed: Bell::new(),
        }
    }

    /// This server's number now; `None` while there is none.
    pub fn node(&self) -> Option<Node> {
        match self.number.load(Acquire) {
            SETTING => Some(settings::node()),
            NONE => None,
            // Written from a `u32`.
            number => Some(Node { worker: number as u32, ..settings::node() }),
        }
    }

    pub fn is(&self, node: Node) -> bool {
        self.node() == Some(node)
    }

    /// Is the number a setting, as long as no lease has taken its place?
    pub fn is_set(&self) -> bool {
        self.number.load(Acquire) == SETTING
    }

    /// For the holder of the table's lock, as the three of them.
    pub fn set_number(&self, number: u32) {
        self.number.store(i64::from(number), Release);
    }

    pub fn set_none(&self) {
        self.number.store(NONE, Release);
    }

    pub fn set_by_setting(&self) {
        self.number.store(SETTING, Release);
    }

    pub fn reset(&self) {
        for counter in [&self.renewals, &self.failures, &self.changes] {
            counter.store(0, Relaxed);
        }
    }
}

/// A server with a pool issues no id under a worker id that is not set. The keeper looks at each reload; a session that has read
/// the settings before the keeper does not wait for it.
pub fn end_unset(shared: &Shared) {
    let is_unset = || settings::has_worker_pool() && settings::worker_undecided() && shared.worker.is_set();
    if is_unset() {
        // Looked at again under the lock: the keeper may have leased one.
        clock::confine_if(shared, is_unset, i64::MIN, i64::MIN, || {
            shared.worker.has_pool.store(true, Relaxed);
            shared.worker.set_none();
        });
    }
}

/// How long to wait for the first answer of a coordinator. One that is there answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to sleep at most: a lease ends without a ring.
const PAUSE: Duration = Duration::from_millis(100);

/// This server's number. Waits while the keeper is at its first try to lease it; an error, 55000, when that went wrong.
pub fn node(shared: &Shared) -> Node {
    let began = Instant::now();
    loop {
        // Before looking, so that a ring in between is not lost.
        shared.worker.changed.listen();
        let node = shared.worker.node();
        let is_failing = shared.with_worker(|lease| lease.failing_since_ms.is_some());
        let is_to_come = shared.worker.has_pool.load(Relaxed) && !is_failing && began.elapsed() < PATIENCE;
        if node.is_none() && is_to_come {
            shared.worker.changed.sleep(PAUSE, pg_sys::PG_WAIT_EXTENSION);
            continue;
        }
        bell::stop_listening();
        return node.unwrap_or_else(|| refuse(shared));
    }
}

/// Ids have come to the end of the lease, the next one to this time: asks the keeper for more, and waits while it asks the
/// coordinator. An error, 55000, when the clock is at the end too and nobody answers, or the keeper does not ask.
pub fn wait_for_renewal(shared: &Shared, time_ms: i64) {
    if !shared.with_worker(|lease| lease.falls_short) {
        shared.worker.keeper.ask_beyond(time_ms);
    }
    // After the wish, as the keeper takes its time before it looks for wishes.
    let asked_us = boot_us();
    loop {
        // Before looking, so that a ring in between is not lost.
        shared.worker.changed.listen();
        let (lease, end_ms) = (shared.with_worker(|lease| *lease), shared.clock.mark.end_ms());
        let is_failing = lease.failing_since_ms.is_some() && wall_ms() >= end_ms;
        // What was asked for after this was for more than this time.
        let is_vain = lease.falls_short || lease.renewed_us > asked_us || lease.is_overdue(boot_us()) || is_failing;
        // A number that was given back has ended: whoever attaches anew waits for the next one.
        let is_done = end_ms > time_ms || shared.worker.node().is_none();
        if is_done || is_vain {
            bell::stop_listening();
            if is_done {
                return;
            }
            refuse(shared);
        }
        shared.worker.changed.sleep(PAUSE, pg_sys::PG_WAIT_EXTENSION);
    }
}

fn refuse(shared: &Shared) -> ! {
    let lease = shared.with_worker(|lease| *lease);
    error::worker::not_leased(shared.worker, &lease, boot_us()).raise()
}
