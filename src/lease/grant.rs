//! Granting a slot: one attempt of the head of the queue.

use super::queue::{self, Queue};
use super::store::slots::{self, Granted, LeaseState, NewHolder};
use super::store::versions;
use super::{errors, pending, stats};
use crate::pg::advisory_lock::{AdvisoryLock, Mode, Scope};
use crate::pg::lock_wait::{Limit, acquire_for_transaction};
use crate::pg::xact;
use crate::settings;
use idgen_core::lease::{Availability, Choice, Now, Term, choose, has_holders_outside, to_end_before};
use pgrx::datum::Interval;
use std::collections::{HashMap, HashSet};

pub struct AcquireRequest<'a> {
    pub name: &'a str,
    /// `None` for the ttl of the definition.
    pub ttl_us: Option<i64>,
    pub holder: NewHolder<'a>,
    /// True to be refused at once if no slot is free.
    pub only_if_free: bool,
    pub preference: &'a dyn SlotPreference,
    /// The request is part of a transaction block that has one snapshot for all its statements.
    pub has_one_snapshot: bool,
}

/// The slots that a caller prefers, and what it knows about their holders. Asked at the head of the queue, before each
/// choice.
pub trait SlotPreference {
    /// The first of these slots that is free is granted, even if it was never granted before.
    fn first(&self) -> Vec<i32> {
        Vec::new()
    }

    /// These slots are granted only if no other is free, in this order.
    fn last(&self) -> Vec<i32> {
        Vec::new()
    }

    /// Slots whose holders are known to have ended. Their terms are over if another clock has written them; a term by
    /// this clock keeps its end. Asked only if there is a term of another clock.
    fn ended(&self) -> HashSet<i32> {
        HashSet::new()
    }
}

/// No preference.
pub struct AnySlot;

impl SlotPreference for AnySlot {}

/// A ttl in microseconds, within the limits that are set. `None` for the ttl of the definition.
pub fn checked_ttl_us(ttl: Option<Interval>) -> Option<i64> {
    ttl.map(|ttl| {
        let limits = settings::lease_ttl_limits_us();
        let given = i64::try_from(ttl.as_micros()).ok().filter(|given| limits.contains(given));
        given.unwrap_or_else(|| errors::ttl_out_of_range(limits).raise())
    })
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
    RowsLocked { slots: Vec<i32>, alternative: Alternative },
}

/// What else can end a wait for locked rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Alternative {
    None,
    /// The row of another free slot, which is locked, too.
    OtherRow,
    /// The end of a term in another slot.
    OtherTerm,
}

/// Attempts a grant at the head of the queue. Waits for a transaction that changes the definition.
pub fn attempt(request: &AcquireRequest, limit: Limit, queue: &Queue) -> Outcome {
    // A grant holds the lock until the transaction ends, so that none follows a definition that has been replaced.
    let definition = definition_lock_for_grant(request.name);
    if !queue.is_bypassed() && !acquire_for_transaction(&definition, limit) {
        return Outcome::Refused;
    }
    let outcome = attempt_by_definition(request, queue);
    if !queue.is_bypassed() && !matches!(outcome, Outcome::Granted(_)) {
        definition.release(Scope::Transaction);
    }
    outcome
}

/// A transaction with more terms acquires one lock for the definitions of all further names. A lock for each would fill
/// the lock table.
const MANY_TERMS: usize = 64;

fn definition_lock_for_grant(name: &str) -> AdvisoryLock {
    let all = queue::all_definitions_lock(Mode::Shared);
    if all.is_held() || pending::term_count() >= MANY_TERMS { all } else { queue::definition_lock(name, Mode::Shared) }
}

fn attempt_by_definition(request: &AcquireRequest, queue: &Queue) -> Outcome {
    stats::count(|counters| &counters.probes);
    // Hold no table lock while sleeping: a queued ALTER TABLE would block renewals.
    let (lease, ended, preferred) = xact::rolled_back(|| {
        let (lease, ended) = read(request);
        (lease, ended, request.preference.first())
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
    let last = xact::rolled_back(|| request.preference.last());
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
        return attempt.granted(granted);
    }
    let alternative = match all {
        true if slots.len() == 1 => Alternative::None,
        true => Alternative::OtherRow,
        false => Alternative::OtherTerm,
    };
    let mut rows = attempt.to_end_before(slots[0]);
    rows.push(slots[0]);
    attempt.rows_locked(rows, alternative)
}

/// The name as it is now, and slots whose holders are known to have ended.
fn read(request: &AcquireRequest) -> (LeaseState, HashSet<i32>) {
    let mut lease = LeaseState::read_to_acquire(request.name);
    let mut ended = HashSet::new();
    if lease.terms.iter().any(|term| !term.by_this_clock) {
        ended = request.preference.ended();
        lease.terms.iter_mut().for_each(|term| *term = corrected(*term, &ended));
    }
    (lease, ended)
}

fn corrected(term: Term, ended: &HashSet<i32>) -> Term {
    if ended.contains(&term.slot) { term.of_ended_holder() } else { term }
}

/// An attempt, and the name as it was when the attempt began.
struct Attempt<'a> {
    request: &'a AcquireRequest<'a>,
    lease: LeaseState,
    ended: HashSet<i32>,
    now: Now,
    ttl_us: i64,
}

