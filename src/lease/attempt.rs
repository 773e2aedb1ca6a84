//! One attempt to grant a lease, by the head of its queue: one of a few slots that the caller takes for free, or by all
//! rows of the lease.

use super::definitions::{self, Defined};
use super::locks::{self, Queue};
use super::stats::{self, COUNTERS};
use super::store::{self, LEASE, LeaseState, TERM, clock, term};
use super::terms::{self, HeldTerm, NewHolder};
use super::unseen::{self, Rows};
use super::{at_once, errors, pending, sweep};
use crate::pg::advisory_lock::{Limit, Mode, Scope, acquire_for_transaction};
use crate::pg::spi::{Query, value};
use crate::pg::{session, xact};
use idgen_core::lease::candidates::{FreeSlot, grantable, spread};
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
    Granted(HeldTerm),
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
    let definition = locks::definition_lock(request.name, Mode::Shared);
    if !queue.is_bypassed() && !acquire_for_transaction(&definition, limit) {
        return Outcome::Refused;
    }
    let is_alone = request.shared || queue.is_bypassed() || queue.wait_for_shared_grants(limit);
    let attempt = || at_once::attempt_at_once(request, queue).unwrap_or_else(|| attempt_by_definition(request, queue));
    let outcome = if is_alone { locks::with_tables(limit, attempt) } else { None }.unwrap_or(Outcome::Refused);
    if !queue.is_bypassed() {
        definition.release(Scope::Transaction);
    }
    outcome
}

fn attempt_by_definition(request: &AcquireRequest, queue: &Queue) -> Outcome {
    COUNTERS.add(1, |counters| &counters.probes);
    if request.shared {
        return attempt_shared(request, queue);
    }
    if let Some(outcome) = attempt_candidates(request, queue) {
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
        lease.terms.iter().all(is_released) && !unseen::have_changed_since_snapshot(request.name, Rows::OfSlots)
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

fn corrected(term: Term, ended: &HashSet<i32>) -> Term {
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
            let changed = |rows| unseen::have_changed_since_snapshot(request.name, rows);
            ends.is_empty() && !changed(Rows::OfSlot(slot)) && !changed(Rows::Shared)
        });
        let insert = || terms::insert(request.name, slot, request.holder, self.ttl_us);
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
    pub fn take(&self, slot: i32) -> Option<HeldTerm> {
        let (request, ends) = (self.request, self.to_end_before(slot));
        self.end_terms(&ends)?;
        let term = store::lock(request.name, slot).filter(|term| self.is_free(term))?;
        let is_take_over = term.depth > 0 || term.revoked;
        let is_unchanged = || store::in_snapshot(request.name, slot) == Some((term.token, term.depth, term.ends_us));
        let was_shared = || unseen::have_changed_since_snapshot(request.name, Rows::Shared);
        refuse_older_snapshot(request, || ends.is_empty() && !is_take_over && is_unchanged() && !was_shared());
        stats::notify_expired(request.name, slot);
        let granted = terms::take(request.name, slot, request.holder, self.ttl_us)?;
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
            stats::notify_expired(self.request.name, *slot);
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
pub fn begun(request: &AcquireRequest, granted: HeldTerm, lock_delay_us: i64) -> Outcome {
    pending::require_durability();
    pending::locked(granted.token);
    pending::wake_at_end(request.name);
    stats::notify_granted(request.name, &granted);
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

/// Slots that are probably free, the best first.
#[derive(Default)]
pub struct Candidates {
    pub slots: Vec<i32>,
    /// As of `SlotPreference::ended`, among these slots.
    pub ended: HashSet<i32>,
    /// Grant one of them only if it has no row.
    pub only_unused: bool,
}

/// Slots that have no row, or may have none.
pub struct Unused {
    /// The slot above all that have rows.
    pub above: Option<i32>,
    /// Slots all over the range. A request for a certain slot may have left out the slots below it.
    pub spread: Vec<i32>,
}

/// Attempts to grant a candidate of the caller, batch after batch. `None` if all rows must be read: the caller knows no
/// candidates, none of them is free, or an earlier definition has left rows outside of the range.
fn attempt_candidates(request: &AcquireRequest, queue: &Queue) -> Option<Outcome> {
    let preference = request.preference?;
    // As for a read of all rows, hold no table lock afterwards.
    let (Defined { definition, definer, .. }, range) =
        xact::rolled_back(|| definitions::defined(request.name).zip(Some(range(request.name))))?;
    if range.is_some_and(|(lowest, highest)| !definition.has(lowest) || !definition.has(highest)) {
        return None;
    }
    let above = range.map_or(definition.first_slot, |(_, highest)| highest + 1);
    let unused = Unused {
        above: Some(above).filter(|slot| definition.has(*slot)),
        spread: spread(&definition, session::random_i64() as u32),
    };
    let mut batches = preference.candidates(unused);
    loop {
        let batch = xact::rolled_back(|| {
            let Candidates { slots, ended, only_unused } = batches.next()?;
            let terms = terms(request.name, &slots, definition.lock_delay_us);
            let terms = terms.into_iter().map(|term| corrected(term, &ended)).collect();
            Some((slots, ended, only_unused, LeaseState { definition, definer: Some(definer), terms }))
        });
        let (slots, ended, only_unused, lease) = batch?;
        let now = lease.now();
        let mut free = grantable(&slots, &lease.terms, &definition, now);
        free.retain(|free| !(only_unused && free.has_row));
        let attempt = Attempt { ttl_us: request.ttl_us.unwrap_or(definition.ttl_us), request, lease, ended, now };
        if let Some(outcome) = free.into_iter().find_map(|free| attempt.grant(free, queue)) {
            return Some(outcome);
        }
    }
}

impl Attempt<'_> {
    /// `None` if the slot's row is locked, or the slot is no longer free.
    fn grant(&self, free: FreeSlot, queue: &Queue) -> Option<Outcome> {
        if !free.has_row {
            return Some(self.insert(free.slot));
        }
        let granted = xact::in_subtransaction(|| self.take(free.slot)).unwrap_or_else(|cause| cause.rethrow())?;
        // The next acquirer finds the row locked.
        queue.leave();
        Some(begun(self.request, granted, self.lease.definition.lock_delay_us))
    }
}

static LOWEST: Query =
    LEASE.query("SELECT slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 ORDER BY slot LIMIT 1");
static HIGHEST: Query =
    LEASE.query("SELECT slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 ORDER BY slot DESC LIMIT 1");

/// The lowest and the highest slot that have rows.
fn range(name: &str) -> Option<(i32, i32)> {
    let end = |query: &Query| query.read_latest(&[name.into()], |row| value(row, 1)).pop();
    end(&LOWEST).zip(end(&HIGHEST))
}

/// One index scan for each slot. With OFFSET, the planner does not turn this into one scan of all slots, which it does
/// where it expects one slot for each name.
static TERMS: Query = Query::new(&LEASE, || {
    format!(
        "SELECT {TERM} FROM pg_catalog.unnest($3) AS asked (slot), \
         LATERAL (SELECT * FROM idgen.lease AS stored WHERE stored.name OPERATOR(pg_catalog.=) $1 \
                  AND stored.slot OPERATOR(pg_catalog.=) asked.slot OFFSET 0) AS lease"
    )
});

/// The rows of these slots, for a caller that wants one of them.
fn terms(name: &str, slots: &[i32], lock_delay_us: i64) -> Vec<Term> {
    let args = [name.into(), clock().into(), slots.to_vec().into()];
    TERMS.read_latest(&args, |row| term(row, Some(lock_delay_us)))
}
