//! One attempt to grant a lease, by the head of its queue.

use super::candidates::{self, Candidates, Unused};
use super::queue::{self, Queue};
use super::stats::COUNTERS;
use super::store::at_once;
use super::store::versions::{self, Rows};
use super::store::{self, Granted, LeaseState, NewHolder};
use super::{errors, known_definition, notify, pending, sweep};
use crate::pg::advisory_lock::{Limit, Mode, Scope, acquire_for_transaction};
use crate::pg::xact;
use idgen_core::lease::{
    Availability, Choice, LeaseDefinition, Now, SharedChoice, Term, choose, choose_shared, has_holders_outside,
    to_end_before,
};
use std::collections::{HashMap, HashSet};

pub struct AcquireRequest<'a> {
    pub name: &'a str,
    /// `None` for the ttl of the definition.
    pub ttl_us: Option<i64>,
    pub holder: NewHolder<'a>,
    /// True for a shared term.
    pub shared: bool,
    /// True to be refused at once if no slot is free.
    pub only_if_free: bool,
    pub preference: Option<&'a dyn SlotPreference>,
    /// What runs after the request in its transaction sees by a snapshot that was taken before it.
    pub shares_snapshot: bool,
}

/// The slots that a caller prefers, and what it knows about their holders. Asked at the head of the queue, before each
/// choice.
pub trait SlotPreference {
    /// The first of these slots that is free is granted, even if it was never granted before.
    fn first(&self) -> Vec<i32>;
    /// These slots are granted only if no other is free, in this order.
    fn last(&self) -> Vec<i32>;
    /// Slots whose holders are known to have ended. Their terms are over if another clock has written them; a term by
    /// this clock keeps its end. Asked only if there is a term of another clock.
    fn ended(&self) -> HashSet<i32>;
    /// Slots to attempt before all rows are read, in batches.
    fn candidates(&self, unused: Unused) -> Box<dyn Iterator<Item = Candidates> + '_>;
}

/// The outcome of an attempt.
pub enum Outcome {
    /// The term begins when the transaction commits.
    Granted(Granted),
    /// No slot is free and the request does not wait, or its limit has passed.
    Refused,
    /// Rows have changed: attempt again.
    Retry,
    /// No slot becomes free before this time unless something changes. `None` if the time is not known.
    Wait { until_us: Option<i64> },
    /// A slot is free, but other transactions have locked these rows: its own, and those of terms that the grant would
    /// end.
    RowsLocked {
        slots: Vec<i32>,
        /// The end of a term in another slot can make a slot free sooner.
        has_other_terms: bool,
    },
}

/// Attempts a grant at the head of the queue. Waits for a transaction that changes the definition.
pub fn attempt(request: &AcquireRequest, limit: Limit, queue: &Queue) -> Outcome {
    // Not until the transaction ends: a change of the definition finds the row of a grant, and waits for its transaction.
    let definition = queue::definition_lock(request.name, Mode::Shared);
    if !queue.is_bypassed() && !acquire_for_transaction(&definition, limit) {
        return Outcome::Refused;
    }
    let is_alone = request.shared || queue.is_bypassed() || queue.wait_for_shared_grants(limit);
    let attempt = || attempt_at_once(request, queue).unwrap_or_else(|| attempt_by_definition(request, queue));
    let outcome = if is_alone { queue::with_tables(limit, attempt) } else { None }.unwrap_or(Outcome::Refused);
    if !queue.is_bypassed() {
        definition.release(Scope::Transaction);
    }
    outcome
}

