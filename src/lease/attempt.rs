//! One attempt to grant a lease, by the head of its queue.

use super::locks::{self, Queue};
use super::stats::{self, COUNTERS};
use super::store::{self, LeaseState};
use super::terms::{self, HeldTerm, NewHolder};
use super::unseen::{self, Rows};
use super::{at_once, errors, pending, sweep};
use crate::pg::advisory_lock::{Limit, Mode, Scope, acquire_for_transaction};
use crate::pg::xact;
use idgen_core::lease::{
    Availability, Choice, LeaseDefinition, Now, SharedChoice, Term, choose, choose_shared, has_holders_outside,
    to_end_before,
};

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

/// The outcome of an attempt.
pub enum Outcome {
    /// The term begins when the transaction commits.
    Granted(HeldTerm),
    /// The limit of the request has passed.
    TimedOut,
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
        return Outcome::TimedOut;
    }
    let is_alone = request.shared || queue.is_bypassed() || queue.wait_for_shared_grants(limit);
    let attempt = || at_once::attempt_at_once(request, queue).unwrap_or_else(|| attempt_by_definition(request, queue));
    let outcome = if is_alone { locks::with_tables(limit, attempt) } else { None }.unwrap_or(Outcome::TimedOut);
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
    // Hold no table lock while sleeping: a queued ALTER TABLE would block renewals.
    let attempt = Attempt::new(request, xact::rolled_back(|| LeaseState::read_to_acquire(request.name)));
    let Attempt { lease, now, .. } = &attempt;
    let (slots, all) = match choose(&lease.terms, &lease.definition, *now) {
        Choice::Take { slots, all } => (slots, all),
        Choice::Make { slot } => return attempt.insert(slot),
        Choice::Wait { until_us } => return Outcome::Wait { until_us },
    };
    if let Some(granted) = slots.iter().find_map(|slot| undone_unless_some(|| attempt.take(*slot))) {
        // The next acquirer need not wait for the commit: it finds the row locked. But it would not count this grant
        // where fewer slots may be granted than are free.
        if !has_holders_outside(&lease.terms, &lease.definition, *now) {
            queue.leave();
        }
        return begun(request, granted, lease.definition.lock_delay_us);
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
    let attempt = Attempt::new(request, lease);
    let Attempt { lease, now, .. } = &attempt;
    let ends = match choose_shared(&lease.terms, &lease.definition, *now) {
        SharedChoice::Begin { ends } => ends,
        SharedChoice::Wait { until_us } => return Outcome::Wait { until_us },
    };
    refuse_older_snapshot(request, || {
        let is_released = |term: &Term| term.depth == 0 && !term.revoked;
        lease.terms.iter().all(is_released) && !unseen::have_changed_since_snapshot(request.name, Rows::OfSlots)
    });
    let begin = || {
        queue.announce_shared_grant();
        attempt.end_terms(&ends)?;
        ends.iter().for_each(|slot| store::remove(request.name, *slot));
        at_once::insert_shared(request.name, request.holder, attempt.ttl_us)
    };
    match undone_unless_some(begin) {
        Some(granted) => {
            COUNTERS.add(1, |counters| &counters.grants);
            queue.leave();
            begun(request, granted, lease.definition.lock_delay_us)
        }
        None => attempt.rows_locked(ends, false),
    }
}

/// An attempt, and the lease as it was when the attempt began.
struct Attempt<'a> {
    request: &'a AcquireRequest<'a>,
    lease: LeaseState,
    now: Now,
    ttl_us: i64,
}

impl<'a> Attempt<'a> {
    fn new(request: &'a AcquireRequest, lease: LeaseState) -> Self {
        let ttl_us = request.ttl_us.unwrap_or(lease.definition.ttl_us);
        Self { request, now: lease.now(), ttl_us, lease }
    }

    /// Inserts the row of a slot that has none. Stays at the head of the queue until the transaction ends: until then, other
    /// sessions do not see the row and would insert it.
    fn insert(&self, slot: i32) -> Outcome {
        let (request, ends) = (self.request, self.to_end_before(slot));
        refuse_older_snapshot(request, || {
            let changed = |rows| unseen::have_changed_since_snapshot(request.name, rows);
            ends.is_empty() && !changed(Rows::OfSlot(slot)) && !changed(Rows::Shared)
        });
        let insert = || terms::insert(request.name, slot, request.holder, self.ttl_us);
        let granted = if ends.is_empty() {
            insert()
        } else {
            undone_unless_some(|| self.end_terms(&ends).and_then(|()| insert()))
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
    fn take(&self, slot: i32) -> Option<HeldTerm> {
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
        matches!(term.availability(self.lease.definition.lock_delay_us, self.now), Availability::Since(_))
    }

    /// Of these rows, those that are still locked. A row that is not locked any more had its term renewed, or was
    /// released.
    fn rows_locked(&self, mut slots: Vec<i32>, has_other_terms: bool) -> Outcome {
        slots.retain(|slot| xact::rolled_back(|| store::lock(self.request.name, *slot).is_none()));
        if slots.is_empty() { Outcome::Retry } else { Outcome::RowsLocked { slots, has_other_terms } }
    }
}

/// Works in a subtransaction, which is rolled back if there is no result.
fn undone_unless_some<R>(work: impl FnOnce() -> Option<R>) -> Option<R> {
    xact::in_subtransaction(work).unwrap_or_else(|cause| cause.rethrow())
}

/// Records what the end of the transaction has to do for a new term.
pub fn begun(request: &AcquireRequest, granted: HeldTerm, lock_delay_us: i64) -> Outcome {
    pending::require_durability();
    pending::locked(granted.token);
    pending::wake_at_end(request.name);
    stats::notify_event(request.name, granted.slot, "granted", granted.owner.as_deref());
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
