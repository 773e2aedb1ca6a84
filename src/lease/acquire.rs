//! Acquiring: through the turnstile, at its head, to a row.

use super::errors;
use super::precedence::Precedence;
use super::row::{self, Granted, Lease, Wish};
use super::turnstile::Turnstile;
use super::{define, machine, pending, stats, tokens, versions};
use crate::lock::acquire::in_transaction;
use crate::lock::manager::{Lock, Mode, Scope};
use crate::lock::wait::{self, Limit};
use crate::pg::xact;
use idgen_core::lease::{Availability, Choice, Now, Term, choose, has_holders_outside, to_end_before};
use pgrx::prelude::*;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// What a try at the head of the queue has come to.
enum Attempt {
    /// It is the caller's once the transaction commits.
    Granted(Granted),
    /// Nothing is free, and it is not to be waited for.
    Refused,
    /// Look again.
    Again,
    /// Nothing to do before then, unless something happens; `None` is not known.
    NothingBefore(Option<i64>),
    /// A slot is free but for others' locks on these rows: its own, and those of terms that end with the grant.
    Locked { slots: Vec<i32>, waits_for: WaitsFor },
}

/// What can end a wait for locked rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WaitsFor {
    /// These rows only.
    Rows,
    /// Or another slot, whose row is locked too.
    OtherRows,
    /// Or the end of a term in another slot.
    OtherTerms,
}

/// How long the head of a queue sleeps before it waits for a locked row, where a term of another slot may end sooner. The
/// lock manager finds deadlocks only among those that wait in it.
const BEFORE_ROWS: Duration = Duration::from_secs(10);

/// Acquires a slot. `None` when the time is over, or an error, as the limit says.
pub fn slot(wish: &Wish, limit: Limit) -> Option<Granted> {
    let turnstile = Turnstile::of(wish.name);
    let began = Instant::now();
    if !turnstile.enter(limit) {
        return None;
    }
    let granted = at_the_head(wish, limit, &turnstile);
    stats::waited(began.elapsed());
    if granted.is_some() {
        return granted;
    }
    turnstile.leave();
    let is_over = limit.left() == Some(Duration::ZERO);
    if wish.only_if_free && !is_over { None } else { wait::time_is_over(limit) }
}

fn at_the_head(wish: &Wish, limit: Limit, turnstile: &Turnstile) -> Option<Granted> {
    let mut precedence = None;
    let granted = loop {
        let broadcasts = turnstile.broadcasts();
        let until_us = match attempt(wish, limit, turnstile) {
            Attempt::Granted(granted) => break Some(granted),
            Attempt::Refused => break None,
            Attempt::Again => Some(0),
            Attempt::NothingBefore(until_us) => {
                precedence.take().into_iter().for_each(Precedence::end);
                until_us
            }
            Attempt::Locked { slots, waits_for } => wait_for_rows(wish, &slots, waits_for, limit, &mut precedence),
        };
        let left = limit.left();
        if left == Some(Duration::ZERO) {
            break None;
        }
        let until = until_us.map(|until_us| until_us.saturating_sub(machine::now(false).now_us).max(0) as u64);
        if until != Some(0) {
            let sleep = until.map_or(Duration::MAX, Duration::from_micros).min(left.unwrap_or(Duration::MAX));
            turnstile.sleep(broadcasts, sleep);
        }
        check_for_interrupts!();
    };
    precedence.into_iter().for_each(Precedence::end);
    granted
}

fn attempt(wish: &Wish, limit: Limit, turnstile: &Turnstile) -> Attempt {
    // A grant holds it until the transaction ends: no grant follows a definition that has been replaced.
    let definition = definition_lock(wish.name);
    if !turnstile.is_alone() && !in_transaction(&definition, limit) {
        return Attempt::Refused;
    }
    let attempt = attempt_by_definition(wish, turnstile);
    if !turnstile.is_alone() && !matches!(attempt, Attempt::Granted(_)) {
        definition.release(Scope::Transaction);
    }
    attempt
}

/// From how many terms of a transaction on one lock stands for the definitions of all further names: a lock for each would fill
/// the lock table.
const MANY_TERMS: usize = 64;

