//! What the holder of a token does with its term: renew, release, fence, and acquire it once more. None of this queues.

use super::acquire::checked_ttl_us;
use super::stats::{self, COUNTERS};
use super::store::Granted;
use super::store::terms::{self, Renewed};
use super::{errors, known_definition, notify, pending, queue, session_lock};
use crate::args;
use crate::pg::datum::{Composite, Text, form_rows};
use crate::pg::{system_clock, xact};
use idgen_core::lease::FIRST_SHARED;
use parking_lot::Mutex;
use pgrx::datum::{Array, Interval};
use pgrx::prelude::*;

/// Extends a term to its ttl from now on, or to the ttl given. Returns its new end; NULL for a term that is bound to a
/// session. Raises 55000 for a token without a term, and 42501 for the token of another role.
#[pg_extern(sql = false)]
fn lease_renew(name: Option<Text>, token: Option<i64>, ttl: Option<Interval>) -> Option<TimestampWithTimeZone> {
    let (name, token) = checked(&name, token);
    let ttl_us = checked_ttl_us(ttl);
    xact::require_read_write(c"lease_renew()");
    renew(name, token, ttl_us).expires_at()
}

/// Renews those of several terms that are still held, and returns them. Leaves out other tokens.
#[pg_extern(sql = false)]
fn lease_renew_many(
    names: Option<Array<Text>>,
    tokens: Option<Array<i64>>,
    ttl: Option<Interval>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> SetOfIterator<'static, Composite> {
    let names = args::required(names, "names");
    let tokens = args::required(tokens, "tokens");
    if names.len() != tokens.len() {
        errors::lengths_differ(names.len(), tokens.len()).raise();
    }
    let names: Vec<Option<Text>> = names.iter().collect();
    let names: Vec<&str> = names.iter().map(|name| args::name(name.as_deref(), "name")).collect();
    let tokens: Vec<i64> = tokens.iter().map(|token| args::required(token, "token")).collect();
    let ttl_us = checked_ttl_us(ttl);
    xact::require_read_write(c"lease_renew_many()");
    let renewed = terms::renew_many(names, tokens, ttl_us);
    if !renewed.is_empty() {
        pending::require_durability();
    }
    let row = |Renewed { name, token, ends_us, session_key, .. }| {
        let session_key = renewed_binding(&name, token, session_key);
        COUNTERS.add(1, |counters| &counters.renewals);
        let expires_at = if session_key.is_some() { None } else { system_clock::wall_time_of_boot_us(ends_us) };
        [Text::from(name).into_datum(), token.into_datum(), expires_at.into_datum()]
    };
    let rows: Vec<_> = renewed.into_iter().map(row).collect();
    // SAFETY: the call's own fcinfo; the types are those of the OUT parameters.
    unsafe { form_rows(fcinfo, rows) }
}

/// Releases a term once. True if the slot is free now, false if the term was acquired more often than released. Raises
/// what `lease_renew` raises.
#[pg_extern(sql = false)]
fn lease_release(name: Option<Text>, token: Option<i64>) -> bool {
    let (name, token) = checked(&name, token);
    xact::require_read_write(c"lease_release()");
    release(name, token)
}

/// Lets the transaction commit only if the token is current, and delays take-overs until the transaction has ended.
/// Raises what `lease_renew` raises, 40001 if the transaction's snapshot is older than the term, and 55000 in the statement
/// that has acquired it, if the transaction has one snapshot.
#[pg_extern(sql = false)]
fn lease_fence(name: Option<Text>, token: Option<i64>) {
    let (name, token) = checked(&name, token);
    xact::require_read_write(c"lease_fence()");
    if !pending::has_locked(token) {
        queue::yield_to_take_over(name, cached_slot_of(name, token));
    }
    let slot = terms::fence(name, token).unwrap_or_else(|| raise_stale(name, token));
    if pending::is_after_snapshot(token) {
        errors::fenced_by_acquiring_statement(name).raise();
    }
    if !xact::is_read_committed() && !terms::is_in_snapshot(name, token) {
        // The snapshot is older than the term, and may not show what the holder before has written.
        errors::snapshot_too_old(name).raise();
    }
    pending::fenced(name, token, slot >= FIRST_SHARED);
    // A take-over may wait for the end of this transaction.
    pending::wake_at_end(name);
    COUNTERS.add(1, |counters| &counters.fences);
}

