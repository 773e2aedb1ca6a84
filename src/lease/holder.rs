//! What a holder calls: lease_acquire, lease_try_acquire, lease_renew, lease_release, lease_fence, and the trigger function
//! lease_guard.

use super::rows::column::{ROLE, TOKEN};
use super::rows::{LeaseRow, ROWS, held, slot_key};
use super::status::{self, COUNTERS};
use super::terms::{By, HeldTerm, OneRow, Wanted, acts_as};
use super::{errors, locks, pending};
use crate::args;
use crate::pg::advisory_lock::{Limit, within};
use crate::pg::datum::{self, Composite, Text, decoded, text_arg};
use crate::pg::function::{self, TriggerRow};
use crate::pg::row::Key;
use crate::pg::{spi, xact};
use crate::settings;
use idgen_core::lease::{self, FIRST_SHARED};
use pgrx::datum::Interval;
use pgrx::fcinfo::pg_getarg;
use pgrx::prelude::*;
use std::ffi::CStr;

/// Acquires a lease, or with a token acquires its term once more. Waits for a slot, up to `lock_timeout`. NULL as `ttl`
/// is the ttl of the definition. Shared terms exclude others, but not each other. Raises 22023 for a shared term of a
/// lease with several slots, and for a token of the other mode, 55000 for a token without a term and after a loss of WAL,
/// 42501 for the token of another role, 0A000 if a term cannot be bound later, and 40001 if the transaction's snapshot is
/// too old.
#[pg_extern(sql = false)]
fn lease_acquire(fcinfo: pg_sys::FunctionCallInfo) -> Composite<7> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    let row = unsafe { acquire_by_args(fcinfo, 1, c"lease_acquire()", Limit::by_lock_timeout()) };
    row.expect("without an answer it is an error")
}

/// Acquires a lease if a slot becomes free within the timeout; otherwise returns no row. Raises what `lease_acquire`
/// raises, but no 55P03.
#[pg_extern(sql = false)]
fn lease_try_acquire(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, Composite<7>> {
    // SAFETY: as above.
    unsafe {
        let timeout = args::timeout(pg_getarg::<Interval>(fcinfo, 1));
        SetOfIterator::new(acquire_by_args(fcinfo, 2, c"lease_try_acquire()", Limit::answer(timeout)))
    }
}

/// Returns the columns of the result.
///
/// # Safety
/// `fcinfo` is that of the running call. Its first argument is a text; from `first` on they are ttl, owner, data, token,
/// bind_session and shared.
unsafe fn acquire_by_args(
    fcinfo: pg_sys::FunctionCallInfo,
    first: usize,
    function: &CStr,
    limit: Limit,
) -> Option<Composite<7>> {
    // SAFETY: by the above.
    let (name, token, wanted) = unsafe {
        (text_arg(fcinfo, 0), pg_getarg::<i64>(fcinfo, first + 3), Wanted::by_args(fcinfo, first, first + 4))
    };
    let name = args::name(name.as_deref(), "name");
    match token {
        Some(token) => {
            xact::require_read_write(function);
            let deepened = within(limit, || deepen(name, token, &wanted))?;
            wanted.commit_or_warn(name);
            Some(columns(name, deepened))
        }
        None => wanted.acquire(&[name], function, limit)?.pop().map(|term| columns(name, term)),
    }
}

pub fn columns(name: &str, term: HeldTerm) -> Composite<7> {
    let expires_at = term.expires_at();
    let HeldTerm { slot, token, owner, acquired_at, depth, .. } = term;
    Composite([
        Text::from(name.to_owned()).into(),
        slot.into(),
        token.into(),
        owner.map(Text::from).into(),
        acquired_at.into(),
        expires_at.into(),
        depth.into(),
    ])
}

/// Extends a term to its ttl from now on, or to the ttl given. Returns its new end; NULL for a term that is bound to a
/// session. Raises 55000 for a token without a term, and 42501 for the token of another role.
#[pg_extern(sql = false)]
fn lease_renew(name: Option<Text>, token: Option<i64>, ttl: Option<Interval>) -> Option<TimestampWithTimeZone> {
    let (name, token) = checked(&name, token);
    let ttl_us = ttl.map(|ttl| args::ttl_us(ttl, settings::lease_ttl_limits_us()));
    xact::require_read_write(c"lease_renew()");
    renew(name, token, ttl_us).unwrap_or_else(|| raise_stale(name, token)).expires_at()
}

/// `None` if the token has no term.
pub fn renew(name: &str, token: i64, ttl_us: Option<i64>) -> Option<HeldTerm> {
    let renewed = extend(name, token, ttl_us, 0)?;
    COUNTERS.add(1, |counters| &counters.renewals);
    Some(renewed)
}

/// Releases a term once. True if the slot is free now, false if the term was acquired more often than released. Raises
/// what `lease_renew` raises.
#[pg_extern(sql = false)]
fn lease_release(name: Option<Text>, token: Option<i64>) -> bool {
    let (name, token) = checked(&name, token);
    xact::require_read_write(c"lease_release()");
    release(name, token).unwrap_or_else(|| raise_stale(name, token))
}

/// True if the slot is free now; `None` if the token has no term.
pub fn release(name: &str, token: i64) -> Option<bool> {
    let is_first = xact::log_position() == 0;
    let released = lease::release(&row_of(name, token), token)?;
    crate::pg::crash_point!("lease: release written");
    if released.depth > 0 {
        pending::record(|effects| effects.lock(token));
        return Some(false);
    }
    pending::record(|effects| effects.release(token));
    status::notify_event(name, released.slot, "released", released.owner.as_deref());
    pending::wake_at_end(name);
    if is_first {
        pending::running().release_only = Some(xact::log_position());
    }
    COUNTERS.add(1, |counters| &counters.releases);
    Some(true)
}

/// Lets the transaction commit only if the token is current, and delays take-overs until the transaction has ended.
/// Raises what `lease_renew` raises, 40001 if the snapshot is older than the term, and 55000 in the statement
/// that has acquired it.
#[pg_extern(sql = false)]
fn lease_fence(name: Option<Text>, token: Option<i64>) {
    let (name, token) = checked(&name, token);
    xact::require_read_write(c"lease_fence()");
    fence(name, token);
}

pub fn fence(name: &str, token: i64) {
    let slot = lease::fence(&row_of(name, token), token).unwrap_or_else(|| raise_stale(name, token));
    crate::pg::crash_point!("lease: fenced");
    pending::refuse_in_acquiring_statement(name);
    let is_it = |row: &LeaseRow| (row.value::<i64>(TOKEN) == token).then_some(());
    if ROWS.read(|rows| rows.find_in_snapshot(&slot_key(name, slot), is_it)).is_none() {
        // The snapshot is older than the term, and may not show what the holder before has written.
        errors::snapshot_too_old(name).raise();
    }
    pending::record(|effects| effects.fence(name, token, slot >= FIRST_SHARED));
    // A take-over may wait for the end of this transaction.
    pending::wake_at_end(name);
    COUNTERS.add(1, |counters| &counters.fences);
}

/// The row of a term whose holder the caller may act as. To others, the token has no term.
fn row_of(name: &str, token: i64) -> OneRow<'_> {
    OneRow { name, by: By::Token(token) }
}

