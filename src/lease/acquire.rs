//! lease_acquire and lease_try_acquire: wait in the queue of the lease, then at its head for a slot, and begin a term.

use super::attempt::{AcquireRequest, Outcome, attempt, refuse_older_snapshot, refuse_to_share_slots};
use super::queue::{Precedence, Queue, with_tables};
use super::stats::COUNTERS;
use super::store::{Granted, NewHolder};
use super::{errors, holder, known_definition, pending};
use crate::args;
use crate::pg::advisory_lock::{Limit, within};
use crate::pg::datum::{Composite, Text, form_row, form_rows, text_arg};
use crate::pg::{system_clock, xact};
use crate::place;
use crate::settings;
use pgrx::datum::Interval;
use pgrx::fcinfo::{pg_getarg, pg_getarg_datum};
use pgrx::prelude::*;
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// Acquires a lease, or with a token acquires its term once more. Waits for a slot, up to `lock_timeout`. NULL as `ttl`
/// is the ttl of the definition. Shared terms exclude others, but not each other. Raises 22023 for a shared term of a
/// lease with several slots, and for a token of the other mode, 55000 for a token without a term and after a loss of WAL,
/// 42501 for the token of another role, 0A000 if a term cannot be bound later, and 40001 if the transaction's snapshot is
/// too old.
#[pg_extern(sql = false)]
fn lease_acquire(fcinfo: pg_sys::FunctionCallInfo) -> Composite {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared; the columns are the OUT parameters.
    unsafe {
        let row = acquire_by_args(fcinfo, 1, c"lease_acquire()", Limit::by_lock_timeout());
        form_row(fcinfo, row.expect("without an answer it is an error"))
    }
}

/// Acquires a lease if a slot becomes free within the timeout; otherwise returns no row. Raises what `lease_acquire`
/// raises, but no 55P03.
#[pg_extern(sql = false)]
fn lease_try_acquire(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, Composite> {
    // SAFETY: as above.
    unsafe {
        let timeout = args::timeout(pg_getarg::<Interval>(fcinfo, 1));
        form_rows(fcinfo, acquire_by_args(fcinfo, 2, c"lease_try_acquire()", Limit::answer(timeout)))
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
) -> Option<[Option<pg_sys::Datum>; 7]> {
    // SAFETY: by the above.
    let (name, ttl, owner, data, token, bind_session, shared) = unsafe {
        (
            text_arg(fcinfo, 0),
            pg_getarg::<Interval>(fcinfo, first),
            text_arg(fcinfo, first + 1),
            pg_getarg_datum(fcinfo, first + 2),
            pg_getarg::<i64>(fcinfo, first + 3),
            pg_getarg::<bool>(fcinfo, first + 4),
            pg_getarg::<bool>(fcinfo, first + 5),
        )
    };
    let name = args::name(name.as_deref(), "name");
    let ttl_us = checked_ttl_us(ttl);
    let bind_session = args::required(bind_session, "bind_session");
    let shared = args::required(shared, "shared");
    xact::require_read_write(function);
    // SAFETY: by the above.
    let is_own_statement = unsafe { xact::is_own_statement(fcinfo) };
    let granted = match token {
        Some(token) => within(limit, || holder::deepen(name, token, ttl_us, bind_session, shared))?,
        None => {
            if place::is_wal_lost() {
                errors::holders_unknown().raise();
            }
            let request = AcquireRequest {
                name,
                ttl_us,
                holder: NewHolder { owner: owner.as_deref(), data, bind_session },
                shared,
                only_if_free: false,
                preference: None,
                shares_snapshot: !is_own_statement && !xact::is_read_committed(),
            };
            acquire(&request, limit)?
        }
    };
    if !is_own_statement {
        errors::not_held_before_commit(name).warn();
    } else if !xact::is_read_committed() {
        // What comes next in this transaction would see what this statement saw before it waited.
        xact::commit_with_statement();
        if token.is_none() {
            pending::began_after_snapshot(granted.token);
        }
    }
    let expires_at = granted.expires_at();
    let Granted { slot, token, owner, acquired_at, depth, .. } = granted;
    Some([
        Text::from(name).into_datum(),
        slot.into_datum(),
        token.into_datum(),
        owner.map(Text::from).into_datum(),
        acquired_at.into_datum(),
        expires_at.into_datum(),
        depth.into_datum(),
    ])
}

/// Acquires a slot. If the limit passes, `None` or an error, as the limit says.
pub fn acquire(request: &AcquireRequest, limit: Limit) -> Option<Granted> {
    // A call that can only fail does not wait in the queue.
    if request.shared
        && let Some(definition) = with_tables(limit, || known_definition::of(request.name))?.definition
    {
        refuse_to_share_slots(request.name, &definition);
    }
    let queue = if request.shared { Queue::of_shared(request.name) } else { Queue::of(request.name) };
    let began = Instant::now();
    if !queue.enter(limit) {
        return None;
    }
    let granted = wait_at_head(request, limit, &queue);
    COUNTERS.add(began.elapsed().as_micros() as u64, |counters| &counters.wait_us);
    if granted.is_some() {
        return granted;
    }
    queue.leave();
    let is_over = limit.left() == Some(Duration::ZERO);
    if request.only_if_free && !is_over { None } else { limit.time_out() }
}

/// Attempts a grant whenever a slot may have become free. `None` if the request is refused or the limit has passed.
fn wait_at_head(request: &AcquireRequest, limit: Limit, queue: &Queue) -> Option<Granted> {
    let mut precedence = None;
    let granted = loop {
        let broadcasts = queue.broadcasts();
        let until_us = match attempt(request, limit, queue) {
            Outcome::Granted(granted) => break Some(granted),
            Outcome::Refused => break None,
            Outcome::Retry => Some(0),
            Outcome::Wait { until_us } => {
                precedence.take().into_iter().for_each(Precedence::release);
                until_us
            }
            Outcome::RowsLocked { slots, has_other_terms } => {
                let precedence = precedence.get_or_insert_with(Precedence::new);
                let refuse = || refuse_older_snapshot(request, || false);
                precedence.wait_for_rows(request.name, &slots, has_other_terms, limit, refuse).then_some(0)
            }
        };
        let left = limit.left();
        if left == Some(Duration::ZERO) {
            break None;
        }
        let until = until_us.map(|until_us| until_us.saturating_sub(system_clock::boot_us()).max(0) as u64);
        if until != Some(0) {
            let time = until.map_or(Duration::MAX, Duration::from_micros).min(left.unwrap_or(Duration::MAX));
            queue.sleep(broadcasts, time);
        }
        check_for_interrupts!();
    };
    precedence.into_iter().for_each(Precedence::release);
    granted
}

/// A ttl in microseconds, within the limits that are set. `None` for the ttl of the definition.
pub fn checked_ttl_us(ttl: Option<Interval>) -> Option<i64> {
    ttl.map(|ttl| {
        let limits = settings::lease_ttl_limits_us();
        let given = i64::try_from(ttl.as_micros()).ok().filter(|given| limits.contains(given));
        given.unwrap_or_else(|| errors::ttl_out_of_range(limits).raise())
    })
}