/// Attempts a grant by one statement. `None` if the statement is not enough. An observer of an expired term is told of its
/// owner, which the statement replaces. And it would raise the tokens of the process before it knows that it grants one.
fn attempt_at_once(request: &AcquireRequest, queue: &Queue) -> Option<Outcome> {
    if request.preference.is_some() || request.shares_snapshot || !store::has_raised_tokens() {
        return None;
    }
    let AtOnce { granted, lock_delay_us, is_visible } = xact::keeping_locks_of_success(|| {
        let known = known_definition::of(request.name);
        let definition = known.definition.unwrap_or_else(store::undefined);
        if definition.slots > 1 || definition.first_slot > 0 || known.notify {
            return None;
        }
        COUNTERS.add(1, |counters| &counters.probes);
        grant_at_once(request, &definition, known.definition.is_some(), queue)
    })?;
    // Only here: the locks of the work have another owner, which cannot release this one.
    if is_visible {
        queue.leave();
    }
    Some(begun(request, granted, lock_delay_us))
}

/// A grant by one statement.
struct AtOnce {
    granted: Granted,
    lock_delay_us: i64,
    /// Other acquirers see the grant before it is committed: by the lock on its row, or by that of a shared grant. Otherwise
    /// this one must stay at the head of the queue until its transaction ends, as in `Attempt::insert`.
    is_visible: bool,
}

fn grant_at_once(
    request: &AcquireRequest,
    definition: &LeaseDefinition,
    is_defined: bool,
    queue: &Queue,
) -> Option<AtOnce> {
    let AcquireRequest { name, holder, .. } = *request;
    let ttl_us = request.ttl_us.unwrap_or(definition.ttl_us);
    let lock_delay_us = definition.lock_delay_us;
    let count_grant = || COUNTERS.add(1, |counters| &counters.grants);
    if request.shared {
        queue.announce_shared_grant();
        let granted = at_once::insert_shared(name, holder, ttl_us)?;
        count_grant();
        sweep::sweep_if_due();
        return Some(AtOnce { granted, lock_delay_us, is_visible: true });
    }
    let take = || {
        let (granted, is_take_over) = at_once::take(name, holder, ttl_us, lock_delay_us)?;
        COUNTERS.add(1, |counters| if is_take_over { &counters.take_overs } else { &counters.grants });
        Some(AtOnce { granted, lock_delay_us, is_visible: true })
    };
    let insert = || {
        let granted = at_once::insert_first(name, holder, ttl_us)?;
        count_grant();
        if !is_defined {
            sweep::sweep_if_due();
        }
        Some(AtOnce { granted, lock_delay_us, is_visible: false })
    };
    // The slot of a defined lease has a row from its first grant on, that of another one only while it is held.
    if is_defined { take().or_else(insert) } else { insert().or_else(take) }
}

fn attempt_by_definition(request: &AcquireRequest, queue: &Queue) -> Outcome {
    COUNTERS.add(1, |counters| &counters.probes);
    if request.shared {
        return attempt_shared(request, queue);
    }
    if let Some(outcome) = candidates::attempt(request, queue) {
        return outcome;
    }
    // Hold no table lock while sleeping: a queued ALTER TABLE would block renewals.
    let (lease, ended, preferred) = xact::rolled_back(|| {
        let (lease, ended) = read(request);
        (lease, ended, request.preference.map_or_else(Vec::new, SlotPreference::first))
    });
    let now = lease.now();
    let attempt = Attempt { request, ttl_us: request.ttl_us.unwrap_or(lease.definition.ttl_us), lease, ended, now };
    let lease = &attempt.lease;
    let (mut slots, all) = match choose(&lease.terms, &lease.definition, &preferred, now) {
        Choice::Take { slots, all } => (slots, all),
        Choice::Make { slot } => return attempt.insert(slot),
        Choice::Wait { .. } if request.only_if_free => return Outcome::Refused,
        Choice::Wait { until_us } => return Outcome::Wait { until_us },
    };
    let last = request.preference.map_or_else(Vec::new, |preference| xact::rolled_back(|| preference.last()));
    let last: HashMap<i32, usize> = last.into_iter().filter(|slot| !preferred.contains(slot)).zip(0..).collect();
    slots.sort_by_key(|slot| last.get(slot));
    let take = |slot: &i32| {
        let taken = xact::in_subtransaction(|| attempt.take(*slot));
        taken.unwrap_or_else(|cause| cause.rethrow())
    };
    if let Some(granted) = slots.iter().find_map(take) {
        // The next acquirer need not wait for the commit: it finds the row locked. But it would not count this grant
        // where fewer slots may be granted than are free.
        if !has_holders_outside(&lease.terms, &lease.definition, now) {
            queue.leave();
        }
        return begun(request, granted, attempt.lease.definition.lock_delay_us);
    }
    let mut rows = attempt.to_end_before(slots[0]);
    rows.push(slots[0]);
    attempt.rows_locked(rows, !all)
}