fn checked<'a>(name: &'a Option<Text>, token: Option<i64>) -> (&'a str, i64) {
    (args::name(name.as_deref(), "name"), args::required(token, "token"))
}

/// Acquires the term of a token once more.
fn deepen(name: &str, token: i64, wanted: &Wanted) -> HeldTerm {
    let deepened = extend(name, token, wanted.ttl_us, 1).unwrap_or_else(|| raise_stale(name, token));
    let is_shared = deepened.slot >= FIRST_SHARED;
    if is_shared != wanted.shared {
        errors::other_mode(name, is_shared).raise();
    }
    if wanted.bind_session && !deepened.session_key.is_some_and(|key| locks::session_lock(key).is_held()) {
        errors::bound_too_late(name).raise();
    }
    deepened
}

/// `None` if the token has no term.
fn extend(name: &str, token: i64, ttl_us: Option<i64>, times: i32) -> Option<HeldTerm> {
    let extended = lease::extend(&row_of(name, token), token, ttl_us, times)?;
    crate::pg::crash_point!("lease: renewal written");
    pending::record(|effects| effects.lock(token));
    Some(extended)
}

/// Raises 55000, or 42501 if the term belongs to a role that the caller may not act as.
fn raise_stale(name: &str, token: i64) -> ! {
    COUNTERS.add(1, |counters| &counters.refused);
    let foreign = |row: &LeaseRow| Some(row.value(ROLE)).filter(|role| held(row).is_current(token) && !acts_as(*role));
    if let Some(role) = ROWS.read(|rows| rows.latest(|latest| latest.find(&[Key::Text(name)], foreign))) {
        errors::not_the_holders_role(name, &spi::role_name(role)).raise();
    }
    errors::stale(name, token, status::states_text(name)).raise()
}

/// A trigger before writes of rows, or before statements, for TRUNCATE. Its arguments are the name of the lease, and
/// 'shared' to accept fences by shared terms too. Raises 55000 unless the transaction has fenced by the lease, and in the statement
/// that has acquired it; and 39P01 if the trigger is not declared as it must be.
///
/// Reads the transaction's list of fences, which follows savepoints as the lock on the lease's row does. So a write
/// does not lock that row again.
#[pg_extern(sql = false)]
fn lease_guard(fcinfo: pg_sys::FunctionCallInfo) -> TriggerRow {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let trigger = unsafe { function::trigger_of(fcinfo) }
        .unwrap_or_else(|| errors::guard_usage("It was called as a function.").raise());
    let (name, accepts_shared) = match function::trigger_arguments(trigger.trigger())[..] {
        [name] => (name, false),
        [name, mode] if mode == c"shared" => (name, true),
        _ => errors::guard_usage("Its arguments must be the name of a lease, and 'shared' or nothing.").raise(),
    };
    let call = trigger.trigger_data();
    let name = decoded(name.to_bytes());
    if call.tg_event & pg_sys::TRIGGER_EVENT_TIMINGMASK != pg_sys::TRIGGER_EVENT_BEFORE {
        errors::guard_usage("It must be a BEFORE trigger.").raise();
    }
    let has_fenced = |accepts_shared| pending::EFFECTS.lock().has_fenced(&name, accepts_shared);
    if !has_fenced(accepts_shared) {
        // SAFETY: the trigger's table is open during the call.
        let table = unsafe { CStr::from_ptr((*(*call.tg_relation).rd_rel).relname.data.as_ptr()) };
        errors::not_fenced(&name, &datum::name(table), has_fenced(true)).raise();
    }
    // A function that the statement has called may have fenced, by a snapshot of its own.
    pending::refuse_in_acquiring_statement(&name);
    let is_update = call.tg_event & pg_sys::TRIGGER_EVENT_OPMASK == pg_sys::TRIGGER_EVENT_UPDATE;
    // Null for a statement.
    if is_update { call.tg_newtuple.into() } else { call.tg_trigtuple.into() }
}