impl Attempt<'_> {
    /// Inserts the row of a slot that has none. Stays at the head of the queue until the transaction ends: until then, other
    /// sessions do not see the row and would insert it.
    fn insert(&self, slot: i32) -> Outcome {
        let (request, ends) = (self.request, self.to_end_before(slot));
        refuse_older_snapshot(request, || ends.is_empty() && !versions::has_changed_since_snapshot(request.name, slot));
        let insert = || slots::insert(request.name, slot, request.holder, self.ttl_us);
        let granted = if ends.is_empty() {
            insert()
        } else {
            let inserted = xact::in_subtransaction(|| self.end_terms(&ends).and_then(|()| insert()));
            inserted.unwrap_or_else(|cause| cause.rethrow())
        };
        match granted {
            Some(granted) => {
                stats::count(|counters| &counters.grants);
                self.granted(granted)
            }
            None if ends.is_empty() => Outcome::Retry,
            None => self.rows_locked(ends, Alternative::OtherTerm),
        }
    }

    /// Begins a term in a slot that has a row. `None` if the row is locked, or the slot is no longer free. The caller
    /// then rolls back the ends of other terms.
    fn take(&self, slot: i32) -> Option<Granted> {
        let (request, ends) = (self.request, self.to_end_before(slot));
        self.end_terms(&ends)?;
        let term = slots::lock(request.name, slot).filter(|term| self.is_free(term))?;
        let is_take_over = term.depth > 0 || term.revoked;
        let is_unchanged = || slots::in_snapshot(request.name, slot) == Some((term.token, term.depth, term.ends_us));
        refuse_older_snapshot(request, || ends.is_empty() && !is_take_over && is_unchanged());
        let granted = slots::take(request.name, slot, request.holder, self.ttl_us)?;
        stats::count(|counters| if is_take_over { &counters.take_overs } else { &counters.grants });
        Some(granted)
    }

    fn to_end_before(&self, slot: i32) -> Vec<i32> {
        to_end_before(&self.lease.terms, &self.lease.definition, slot, self.now)
    }

    /// Ends expired terms, which their holders could renew otherwise. `None` if one of the rows is locked, or its term
    /// was renewed.
    fn end_terms(&self, ends: &[i32]) -> Option<()> {
        ends.iter().try_for_each(|slot| {
            slots::lock(self.request.name, *slot).filter(|term| self.is_free(term))?;
            slots::end(self.request.name, *slot);
            Some(())
        })
    }

    fn is_free(&self, term: &Term) -> bool {
        let term = corrected(*term, &self.ended);
        matches!(term.availability(self.lease.definition.lock_delay_us, self.now), Availability::Since(_))
    }

    /// Records what the end of the transaction has to do for the new term.
    fn granted(&self, granted: Granted) -> Outcome {
        pending::require_durability();
        pending::locked(granted.token);
        pending::wake_at_end(self.request.name);
        if let Some(key) = granted.session_key {
            pending::bind(self.request.name, granted.token, key, self.lease.definition.lock_delay_us);
        }
        Outcome::Granted(granted)
    }

    /// Of these rows, those that are still locked. A row that is not locked any more had its term renewed, or was
    /// released.
    fn rows_locked(&self, mut slots: Vec<i32>, alternative: Alternative) -> Outcome {
        slots.retain(|slot| xact::rolled_back(|| slots::lock(self.request.name, *slot).is_none()));
        if slots.is_empty() { Outcome::Retry } else { Outcome::RowsLocked { slots, alternative } }
    }
}

/// Raises 40001 if the transaction's one snapshot may be older than the last holder's writes. A holder that did not release
/// the slot may have written at any time.
pub fn refuse_older_snapshot(request: &AcquireRequest, shows_all: impl FnOnce() -> bool) {
    if request.has_one_snapshot && !shows_all() {
        errors::snapshot_too_old(request.name).raise();
    }
}
