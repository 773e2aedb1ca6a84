//! Acquiring: through the turnstile, at its head, to a row.

use super::row::{self, Granted, Lease, Wish};
use super::turnstile::Turnstile;
use super::{machine, names, stats, tokens, transaction};
use crate::error;
use crate::lock::wait::{self, Limit};
use crate::subtransaction;
use idgen_core::lease::{Availability, Choice, Now, Term, choose};
use pgrx::prelude::*;
use std::collections::HashMap;
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
}

/// Acquires a slot. `None` when the time is over, or an error, as the limit says.
pub fn slot(wish: &Wish, limit: Limit) -> Option<Granted> {
    let turnstile = Turnstile::of(wish.name);
    let began = Instant::now();
    if !turnstile.enter(limit) {
        return None;
    }
    let granted = at_the_head(wish, limit, &turnstile);
    stats::waited(began.elapsed());
    match granted {
        Some(granted) => {
            transaction::is_to_be_durable();
            transaction::wake_at_end(wish.name);
            if let Some(key) = granted.session_key {
                transaction::bind(wish.name, granted.token, key);
            }
            Some(granted)
        }
        None => {
            turnstile.leave();
            let is_over = limit.left() == Some(Duration::ZERO);
            if wish.is_for_number && !is_over { None } else { wait::time_is_over(limit) }
        }
    }
}

fn at_the_head(wish: &Wish, limit: Limit, turnstile: &Turnstile) -> Option<Granted> {
    loop {
        let rings = turnstile.rings();
        let until_us = match attempt(wish, limit, turnstile) {
            Attempt::Granted(granted) => return Some(granted),
            Attempt::Refused => return None,
            Attempt::Again => Some(0),
            Attempt::NothingBefore(until_us) => until_us,
        };
        let left = limit.left();
        if left == Some(Duration::ZERO) {
            return None;
        }
        let until = until_us.map(|until_us| until_us.saturating_sub(machine::now(false).now_us).max(0) as u64);
        if until != Some(0) {
            let sleep = until.map_or(Duration::MAX, Duration::from_micros).min(left.unwrap_or(Duration::MAX));
            turnstile.sleep(rings, sleep);
        }
        check_for_interrupts!();
    }
}

fn attempt(wish: &Wish, limit: Limit, turnstile: &Turnstile) -> Attempt {
    stats::count(|counters| &counters.probes);
    // Who may wait for hours keeps nobody meanwhile from altering or dropping the tables; renewals would queue behind that.
    let lease = subtransaction::undone(|| row::look(wish.name));
    let now = machine::now(lease.needs_the_beginning());
    let ttl_us = wish.ttl_us.unwrap_or(lease.definition.ttl_us);
    let preferred = wish.owner.filter(|_| wish.is_for_number).and_then(|owner| names::last_of_owner(wish.name, owner));
    let (mut slots, all) = match choose(&lease.terms, &lease.definition, preferred, now) {
        Choice::Take { slots, all } => (slots, all),
        // The turn lasts to the end of the transaction: before, others do not see the row, and would make it too.
        Choice::Make { slot } => {
            refuse_an_older_snapshot(wish, || row::see(wish.name, slot).is_none());
            let Some(granted) = tokens::draw(|| row::make(wish, slot, ttl_us)) else {
                return Attempt::Again;
            };
            stats::count(|counters| &counters.grants);
            return Attempt::Granted(granted);
        }
        Choice::Wait { .. } if wish.is_for_number => return Attempt::Refused,
        Choice::Wait { until_us } => return Attempt::NothingBefore(until_us),
    };
    if wish.is_for_number {
        // Those whose times are over first: of the others, nothing can be used at once.
        let to_come: HashMap<i32, usize> = names::numbers_with_times_to_come(wish.name).into_iter().zip(0..).collect();
        slots.sort_by_key(|slot| to_come.get(slot));
    }
    let granted = |granted| {
        turnstile.leave();
        Attempt::Granted(granted)
    };
    let at_once = |slot: &i32| {
        let taken = subtransaction::run(|| take(wish, row::lock(wish.name, *slot)?, &lease, now, ttl_us));
        taken.unwrap_or_else(|cause| cause.rethrow())
    };
    match slots.iter().find_map(at_once) {
        Some(slot) => granted(slot),
        // Not if there are others: one of them may be free sooner.
        None if all => wait_for(wish, &slots, &lease, ttl_us, limit).map_or(Attempt::Again, granted),
        None => Attempt::NothingBefore(None),
    }
}

/// Waits for whoever has locked a row that is free otherwise: a transaction that has fenced, or one that is about to take
/// it. By the lock manager, which finds deadlocks. `None`: look again, the time may be over.
fn wait_for(wish: &Wish, slots: &[i32], lease: &Lease, ttl_us: i64, limit: Limit) -> Option<Granted> {
    let left_ms = limit.left_ms();
    if left_ms == Some(0) {
        return None;
    }
    refuse_an_older_snapshot(wish, || false);
    // Where there are others, one of them may be free sooner: look again after a while, long enough to find a deadlock.
    let ms = match slots {
        [_] => left_ms,
        // SAFETY: reads a setting.
        _ => Some(left_ms.unwrap_or(i32::MAX).min(unsafe { pg_sys::DeadlockTimeout }.saturating_add(1000))),
    };
    let taken = wait::limited(ms, || {
        let term = row::lock_waiting(wish.name, slots[0])?;
        take(wish, term, lease, machine::now(lease.needs_the_beginning()), ttl_us)
    });
    match taken {
        Ok(taken) => taken,
        Err(cause) if wait::is_time_over(&cause) => None,
        Err(cause) => cause.rethrow(),
    }
}

/// Takes a slot whose row is locked, if it can still be taken.
fn take(wish: &Wish, term: Term, lease: &Lease, now: Now, ttl_us: i64) -> Option<Granted> {
    if !matches!(term.availability(lease.definition.lock_delay_us, now), Availability::Since(_)) {
        return None;
    }
    let is_take_over = term.depth > 0 || term.revoked;
    let as_it_was = || row::see(wish.name, term.slot) == Some((term.token, term.depth, term.ends_us));
    refuse_an_older_snapshot(wish, || !is_take_over && as_it_was());
    let granted = tokens::draw(|| row::take(wish, term.slot, ttl_us))?;
    stats::count(|counters| if is_take_over { &counters.take_overs } else { &counters.grants });
    Some(granted)
}

/// In a transaction block that has one snapshot for all its statements, that must not be older than what the last holder has
/// written. It is not if he has released the slot before; of one who has not, nobody knows when he wrote last.
fn refuse_an_older_snapshot(wish: &Wish, shows_all: impl FnOnce() -> bool) {
    if wish.has_one_snapshot && !shows_all() {
        error::lease::snapshot_too_old(wish.name).raise();
    }
}