/// A lease with several slots has no shared terms.
pub fn refuse_to_share_slots(name: &str, definition: &LeaseDefinition) {
    if definition.slots > 1 {
        errors::cannot_share(name, definition.slots).raise();
    }
}

/// Attempts to begin a shared term beside slots that have rows. Their terms must be over, and end here, so that no one
/// can renew them or write under them.
fn attempt_shared(request: &AcquireRequest, queue: &Queue) -> Outcome {
    let lease = xact::rolled_back(|| LeaseState::read_to_share(request.name));
    refuse_to_share_slots(request.name, &lease.definition);
    let now = lease.now();
    let ends = match choose_shared(&lease.terms, &lease.definition, now) {
        SharedChoice::Begin { ends } => ends,
        SharedChoice::Wait { until_us } => return Outcome::Wait { until_us },
    };
    refuse_older_snapshot(request, || {
        let is_released = |term: &Term| term.depth == 0 && !term.revoked;
        lease.terms.iter().all(is_released) && !versions::have_changed_since_snapshot(request.name, Rows::OfSlots)
    });
    let ttl_us = request.ttl_us.unwrap_or(lease.definition.ttl_us);
    let attempt = Attempt { request, ttl_us, ended: HashSet::new(), lease, now };
    let begin = || {
        queue.announce_shared_grant();
        attempt.end_terms(&ends)?;
        ends.iter().for_each(|slot| store::remove(request.name, *slot));
        at_once::insert_shared(request.name, request.holder, attempt.ttl_us)
    };
    match xact::in_subtransaction(begin).unwrap_or_else(|cause| cause.rethrow()) {
        Some(granted) => {
            COUNTERS.add(1, |counters| &counters.grants);
            queue.leave();
            begun(request, granted, attempt.lease.definition.lock_delay_us)
        }
        None => attempt.rows_locked(ends, false),
    }
}

/// The lease as it is now, and slots whose holders are known to have ended.
fn read(request: &AcquireRequest) -> (LeaseState, HashSet<i32>) {
    let mut lease = LeaseState::read_to_acquire(request.name);
    let is_of_another = |term: &Term| !term.by_this_clock;
    let preference = request.preference.filter(|_| lease.terms.iter().any(is_of_another));
    let ended = preference.map_or_else(HashSet::new, SlotPreference::ended);
    lease.terms.iter_mut().for_each(|term| *term = corrected(*term, &ended));
    (lease, ended)
}

pub fn corrected(term: Term, ended: &HashSet<i32>) -> Term {
    if ended.contains(&term.slot) { term.of_ended_holder() } else { term }
}

/// An attempt, and the lease as it was when the attempt began.
pub struct Attempt<'a> {
    pub request: &'a AcquireRequest<'a>,
    pub lease: LeaseState,
    pub ended: HashSet<i32>,
    pub now: Now,
    pub ttl_us: i64,
}

