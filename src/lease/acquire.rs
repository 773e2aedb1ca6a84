//! lease_acquire and lease_try_acquire: wait in the queue of the name, then at its head for a slot.

use super::grant::{self, AcquireRequest, Alternative, AnySlot, Outcome, checked_ttl_us, refuse_older_snapshot};
use super::queue::{Precedence, Queue};
use super::store::slots::{self, Granted, NewHolder};
use super::{errors, holder, stats};
use crate::args;
use crate::pg::call_site::text_arg;
use crate::pg::composite::{self, Composite};
use crate::pg::encoding::Text;
use crate::pg::lock_wait::{self, Limit};
use crate::pg::{system_clock, xact};
use pgrx::datum::Interval;
use pgrx::fcinfo::{pg_getarg, pg_getarg_datum};
use pgrx::prelude::*;
use std::time::{Duration, Instant};

/// Acquires a lease, or with a token acquires its term once more. Waits for a slot, up to `lock_timeout`. NULL as `ttl`
/// is the ttl of the definition. Raises 22004 for NULL as name or bind_session, 22023 for an invalid name or ttl, 55000
/// for a token without a term, 42501 for the token of another role, 0A000 if a term cannot be bound later, 40001 if the
/// transaction's snapshot is too old, 55P03 if the time is over, and 25006 on a standby.
#[pg_extern(sql = "CREATE FUNCTION lease_acquire(name text, ttl interval DEFAULT NULL, owner text DEFAULT NULL, \
           data jsonb DEFAULT NULL, token bigint DEFAULT NULL, bind_session boolean DEFAULT false, \
           OUT name text, OUT slot int, OUT token bigint, OUT owner text, OUT acquired_at timestamptz, \
           OUT expires_at timestamptz, OUT depth int) \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn lease_acquire(fcinfo: pg_sys::FunctionCallInfo) -> Composite {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    let granted = unsafe { acquire_by_args(fcinfo, 1, Limit::by_lock_timeout()) };
    let (name, granted) = granted.expect("without an answer it is an error");
    let expires_at = granted.expires_at();
    let Granted { slot, token, owner, acquired_at, depth, .. } = granted;
    let columns = [
        Text::from(name).into_datum(),
        slot.into_datum(),
        token.into_datum(),
        owner.map(Text::from).into_datum(),
        acquired_at.into_datum(),
        expires_at.into_datum(),
        depth.into_datum(),
    ];
    // SAFETY: the call's own fcinfo; the types are those of the OUT parameters.
    unsafe { composite::form(fcinfo, columns) }
}

/// Acquires a lease if a slot becomes free within the timeout; otherwise returns no row. Raises what `lease_acquire`
/// raises except 55P03, and 22004 or 22023 for an invalid timeout.
#[pg_extern(
    sql = "CREATE FUNCTION lease_try_acquire(name text, timeout interval DEFAULT '0', ttl interval DEFAULT NULL, \
           owner text DEFAULT NULL, data jsonb DEFAULT NULL, token bigint DEFAULT NULL, \
           bind_session boolean DEFAULT false, \
           OUT name text, OUT slot int, OUT token bigint, OUT owner text, OUT acquired_at timestamptz, \
           OUT expires_at timestamptz, OUT depth int) RETURNS SETOF record ROWS 1 \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity, reason = "the columns of a row")]