fn definition_lock(name: &str) -> Lock {
    let of_all = define::lock_of_all(Mode::Shared);
    if of_all.is_held() || pending::term_count() >= MANY_TERMS { of_all } else { define::lock(name, Mode::Shared) }
}

fn attempt_by_definition(wish: &Wish, turnstile: &Turnstile) -> Attempt {
    stats::count(|counters| &counters.probes);
    // Hold no table lock while sleeping: a queued ALTER TABLE would block renewals.
    let (lease, preferred) = xact::rolled_back(|| (look(wish), wish.preference.first()));
    let now = machine::now(lease.needs_the_beginning());
    let ttl_us = wish.ttl_us.unwrap_or(lease.definition.ttl_us);
    let (mut slots, all) = match choose(&lease.terms, &lease.definition, &preferred, now) {
        Choice::Take { slots, all } => (slots, all),
        Choice::Make { slot } => return make(wish, slot, &lease, now, ttl_us),
        Choice::Wait { .. } if wish.only_if_free => return Attempt::Refused,
        Choice::Wait { until_us } => return Attempt::NothingBefore(until_us),
    };
    let last = xact::rolled_back(|| wish.preference.last());
    let last: HashMap<i32, usize> = last.into_iter().filter(|slot| !preferred.contains(slot)).zip(0..).collect();
    slots.sort_by_key(|slot| last.get(slot));
    let at_once = |slot: &i32| {
        let taken = xact::in_subtransaction(|| take(wish, *slot, &lease, now, ttl_us));
        taken.unwrap_or_else(|cause| cause.rethrow())
    };
    if let Some(granted) = slots.iter().find_map(at_once) {
        // The next one is served meanwhile, and finds the row locked. Not where there is less room than there are free slots:
        // it would not count this grant.
        if !has_holders_outside(&lease.terms, &lease.definition, now) {
            turnstile.leave();
        }
        return granted_to(wish, granted, &lease);
    }
    let waits_for = match all {
        true if slots.len() == 1 => WaitsFor::Rows,
        true => WaitsFor::OtherRows,
        false => WaitsFor::OtherTerms,
    };
    let mut rows = to_end_before(&lease.terms, &lease.definition, slots[0], now);
    rows.push(slots[0]);
    locked_among(wish, rows, waits_for)
}

/// The name as it is now, with what the caller knows of its holders.
fn look(wish: &Wish) -> Lease {
    let mut lease = row::look_to_take(wish.name);
    if lease.terms.iter().any(|term| !term.by_this_clock) {
        lease.ended = wish.preference.ended();
        lease.terms = lease.terms.iter().map(|term| as_known(term, &lease.ended)).collect();
    }
    lease
}

fn as_known(term: &Term, ended: &HashSet<i32>) -> Term {
    if ended.contains(&term.slot) { term.of_ended_holder() } else { *term }
}

/// What the transaction has to remember of a grant.
fn granted_to(wish: &Wish, granted: Granted, lease: &Lease) -> Attempt {
    pending::require_durability();
    pending::locked(granted.token);
    pending::wake_at_end(wish.name);
    if let Some(key) = granted.session_key {
        pending::bind(wish.name, granted.token, key, lease.definition.lock_delay_us);
    }
    Attempt::Granted(granted)
}

/// What to wait for, when one of these rows was locked, or its term renewed.
fn locked_among(wish: &Wish, mut slots: Vec<i32>, waits_for: WaitsFor) -> Attempt {
    slots.retain(|slot| xact::rolled_back(|| row::lock(wish.name, *slot).is_none()));
    if slots.is_empty() { Attempt::Again } else { Attempt::Locked { slots, waits_for } }
}

/// Makes the row of a slot that nobody has had. The turn lasts to the end of the transaction: others do not see the row
/// before, and would make it too.
fn make(wish: &Wish, slot: i32, lease: &Lease, now: Now, ttl_us: i64) -> Attempt {
    let ends = to_end_before(&lease.terms, &lease.definition, slot, now);
    refuse_an_older_snapshot(wish, || ends.is_empty() && !versions::has_changed_since_snapshot(wish.name, slot));
    let make = || tokens::draw(|| row::make(wish, slot, ttl_us));
    let granted = if ends.is_empty() {
        make()
    } else {
        let made = xact::in_subtransaction(|| end_terms(wish, &ends, lease, now).and_then(|()| make()));
        made.unwrap_or_else(|cause| cause.rethrow())
    };
    match granted {
        Some(granted) => {
            stats::count(|counters| &counters.grants);
            granted_to(wish, granted, lease)
        }
        None if ends.is_empty() => Attempt::Again,
        None => locked_among(wish, ends, WaitsFor::OtherTerms),
    }
}