impl Attempt<'_> {
    /// Inserts the row of a slot that has none. Stays at the head of the queue until the transaction ends: until then, other
    /// sessions do not see the row and would insert it.
    pub fn insert(&self, slot: i32) -> Outcome {
        let (request, ends) = (self.request, self.to_end_before(slot));
        refuse_older_snapshot(request, || {
            let changed = |rows| versions::have_changed_since_snapshot(request.name, rows);
            ends.is_empty() && !changed(Rows::OfSlot(slot)) && !changed(Rows::Shared)
        });
        let insert = || store::insert(request.name, slot, request.holder, self.ttl_us);
        let granted = if ends.is_empty() {
            insert()
        } else {
            let inserted = xact::in_subtransaction(|| self.end_terms(&ends).and_then(|()| insert()));
            inserted.unwrap_or_else(|cause| cause.rethrow())
        };
        match granted {
            Some(granted) => {
                COUNTERS.add(1, |counters| &counters.grants);
                if self.lease.definer.is_none() {
                    sweep::sweep_if_due();
                }
                begun(request, granted, self.lease.definition.lock_delay_us)
            }
            None if ends.is_empty() => Outcome::Retry,
            None => self.rows_locked(ends, self.lease.definition.slots > 1),
        }
    }

    /// Begins a term in a slot that has a row. `None` if the row is locked, or the slot is no longer free. The caller
    /// then rolls back the ends of other terms.
    pub fn take(&self, slot: i32) -> Option<Granted> {
        let (request, ends) = (self.request, self.to_end_before(slot));
        self.end_terms(&ends)?;
        let term = store::lock(request.name, slot).filter(|term| self.is_free(term))?;
        let is_take_over = term.depth > 0 || term.revoked;
        let is_unchanged = || store::in_snapshot(request.name, slot) == Some((term.token, term.depth, term.ends_us));
        let was_shared = || versions::have_changed_since_snapshot(request.name, Rows::Shared);
        refuse_older_snapshot(request, || ends.is_empty() && !is_take_over && is_unchanged() && !was_shared());
        notify::expired(request.name, slot);
        let granted = store::take(request.name, slot, request.holder, self.ttl_us)?;
        COUNTERS.add(1, |counters| if is_take_over { &counters.take_overs } else { &counters.grants });
        Some(granted)
    }

    fn to_end_before(&self, slot: i32) -> Vec<i32> {
        to_end_before(&self.lease.terms, &self.lease.definition, slot, self.now)
    }

    /// Ends expired terms, which their holders could renew otherwise. `None` if one of the rows is locked, or its term
    /// was renewed.
    fn end_terms(&self, ends: &[i32]) -> Option<()> {
        ends.iter().try_for_each(|slot| {
            let term = store::lock(self.request.name, *slot).filter(|term| self.is_free(term))?;
            notify::expired(self.request.name, *slot);
            let end = if term.is_shared() { store::remove } else { store::end };
            end(self.request.name, *slot);
            Some(())
        })
    }

    fn is_free(&self, term: &Term) -> bool {
        let term = corrected(*term, &self.ended);
        matches!(term.availability(self.lease.definition.lock_delay_us, self.now), Availability::Since(_))
    }

    /// Of these rows, those that are still locked. A row that is not locked any more had its term renewed, or was
    /// released.
    fn rows_locked(&self, mut slots: Vec<i32>, has_other_terms: bool) -> Outcome {
        slots.retain(|slot| xact::rolled_back(|| store::lock(self.request.name, *slot).is_none()));
        if slots.is_empty() { Outcome::Retry } else { Outcome::RowsLocked { slots, has_other_terms } }
    }
}

/// Records what the end of the transaction has to do for a new term.
pub fn begun(request: &AcquireRequest, granted: Granted, lock_delay_us: i64) -> Outcome {
    pending::require_durability();
    pending::locked(granted.token);
    pending::wake_at_end(request.name);
    notify::granted(request.name, &granted);
    if let Some(key) = granted.session_key {
        pending::bind(request.name, granted.token, key, lock_delay_us);
    }
    Outcome::Granted(granted)
}

/// Raises 40001 if the transaction's one snapshot may be older than the last holder's writes. A holder that did not release
/// the slot may have written at any time.
pub fn refuse_older_snapshot(request: &AcquireRequest, shows_all: impl FnOnce() -> bool) {
    if request.shares_snapshot && !shows_all() {
        errors::snapshot_too_old(request.name).raise();
    }
}
