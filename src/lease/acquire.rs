//! Acquiring a lease: an acquirer waits in the queue, then at its head for a slot, and begins a term. What the head does is
//! decided by the core, given the rows.

use super::definitions::KnownDefinition;
use super::locks::{self, Precedence, Queue};
use super::rows::{self, COLUMNS, LeaseRow, LockedRow, ROWS, slot_key};
use super::stats::{self, COUNTERS};
use super::terms::{self, HeldTerm, NewHolder};
use super::{definitions, errors, pending, sweep};
use crate::pg::advisory_lock::{Limit, Mode, Scope, acquire_for_transaction};
use crate::pg::row::{Key, LatestRows, Version, Wait};
use crate::pg::{session, system_clock, xact};
use idgen_core::lease::{Decision, FIRST_SHARED, Lease, LeaseDefinition, Obstacle, Step, Term, Waiting};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::time::{Duration, Instant};

pub struct AcquireRequest<'a> {
    pub name: &'a str,
    /// `None` for the ttl of the definition.
    pub ttl_us: Option<i64>,
    pub holder: NewHolder<'a>,
    /// True for a shared term.
    pub shared: bool,
    /// What runs after the request in its transaction sees by a snapshot that was taken before it.
    pub shares_snapshot: bool,
}

/// What has become of an attempt. Terms begin when the transaction commits.
enum Outcome {
    Granted(Vec<Grant>),
    NotGranted(Obstacle),
    /// The limit of the request has passed.
    TimedOut,
    /// The request of this index has to wait, in the queue of its lease.
    Elsewhere(usize),
}

/// Acquires a term for each request, or none. If the limit passes, `None` or an error, as the limit says.
///
/// A call waits in one queue only, and without a lock on a row: the others can acquire what it does not get yet, and no two
/// calls wait for each other. It can be overtaken, because it keeps no place in a queue that it has left.
pub fn acquire(requests: &[AcquireRequest], limit: Limit) -> Option<Vec<HeldTerm>> {
    // A call that can only fail does not wait in the queue.
    for request in requests.iter().filter(|request| request.shared) {
        if let Some(definition) = definitions::of_within(limit, request.name)?.definition {
            refuse_to_share_slots(request.name, &definition);
        }
    }
    let began = Instant::now();
    let mut at = 0;
    let granted = loop {
        let queue = Queue::of(requests[at].name, requests[at].shared);
        if !queue.enter(limit) {
            return None;
        }
        let outcome = wait_at_head(requests, at, limit, &queue);
        if let Outcome::Granted(granted) = outcome {
            break Some(granted);
        }
        queue.leave();
        match outcome {
            Outcome::Elsewhere(other) => at = other,
            _ => break None,
        }
    };
    COUNTERS.add(began.elapsed().as_micros() as u64, |counters| &counters.wait_us);
    let Some(granted) = granted else {
        return limit.time_out();
    };
    // Only here, where nothing is rolled back any more. And a lock is released by the owner of where it was acquired.
    let finish = |Grant { term, is_take_over, leaves }| {
        COUNTERS.add(1, |counters| if is_take_over { &counters.take_overs } else { &counters.grants });
        leaves.iter().for_each(Queue::leave);
        term
    };
    Some(granted.into_iter().map(finish).collect())
}

/// A lease with several slots has no shared terms.
fn refuse_to_share_slots(name: &str, definition: &LeaseDefinition) {
    if definition.slots > 1 {
        errors::cannot_share(name, definition.slots).raise();
    }
}

/// Attempts the grants whenever a slot of the lease may have become free at the head of whose queue the call is.
fn wait_at_head(requests: &[AcquireRequest], at: usize, limit: Limit, queue: &Queue) -> Outcome {
    let request = &requests[at];
    let (mut waiting, mut precedence) = (Waiting::default(), Precedence::default());
    let outcome = loop {
        let broadcasts = queue.broadcasts();
        let obstacle = match attempt_all(requests, at, limit, queue) {
            Outcome::NotGranted(obstacle) => obstacle,
            outcome => break outcome,
        };
        let until_us = match waiting.after(obstacle, system_clock::boot_us()) {
            Step::Attempt => Some(0),
            Step::Sleep { until_us } => {
                precedence.keep_in(&[]);
                until_us
            }
            Step::Precede { slots, then_sleep } => {
                precedence.keep_in(&slots);
                let precedes = precedence.acquire(request.name, &slots, limit);
                if precedes && !then_sleep {
                    refuse_older_snapshot(request, || false);
                    rows::wait_for_rows(request.name, &slots, limit);
                }
                if precedes && then_sleep { None } else { Some(0) }
            }
        };
        let left = limit.left();
        if left == Some(Duration::ZERO) {
            break Outcome::TimedOut;
        }
        let until = until_us.map(|until_us| until_us.saturating_sub(system_clock::boot_us()).max(0) as u64);
        if until != Some(0) {
            let time = until.map_or(Duration::MAX, Duration::from_micros).min(left.unwrap_or(Duration::MAX));
            queue.sleep(broadcasts, time);
        }
        check_for_interrupts!();
    };
    precedence.keep_in(&[]);
    outcome
}