fn checked<'a>(name: &'a Option<Text>, token: Option<i64>) -> (&'a str, i64) {
    (args::name(name.as_deref(), "name"), args::required(token, "token"))
}

/// Acquires the term of a token once more.
pub fn deepen(name: &str, token: i64, ttl_us: Option<i64>, bind_session: bool, shared: bool) -> Granted {
    let granted = terms::deepen(name, token, ttl_us).unwrap_or_else(|| raise_stale(name, token));
    let is_shared = granted.slot >= FIRST_SHARED;
    match is_shared {
        true if !shared => errors::term_is_shared(name).raise(),
        false if shared => errors::term_is_exclusive(name).raise(),
        _ => {}
    }
    let session_key = renewed_binding(name, token, granted.session_key);
    if bind_session && !session_key.is_some_and(|key| session_lock::lock(key).is_held()) {
        errors::bound_too_late(name).raise();
    }
    pending::require_durability();
    Granted { session_key, ..granted }
}

/// Extends the term of a token to its ttl from now on, or to the ttl given.
pub fn renew(name: &str, token: i64, ttl_us: Option<i64>) -> Granted {
    let renewed = terms::renew(name, token, ttl_us).unwrap_or_else(|| raise_stale(name, token));
    let session_key = renewed_binding(name, token, renewed.session_key);
    pending::require_durability();
    COUNTERS.add(1, |counters| &counters.renewals);
    Granted { session_key, ..renewed }
}

/// Records that a term was extended. If the session that it was bound to has ended, the holder lives on without it: the
/// term is unbound, and lasts its time from now on.
fn renewed_binding(name: &str, token: i64, session_key: Option<i64>) -> Option<i64> {
    pending::locked(token);
    let alive = session_key.filter(|key| session_lock::is_alive(*key));
    if session_key.is_some() && alive.is_none() {
        terms::unbind(name, token);
    }
    alive
}

/// Releases the term of a token once. True if the slot is free now.
pub fn release(name: &str, token: i64) -> bool {
    let is_first = xact::log_position() == 0;
    let is_defined = known_definition::of(name).definition.is_some();
    let watched = notify::about_to_release(name, token);
    let depth = terms::release(name, token, is_defined).unwrap_or_else(|| raise_stale(name, token));
    if depth > 0 {
        pending::locked(token);
        return false;
    }
    pending::released(token);
    watched.into_iter().for_each(|term| notify::released(name, term));
    pending::wake_at_end(name);
    if is_first {
        pending::need_not_be_durable();
    }
    COUNTERS.add(1, |counters| &counters.releases);
    true
}

/// The slot of a token, which never changes. A session fences by the same token repeatedly.
fn cached_slot_of(name: &str, token: i64) -> i32 {
    static LAST: Mutex<Option<(i64, i32)>> = Mutex::new(None);
    let cached = LAST.lock().filter(|(last, _)| *last == token);
    let find = || (token, terms::slot_of(name, token).unwrap_or_else(|| raise_stale(name, token)));
    let (_, slot) = cached.unwrap_or_else(find);
    *LAST.lock() = Some((token, slot));
    slot
}

/// Raises 55000, or 42501 if the term belongs to a role that the caller may not act as.
pub fn raise_stale(name: &str, token: i64) -> ! {
    COUNTERS.add(1, |counters| &counters.refused);
    if let Some(role) = terms::foreign_role(name, token) {
        errors::not_the_holders_role(name, &role).raise();
    }
    errors::stale(name, token, stats::states_text(name)).raise()
}