/// Takes a slot whose row is there, if nobody has locked it and it can still be taken.
fn take(wish: &Wish, slot: i32, lease: &Lease, now: Now, ttl_us: i64) -> Option<Granted> {
    let ends = to_end_before(&lease.terms, &lease.definition, slot, now);
    end_terms(wish, &ends, lease, now)?;
    let term = row::lock(wish.name, slot)?;
    if !can_be_taken(&term, lease, now) {
        return None;
    }
    let is_take_over = term.depth > 0 || term.revoked;
    let as_it_was = || row::see(wish.name, slot) == Some((term.token, term.depth, term.ends_us));
    refuse_an_older_snapshot(wish, || ends.is_empty() && !is_take_over && as_it_was());
    let granted = tokens::draw(|| row::take(wish, slot, ttl_us))?;
    stats::count(|counters| if is_take_over { &counters.take_overs } else { &counters.grants });
    Some(granted)
}

/// Ends expired terms, whose holders could renew them otherwise. `None` if one of the rows is locked, as by a fence, or its
/// term was renewed.
fn end_terms(wish: &Wish, slots: &[i32], lease: &Lease, now: Now) -> Option<()> {
    slots.iter().try_for_each(|slot| {
        let term = row::lock(wish.name, *slot)?;
        if !can_be_taken(&term, lease, now) {
            return None;
        }
        row::end(wish.name, *slot);
        Some(())
    })
}

fn can_be_taken(term: &Term, lease: &Lease, now: Now) -> bool {
    matches!(as_known(term, &lease.ended).availability(lease.definition.lock_delay_us, now), Availability::Since(_))
}

/// Waits for those who have locked rows that are free otherwise: transactions that have fenced, or that are about to take
/// them. Returns until when to sleep before the next look at the rows; 0 is not at all.
///
/// The wait is in the lock manager, which finds deadlocks. It keeps its precedence over later fences, but no lock on a row:
/// renewals pass.
fn wait_for_rows(
    wish: &Wish,
    slots: &[i32],
    waits_for: WaitsFor,
    limit: Limit,
    precedence: &mut Option<Precedence>,
) -> Option<i64> {
    if limit.left() == Some(Duration::ZERO) {
        return Some(0);
    }
    let precedence = precedence.get_or_insert_with(Precedence::new);
    precedence.keep(slots);
    if !slots.iter().all(|slot| precedence.take(wish.name, *slot, limit)) {
        return Some(0);
    }
    if waits_for == WaitsFor::OtherTerms && precedence.since.elapsed() < BEFORE_ROWS {
        return None;
    }
    refuse_an_older_snapshot(wish, || false);
    for slot in slots {
        let left_ms = limit.left_ms();
        // Look again after a while, long enough to find a deadlock: others may be free sooner, and this term renewed, whose fences
        // wait meanwhile.
        // SAFETY: reads a setting.
        let ms = Some(left_ms.unwrap_or(i32::MAX).min(unsafe { pg_sys::DeadlockTimeout }.saturating_add(1000)));
        if ms == Some(0) {
            break;
        }
        let undone = wait::limited(ms, || {
            row::lock_waiting(wish.name, *slot);
            None::<()>
        });
        if let Err(cause) = undone
            && !wait::is_time_over(&cause)
        {
            cause.rethrow();
        }
    }
    precedence.since = Instant::now();
    Some(0)
}

/// In a transaction block that has one snapshot for all its statements, that must not be older than what the last holder has
/// written. It is not if he has released the slot before; of one who has not, nobody knows when he wrote last.
fn refuse_an_older_snapshot(wish: &Wish, shows_all: impl FnOnce() -> bool) {
    if wish.has_one_snapshot && !shows_all() {
        errors::snapshot_too_old(wish.name).raise();
    }
}