/// Attempts all grants, at the head of the queue of the request `at`.
fn attempt_all(requests: &[AcquireRequest], at: usize, limit: Limit, queue: &Queue) -> Outcome {
    if let [request] = requests {
        return attempt(request, limit, queue);
    }
    // Waits with nothing else locked, until this one could be granted.
    let mut probed = Outcome::TimedOut;
    xact::rolled_back(|| probed = attempt(&requests[at], limit, queue));
    if !matches!(probed, Outcome::Granted(_)) {
        return probed;
    }
    let mut outcome = Outcome::NotGranted(Obstacle::Changed);
    let work = || {
        let mut granted = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            let own = (index != at).then(|| Queue::of(request.name, request.shared));
            let is_head = own.as_ref().is_none_or(|own| own.enter(Limit::now()));
            match is_head.then(|| attempt(request, Limit::now(), own.as_ref().unwrap_or(queue))) {
                Some(Outcome::Granted(one)) => granted.extend(one),
                _ if index == at => return None,
                _ => {
                    outcome = Outcome::Elsewhere(index);
                    return None;
                }
            }
        }
        Some(granted)
    };
    match xact::in_subtransaction(work).unwrap_or_else(|cause| cause.rethrow()) {
        Some(granted) => Outcome::Granted(granted),
        None => outcome,
    }
}

/// Attempts a grant at the head of the queue. Waits for a transaction that changes the definition.
fn attempt(request: &AcquireRequest, limit: Limit, queue: &Queue) -> Outcome {
    // Not until the transaction ends: a change of the definition finds the row of a grant, and waits for its transaction.
    let definition_lock = locks::definition_lock(request.name, Mode::Shared);
    if !queue.is_bypassed() && !acquire_for_transaction(&definition_lock, limit) {
        return Outcome::TimedOut;
    }
    let mut outcome = Outcome::TimedOut;
    if let Some(known) = definitions::of_within(limit, request.name) {
        // Shared terms that are not committed do not matter for a slot that has a row: such a term begins only when its
        // transaction has deleted the row, which is locked then. A lease that is defined has one from its first grant on.
        for are_shared_over in [false, true] {
            if are_shared_over && !(request.shared || queue.is_bypassed() || queue.wait_for_shared_grants(limit)) {
                break;
            }
            let mut decided = None;
            if are_shared_over || request.shared || known.definition.is_some() {
                ROWS.write_within(limit, |rows| {
                    decided = rows.latest(|latest| Attempt::new(request, *queue, latest, known).run(are_shared_over));
                    // A session that sleeps has no lock on the table: an ALTER TABLE would wait for it, and renewals for that.
                    matches!(decided, Some(Outcome::Granted(_))).then_some(())
                });
            }
            if let Some(decided) = decided {
                outcome = decided;
                break;
            }
        }
    }
    if !queue.is_bypassed() {
        definition_lock.release(Scope::Transaction);
    }
    outcome
}

/// A term that begins when the transaction commits.
struct Grant {
    term: HeldTerm,
    /// The last holder had not released the slot.
    is_take_over: bool,
    /// Its queue, if the next acquirer need not wait for the commit.
    leaves: Option<Queue>,
}

/// An attempt, and the lease as it was when the attempt began.
struct Attempt<'a> {
    request: &'a AcquireRequest<'a>,
    queue: Queue,
    rows: &'a LatestRows<'a, COLUMNS>,
    known: KnownDefinition,
    lease: Lease,
    /// Of the terms of the lease, in their order.
    versions: Vec<Version>,
    ttl_us: i64,
}

