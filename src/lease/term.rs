//! What the holder of a token does with its term. None of this queues.

use super::errors;
use super::own::{self, Renewed};
use super::row::{self, Granted, Wish};
use super::{machine, pending, precedence, session, stats, view};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::ffi::CStr;

/// Says so by the name of the function, before PostgreSQL says it of a statement that the user did not write.
pub fn refuse_where_nothing_can_be_written(function: &CStr) {
    // SAFETY: a C string.
    unsafe {
        pg_sys::PreventCommandDuringRecovery(function.as_ptr());
        pg_sys::PreventCommandIfReadOnly(function.as_ptr());
    }
}

/// What is acquired in a transaction block can be taken back.
pub fn warn_in_block(name: &str) {
    // SAFETY: reads this process's own state.
    if unsafe { pg_sys::IsTransactionBlock() } {
        errors::nobodys_until_commit(name).warn();
    }
}

/// Acquires what is held once more.
pub fn deepen(wish: &Wish, token: i64) -> Granted {
    let granted = own::deepen(wish, token).unwrap_or_else(|| stale(wish.name, token));
    let session_key = keep_bound(wish.name, token, granted.session_key);
    if wish.bind_session && !session_key.is_some_and(|key| session::lock(key).is_held()) {
        errors::bound_too_late(wish.name).raise();
    }
    pending::require_durability();
    pending::locked(token);
    Granted { session_key, ..granted }
}

pub fn renew(name: &str, token: i64, ttl_us: Option<i64>) -> Granted {
    let renewed = own::renew(name, token, ttl_us).unwrap_or_else(|| stale(name, token));
    let session_key = keep_bound(name, token, renewed.session_key);
    pending::require_durability();
    pending::locked(token);
    stats::count(|counters| &counters.renewals);
    Granted { session_key, ..renewed }
}

pub fn renew_many(
    names: Vec<&str>,
    tokens: Vec<i64>,
    ttl_us: Option<i64>,
) -> Vec<(String, i64, Option<TimestampWithTimeZone>)> {
    let renewed = own::renew_many(names, tokens, ttl_us);
    if !renewed.is_empty() {
        pending::require_durability();
    }
    let told = |Renewed { name, token, ends_us, session_key, .. }: Renewed| {
        let session_key = keep_bound(&name, token, session_key);
        pending::locked(token);
        stats::count(|counters| &counters.renewals);
        (name, token, expires_at(session_key, ends_us))
    };
    renewed.into_iter().map(told).collect()
}

/// Where the session is gone that a term was bound to, its holder goes on without: the term lasts its time from now on.
fn keep_bound(name: &str, token: i64, session_key: Option<i64>) -> Option<i64> {
    let living = session_key.filter(|key| session::lives(*key));
    if session_key.is_some() && living.is_none() {
        own::unbind(name, token);
    }
    living
}

pub fn release(name: &str, token: i64) -> bool {
    let depth = own::release(name, token).unwrap_or_else(|| stale(name, token));
    if depth > 0 {
        pending::locked(token);
        return false;
    }
    pending::released(token);
    pending::wake_at_end(name);
    stats::count(|counters| &counters.releases);
    true
}

pub fn fence(name: &str, token: i64) {
    if !pending::has_locked(token) {
        precedence::let_pass(name, slot_of(name, token));
    }
    if !own::fence(name, token) {
        stale(name, token);
    }
    if pending::has_one_snapshot() && !row::sees_token(name, token) {
        // The snapshot is older than the term, and may lack what the holder before has written.
        errors::snapshot_too_old(name).raise();
    }
    pending::fenced(name, token);
    // Who waits for the end of this transaction to take the lease over.
    pending::wake_at_end(name);
    stats::count(|counters| &counters.fences);
}

/// The slot of a token, which never changes.
fn slot_of(name: &str, token: i64) -> i32 {
    /// A session fences by the same token again and again.
    static LAST: Mutex<Option<(i64, i32)>> = Mutex::new(None);
    let known = LAST.lock().filter(|(known, _)| *known == token);
    let (_, slot) = known.unwrap_or_else(|| (token, own::slot_of(name, token).unwrap_or_else(|| stale(name, token))));
    *LAST.lock() = Some((token, slot));
    slot
}

/// The token stands for no term that the caller may act on.
pub fn stale(name: &str, token: i64) -> ! {
    stats::count(|counters| &counters.refused);
    refuse_foreign_role(name, token);
    errors::stale(name, token, view::states_of(name)).raise()
}

fn refuse_foreign_role(name: &str, token: i64) {
    if let Some(role) = own::foreign_role(name, token) {
        errors::not_the_holders_role(name, &role).raise();
    }
}

/// When a term ends, by the wall clock as it is now. `None` for a term that is bound to a session, which has no end of its own,
/// and for an end that no timestamp can say. Not infinity: many clients cannot read that.
pub fn expires_at(session_key: Option<i64>, ends_us: i64) -> Option<TimestampWithTimeZone> {
    if session_key.is_some() {
        return None;
    }
    // SAFETY: reads the clock.
    let now = unsafe { pg_sys::GetCurrentTimestamp() };
    let left_us = ends_us.saturating_sub(machine::now(false).now_us);
    let ends_at = now.checked_add(left_us)?;
    // The extremes stand for the infinities.
    TimestampWithTimeZone::try_from(ends_at).ok().filter(|_| !matches!(ends_at, i64::MIN | i64::MAX))
}