fn lease_try_acquire(
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(name, Text<'static>),
        name!(slot, i32),
        name!(token, i64),
        name!(owner, Option<Text<'static>>),
        name!(acquired_at, TimestampWithTimeZone),
        name!(expires_at, Option<TimestampWithTimeZone>),
        name!(depth, i32),
    ),
> {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared.
    let granted = unsafe {
        let timeout = args::timeout(pg_getarg::<Interval>(fcinfo, 1));
        acquire_by_args(fcinfo, 2, Limit::answer(timeout))
    };
    TableIterator::new(granted.map(|(name, granted)| {
        let expires_at = granted.expires_at();
        let Granted { slot, token, owner, acquired_at, depth, .. } = granted;
        (name.into(), slot, token, owner.map(Text::from), acquired_at, expires_at, depth)
    }))
}

/// # Safety
/// `fcinfo` is that of the running call. Its first argument is a text; from `first` on they are ttl, owner, data, token and
/// bind_session.
unsafe fn acquire_by_args(fcinfo: pg_sys::FunctionCallInfo, first: usize, limit: Limit) -> Option<(String, Granted)> {
    // SAFETY: by the above.
    let (name, ttl, owner, data, token, bind_session) = unsafe {
        (
            text_arg(fcinfo, 0),
            pg_getarg::<Interval>(fcinfo, first),
            text_arg(fcinfo, first + 1),
            pg_getarg_datum(fcinfo, first + 2),
            pg_getarg::<i64>(fcinfo, first + 3),
            pg_getarg::<bool>(fcinfo, first + 4),
        )
    };
    let name = args::name(name.as_deref(), "name");
    let ttl_us = checked_ttl_us(ttl);
    let bind_session = args::required(bind_session, "bind_session");
    xact::require_read_write(c"lease_acquire()");
    let granted = match token {
        Some(token) => holder::deepen(name, token, ttl_us, bind_session),
        None => {
            let request = AcquireRequest {
                name,
                ttl_us,
                holder: NewHolder { owner: owner.as_deref(), data, bind_session },
                only_if_free: false,
                preference: &AnySlot,
                has_one_snapshot: xact::has_one_snapshot(),
            };
            acquire(&request, limit)?
        }
    };
    if xact::is_in_block() {
        errors::not_held_before_commit(name).warn();
    }
    Some((name.to_owned(), granted))
}

/// Acquires a slot. If the limit passes, `None` or an error, as the limit says.
pub fn acquire(request: &AcquireRequest, limit: Limit) -> Option<Granted> {
    let queue = Queue::of(request.name);
    let began = Instant::now();
    if !queue.enter(limit) {
        return None;
    }
    let granted = wait_at_head(request, limit, &queue);
    stats::count_wait(began.elapsed());
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
        let until_us = match grant::attempt(request, limit, queue) {
            Outcome::Granted(granted) => break Some(granted),
            Outcome::Refused => break None,
            Outcome::Retry => Some(0),
            Outcome::Wait { until_us } => {
                precedence.take().into_iter().for_each(Precedence::release);
                until_us
            }
            Outcome::RowsLocked { slots, alternative } => {
                let precedence = precedence.get_or_insert_with(Precedence::new);
                wait_for_rows(request, &slots, alternative, limit, precedence)
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

/// While another term can end first, sleep this long before waiting in the lock manager. Only the lock manager detects
/// deadlocks.
const SLEEP_BEFORE_ROWS: Duration = Duration::from_secs(10);

/// Waits for transactions that have locked rows of free slots: they have fenced, or are about to take the slots.
/// Returns until when to sleep before the next attempt; 0 for not at all.
///
/// The wait is in the lock manager, which detects deadlocks. It keeps precedence over later fences, but no lock on a
/// row, so renewals pass.
fn wait_for_rows(
    request: &AcquireRequest,
    slots: &[i32],
    alternative: Alternative,
    limit: Limit,
    precedence: &mut Precedence,
) -> Option<i64> {
    if limit.left() == Some(Duration::ZERO) {
        return Some(0);
    }
    precedence.retain(slots);
    if !slots.iter().all(|slot| precedence.acquire(request.name, *slot, limit)) {
        return Some(0);
    }
    if alternative == Alternative::OtherTerm && precedence.since.elapsed() < SLEEP_BEFORE_ROWS {
        return None;
    }
    refuse_older_snapshot(request, || false);
    for slot in slots {
        let left_ms = limit.left_ms();
        // Attempt again after a while, long enough to detect a deadlock. Other slots may become free sooner; this term
        // may be renewed, and its fences wait for this one.
        // SAFETY: reads a setting.
        let ms = Some(left_ms.unwrap_or(i32::MAX).min(unsafe { pg_sys::DeadlockTimeout }.saturating_add(1000)));
        if ms == Some(0) {
            break;
        }
        let rolled_back = lock_wait::with_lock_timeout(ms, || {
            slots::lock_slot_waiting(request.name, *slot);
            None::<()>
        });
        if let Err(cause) = rolled_back
            && !lock_wait::is_lock_timeout(&cause)
        {
            cause.rethrow();
        }
    }
    precedence.since = Instant::now();
    Some(0)
}