impl<'a> Attempt<'a> {
    /// The lock delay of an ended session begins when it is first seen here. A shared term does not depend on others.
    ///
    /// While a lease is defined with one slot, it gets other rows only after that of the slot was deleted. So where this process
    /// has seen no other row, under the same definition, and the row is as it has written it since, it reads no others.
    fn new(request: &'a AcquireRequest, queue: Queue, rows: &'a LatestRows<COLUMNS>, known: KnownDefinition) -> Self {
        static SEEN_ALONE: Mutex<Option<(String, u64)>> = Mutex::new(None);
        COUNTERS.add(1, |counters| &counters.probes);
        let definition = known.definition.unwrap_or_else(rows::undefined);
        let read = |row: &LeaseRow| (rows::term(row, Some(definition.lock_delay_us)), row.version());
        let can_be_alone = !request.shared && known.definition.is_some_and(|defined| defined.slots == 1);
        let is_seen = |(name, changes): &(String, u64)| name == request.name && *changes == known.changes;
        let alone = (can_be_alone && SEEN_ALONE.lock().as_ref().is_some_and(is_seen))
            .then(|| rows.find_last(&slot_key(request.name, 0), |row| Some(read(row))))
            .flatten();
        let key = [Key::Text(request.name), Key::IntBelow(FIRST_SHARED)];
        let key = if request.shared { &key[..] } else { &key[..1] };
        let found = alone.map_or_else(|| rows.all(key, read), |row| vec![row]);
        if can_be_alone && alone.is_none() && matches!(&found[..], [(term, _)] if term.slot == 0) {
            *SEEN_ALONE.lock() = Some((request.name.to_owned(), known.changes));
        }
        let (terms, versions): (Vec<Term>, Vec<Version>) = found.into_iter().unzip();
        let now = rows::now_for(&terms);
        let ttl_us = request.ttl_us.unwrap_or(definition.ttl_us);
        Self { request, queue, rows, known, lease: Lease { definition, terms, now }, versions, ttl_us }
    }

    /// `None` if it depends on shared terms that are not committed, and they may not be over.
    fn run(&self, are_shared_over: bool) -> Option<Outcome> {
        if self.request.shared {
            refuse_to_share_slots(self.request.name, &self.lease.definition);
        }
        let (granted, rows, has_others) = match self.lease.decide(self.request.shared) {
            // Also a wait: in the lock manager, two transactions that share a lease and both want to write are a deadlock.
            Decision::Make { .. } | Decision::Wait { .. } if !are_shared_over && !self.request.shared => return None,
            Decision::Wait { until_us } => return Some(Outcome::NotGranted(Obstacle::NoSlot { until_us })),
            Decision::Take { slots, all } => {
                let granted = slots.iter().find_map(|slot| self.after_ends(*slot, || self.take(*slot)));
                (granted, [self.lease.ends_before(slots[0]), vec![slots[0]]].concat(), !all)
            }
            Decision::Make { slot } => {
                let granted = self.after_ends(slot, || self.insert(slot));
                (granted, self.lease.ends_before(slot), self.lease.definition.slots > 1)
            }
            Decision::Share => {
                let begin = || {
                    self.queue.announce_shared_grant();
                    self.insert(random_shared_number())
                };
                (self.after_ends(FIRST_SHARED, begin), self.lease.ends_before(FIRST_SHARED), false)
            }
        };
        Some(match granted {
            Some(granted) => self.begun(granted),
            None => self.obstacle(rows, has_others),
        })
    }

    /// Begins a term in a slot after the terms have ended that must end before it. If one of them does not end, or no term
    /// begins, everything is undone.
    fn after_ends(&self, slot: i32, begin: impl FnOnce() -> Option<Grant>) -> Option<Grant> {
        let ends = self.lease.ends_before(slot);
        self.refuse_older_snapshot(slot, &ends);
        if ends.is_empty() {
            return begin();
        }
        let work = || ends.iter().try_for_each(|slot| self.end(*slot)).and_then(|()| begin());
        xact::in_subtransaction(work).unwrap_or_else(|cause| cause.rethrow())
    }

    /// Locks the row of a slot, as this attempt has read it. `None` if it has changed since, or is locked.
    fn lock(&self, slot: i32) -> Option<(&Term, LockedRow<'a>)> {
        let index = self.lease.terms.iter().position(|term| term.slot == slot)?;
        let locked = self.rows.try_lock(self.versions[index])?;
        stats::notify_expired(self.request.name, &locked.row());
        Some((&self.lease.terms[index], locked))
    }

