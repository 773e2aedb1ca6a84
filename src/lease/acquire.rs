//! Acquiring: through the turnstile, at its head, to a row.

use super::row::{self, Granted, Lease, Wish};
use super::turnstile::Turnstile;
use super::{machine, stats, tokens, transaction};
use crate::error;
use crate::lock::wait::{self, Limit};
use crate::subtransaction;
use idgen_core::lease::{Availability, Choice, Now, Session, Term, choose};
use pgrx::prelude::*;
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
            if wish.bind_session {
                transaction::bind(wish.name, granted.token);
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
    let preferred = wish.owner.filter(|_| wish.is_for_number).and_then(|owner| row::last_of_owner(wish.name, owner));
    let (slots, all) = match choose(&lease.terms, &lease.definition, preferred, now) {
        Choice::Take { slots, all } => (slots, all),
        // The turn lasts to the end of the transaction: before, others do not see the row, and would make it too.
        Choice::Make { slot } => {
            refuse_a_snapshot_that_differs(wish.name, slot, false);
            let Some(granted) = tokens::draw(|| row::make(wish, slot, ttl_us)) else {
                return Attempt::Again;
            };
            stats::count(|counters| &counters.grants);
            return Attempt::Granted(granted);
        }
        Choice::Rest { slots } => {
            slots.into_iter().for_each(|slot| {
                row::revoke(wish.name, slot);
            });
            return Attempt::Again;
        }
        Choice::Wait { .. } if wish.is_for_number => return Attempt::Refused,
        Choice::Wait { until_us } => return Attempt::NothingBefore(until_us),
    };
    let granted = |granted| {
        turnstile.leave();
        Attempt::Granted(granted)
    };
    let at_once = |slot: &i32| {
        refuse_a_snapshot_that_differs(wish.name, *slot, true);
        let taken = subtransaction::run(|| take(wish, row::lock(wish.name, *slot)?, &lease, now, ttl_us));
        taken.unwrap_or_else(|cause| cause.rethrow())
    };
    match slots.iter().find_map(at_once) {
        Some(slot) => granted(slot),
        // Not if there are others: one of them may be free sooner.
        None if all => wait_for(wish, slots[0], &lease, ttl_us, limit).map_or(Attempt::Again, granted),
        None => Attempt::NothingBefore(None),
    }
}

/// Waits for whoever has locked a row that is free otherwise: a transaction that has fenced, or one that is about to take
/// it. By the lock manager, which finds deadlocks. `None`: look again, the time may be over.
fn wait_for(wish: &Wish, slot: i32, lease: &Lease, ttl_us: i64, limit: Limit) -> Option<Granted> {
    let ms = limit.left_ms();
    if ms == Some(0) {
        return None;
    }
    let taken = wait::limited(ms, || {
        let term = row::lock_waiting(wish.name, slot)?;
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
    let Availability::Since(since_us) = term.availability(lease.definition.lock_delay_us, now) else {
        return None;
    };
    let is_take_over = term.depth > 0 || term.revoked;
    // When a session has ended nobody knows, but all its transactions did before.
    if is_take_over && term.session != Session::Ended {
        refuse_an_older_snapshot(wish.name, since_us, now);
    }
    let granted = tokens::draw(|| row::take(wish, term.slot, ttl_us))?;
    stats::count(|counters| if is_take_over { &counters.take_overs } else { &counters.grants });
    Some(granted)
}

/// Where a transaction has one snapshot for all its statements, that must not be older than the last holder's term: what he
/// has written would not be seen.
fn refuse_an_older_snapshot(name: &str, since_us: i64, now: Now) {
    // SAFETY: read this process's own state.
    let age_us = unsafe { pg_sys::GetCurrentTimestamp() - pg_sys::GetCurrentTransactionStartTimestamp() };
    if transaction::has_one_snapshot() && now.now_us.saturating_sub(age_us) < since_us {
        error::lease::taken_over_meanwhile(name).raise();
    }
}

/// The same where a slot's row has come or gone since the snapshot: somebody has held it meanwhile. Nobody can take a row
/// that his snapshot does not show.
fn refuse_a_snapshot_that_differs(name: &str, slot: i32, has_row: bool) {
    if transaction::has_one_snapshot() && row::is_in_snapshot(name, slot) != has_row {
        error::lease::taken_over_meanwhile(name).raise();
    }
}
