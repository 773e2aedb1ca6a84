//! Acquiring a worker id of a pool, and the rectangle of id times that goes with it.

use super::errors;
use super::history::{self, Known};
use super::number::{self, Grant};
use super::preference::WorkerPreference;
use super::{finite_us, refuse_in_block};
use crate::lease::row::{self, Wish};
use crate::lease::{acquire, names, pending, term, ttl_us};
use crate::lock::{checked_name, wait::Limit};
use crate::pg::call_site::text_arg;
use crate::pg::composite::{self, Composite};
use idgen_core::worker::Bounds;
use pgrx::datum::Interval;
use pgrx::fcinfo::pg_getarg;
use pgrx::prelude::*;

/// What the caller says beside the pool.
struct Request {
    owner: Option<String>,
    ttl: Option<Interval>,
    reached_us: Option<i64>,
    prefer: Option<i32>,
}

/// Acquires a worker id of a pool: the preferred one if it is free, or the one that the owner had last if its times are over.
/// Without a ttl it is bound to the session. An error when all are taken: 53400.
#[pg_extern(sql = "CREATE FUNCTION worker_acquire(pool text, owner text DEFAULT NULL, ttl interval DEFAULT NULL, \
           reached timestamptz DEFAULT NULL, prefer int DEFAULT NULL, \
           OUT worker_id int, OUT token bigint, OUT not_before timestamptz, OUT not_after timestamptz, \
           OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn worker_acquire(fcinfo: pg_sys::FunctionCallInfo) -> Composite {
    // SAFETY: PostgreSQL passes the call's own fcinfo, with the arguments declared; the SQL of 0.7 declares three.
    let (pool, request) = unsafe {
        let is_full = (*fcinfo).nargs > 3;
        let request = Request {
            owner: text_arg(fcinfo, 1).map(String::from),
            ttl: pg_getarg::<Interval>(fcinfo, 2),
            reached_us: is_full
                .then(|| pg_getarg::<TimestampWithTimeZone>(fcinfo, 3))
                .flatten()
                .map(|reached| finite_us("reached", reached)),
            prefer: is_full.then(|| pg_getarg::<i32>(fcinfo, 4)).flatten(),
        };
        (text_arg(fcinfo, 0), request)
    };
    let pool = checked_name(pool.as_deref());
    term::refuse_where_nothing_can_be_written(c"worker_acquire()");
    refuse_in_block(c"worker_acquire()");
    let known = checked_history(pool);
    let (term_ttl_us, ahead_us) = checked_ttl(pool, &request, known);
    let (granted, bounds) = slot(pool, &request, term_ttl_us, known);
    let grant = Grant {
        pool,
        number: granted.slot,
        token: granted.token,
        reached_us: request.reached_us.unwrap_or_else(|| bounds.now_us.saturating_add(ahead_us)),
        ttl_us: term_ttl_us.unwrap_or(bounds.ttl_us).min(bounds.ttl_us),
    };
    let interval = number::grant(&grant, &bounds);
    number::tell_of_a_wait(&grant, interval);
    let columns = [
        granted.slot.into_datum(),
        granted.token.into_datum(),
        number::time(interval.not_before_us).into_datum(),
        number::time(interval.not_after_us).into_datum(),
        term::expires_at(granted.session_key, granted.ends_us).into_datum(),
    ];
    // SAFETY: the call's own fcinfo; the types are those of the OUT parameters.
    unsafe { composite::form(fcinfo, columns) }
}

/// How long the term lasts, `None` with its session, and how far the caller is ahead of the clock here if it does not say
/// its time.
fn checked_ttl(pool: &str, request: &Request, known: Known) -> (Option<i64>, i64) {
    let bounds = bounds(pool, known);
    // The limits are no limits of what was defined before: a pool does not stop by them.
    let is_the_pools = |ttl: &Interval| ttl.as_micros() == i128::from(bounds.ttl_us);
    let ttl_us = match request.ttl {
        Some(ttl) if is_the_pools(&ttl) => Some(bounds.ttl_us),
        ttl => ttl_us(ttl),
    };
    match (ttl_us, request.reached_us) {
        (Some(ttl_us), None) => {
            let (term_us, reached_us) = bounds.split(ttl_us);
            (Some(term_us), reached_us.saturating_sub(bounds.now_us))
        }
        (Some(ttl_us), Some(_)) if ttl_us > bounds.ttl_us => errors::ttl_beyond_the_pools(pool, bounds.ttl_us).raise(),
        (ttl_us, reached_us) => {
            if let Some(excess_us) = reached_us.and_then(|reached_us| bounds.excess_us(reached_us)) {
                errors::too_far_ahead(excess_us, bounds.max_lead_us).raise();
            }
            (ttl_us, 0)
        }
    }
}

/// A slot of the pool, and what bounds its rectangle once it is granted.
fn slot(pool: &str, request: &Request, term_ttl_us: Option<i64>, known: Known) -> (row::Granted, Bounds) {
    let latest_us = bounds(pool, known).latest_start_us();
    let is_usable = |id: &i32| number::used_until_us(pool, *id).is_none_or(|until_us| until_us <= latest_us);
    let owner = request.owner.as_deref();
    let wish = Wish {
        name: pool,
        ttl_us: term_ttl_us,
        owner,
        data: None,
        bind_session: term_ttl_us.is_none(),
        only_if_free: true,
        preference: &WorkerPreference { pool, owner, wanted: request.prefer.filter(is_usable) },
        has_one_snapshot: false,
    };
    let take = || acquire::slot(&wish, Limit::by_lock_timeout());
    // Callers of 0.7 do not confirm.
    let granted = if request.reached_us.is_some() { pending::confirmed_apart(take) } else { take() };
    let Some(granted) = granted else {
        let slots = row::look(pool).definition.slots;
        errors::exhausted(pool, slots, &names::idle_holders(pool)).raise()
    };
    // Again: the pool may have been moved, dropped or changed while the caller waited in the queue, and the history interrupted.
    let known = history::for_holder(pool, granted.token);
    let bounds = bounds(pool, known);
    (granted, bounds)
}

/// For a pool that is defined: otherwise nothing is granted, and the history is none of a coordinator.
fn checked_history(pool: &str) -> Known {
    history::for_grant(pool_ttl_us(pool))
}

fn bounds(pool: &str, known: Known) -> Bounds {
    number::bounds(pool_ttl_us(pool), known)
}

fn pool_ttl_us(pool: &str) -> i64 {
    let defined = row::look(pool);
    if defined.definer.is_none() {
        errors::unknown_pool(pool).raise();
    }
    defined.definition.ttl_us
}