    /// Ends a term that is over, but that its holder could renew: the slot is free from now on, without a lock delay. The rows of
    /// the other mode go: an acquirer of that mode begins after all of them.
    fn end(&self, slot: i32) -> Option<()> {
        let (term, locked) = self.lock(slot)?;
        if self.request.shared || term.is_shared() {
            locked.delete()
        } else if term.depth > 0 {
            locked.update(&rows::freed(false))
        }
        Some(())
    }

    /// Begins a term in a slot that has a row, which the next acquirer finds locked.
    fn take(&self, slot: i32) -> Option<Grant> {
        let (last, locked) = self.lock(slot)?;
        let is_take_over = last.depth > 0 || last.revoked;
        let term = terms::take(locked, self.request.holder, self.ttl_us);
        Some(Grant { term, is_take_over, leaves: self.lease.admits_next().then_some(self.queue) })
    }

    /// Begins a term in a new row. `None` if another transaction has inserted it. A slot's acquirer stays at the head of the queue
    /// until its transaction ends: until then, other sessions do not see the row and would insert it.
    fn insert(&self, slot: i32) -> Option<Grant> {
        let AcquireRequest { name, holder, shared, .. } = *self.request;
        let term = terms::insert(name, slot, holder, self.ttl_us)?;
        // No release deletes the row if the holder vanishes.
        if shared || self.known.definition.is_none() {
            sweep::sweep_if_due();
        }
        Some(Grant { term, is_take_over: false, leaves: shared.then_some(self.queue) })
    }

    /// Raises 40001 if the transaction's one snapshot may be older than the last holder's writes. A holder that did not
    /// release the slot may have written at any time.
    fn refuse_older_snapshot(&self, slot: i32, ends: &[i32]) {
        let name = self.request.name;
        let is_released = |slot: i32| {
            let term = self.lease.terms.iter().find(|term| term.slot == slot);
            term.is_none_or(|term| term.depth == 0 && !term.revoked)
        };
        refuse_older_snapshot(self.request, || match self.request.shared {
            true => {
                ends.iter().all(|slot| is_released(*slot)) && !rows::have_changed(name, Key::IntBelow(FIRST_SHARED))
            }
            false => {
                let own_and_shared = [Key::Int(slot), Key::IntFrom(FIRST_SHARED)];
                ends.is_empty()
                    && is_released(slot)
                    && !own_and_shared.into_iter().any(|slots| rows::have_changed(name, slots))
            }
        });
    }

    /// Which of these rows are locked now. One that is not has had its term renewed, or was released.
    fn obstacle(&self, mut slots: Vec<i32>, has_other_terms: bool) -> Outcome {
        let is_locked = |slot: i32| {
            let key = slot_key(self.request.name, slot);
            xact::rolled_back(|| ROWS.write(|rows| rows.lock(&key, Wait::Skip, |_| true).map(drop)).is_none())
        };
        slots.retain(|slot| is_locked(*slot));
        Outcome::NotGranted(match slots.is_empty() {
            true => Obstacle::Changed,
            false => Obstacle::Locked { slots, has_other_terms },
        })
    }

    /// Records what the end of the transaction has to do for a new term.
    fn begun(&self, granted: Grant) -> Outcome {
        let (name, term) = (self.request.name, &granted.term);
        pending::require_durability();
        pending::locked(term.token);
        pending::wake_at_end(name);
        stats::notify_event(name, term.slot, "granted", term.owner.as_deref());
        if let Some(key) = term.session_key {
            pending::bind(name, term, key, self.lease.definition.lock_delay_us);
        }
        crate::pg::crash_point!("lease: grant written");
        Outcome::Granted(vec![granted])
    }
}

/// Transactions that begin shared terms at the same time do not see each other's rows. So each term has a random number; one
/// that is taken is drawn again. All users can read it in `idgen.leases`, so it must not tell the token.
fn random_shared_number() -> i32 {
    FIRST_SHARED + (session::random_i64() as u32 % (i32::MAX - FIRST_SHARED) as u32) as i32
}

/// Raises 40001 for a request whose transaction has one snapshot, unless that shows all that was written under the lease.
fn refuse_older_snapshot(request: &AcquireRequest, shows_all: impl FnOnce() -> bool) {
    if request.shares_snapshot && !shows_all() {
        errors::snapshot_too_old(request.name).raise();
    }
}
