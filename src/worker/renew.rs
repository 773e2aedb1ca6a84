//! Renewing a worker id: the next piece of id time for the same holder.

use super::number::{self, Renewal};
use super::{finite_us, history, refuse_in_block};
use crate::args;
use crate::lease::row::{self, Granted};
use crate::lease::{pending, required_token, term, ttl_us};
use crate::lock::checked_name;
use crate::pg::composite::{self, Composite};
use crate::pg::encoding::Text;
use crate::pg::timestamp;
use idgen_core::worker::{Bounds, Interval};
use pgrx::datum;
use pgrx::prelude::*;

/// Makes a worker id last, and moves on the end of the id time that it may be used for, if that end is still the one that the
/// caller was told last. Of two processes with one token, the second is refused.
#[pg_extern(sql = "CREATE FUNCTION worker_renew(pool text, token bigint, last_not_after timestamptz, \
           reached timestamptz DEFAULT NULL, OUT not_after timestamptz, OUT expires_at timestamptz) \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn worker_renew_compared(
    pool: Option<Text>,
    token: Option<i64>,
    last_not_after: Option<TimestampWithTimeZone>,
    reached: Option<TimestampWithTimeZone>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Composite {
    let (pool, token) = (checked_name(pool.as_deref()), required_token(token));
    let last = args::required(last_not_after, "last_not_after");
    let reached_us = reached.map(|reached| finite_us("reached", reached));
    let bounds = checked_bounds(pool, token);
    let renewed = pending::confirmed_apart(|| term::renew(pool, token, Some(bounds.ttl_us)));
    let renewal = Renewal {
        pool,
        number: renewed.slot,
        token,
        last_not_after_us: Some(timestamp::to_us(last)),
        reached_us: reached_us.unwrap_or(bounds.now_us),
        ttl_us: bounds.ttl_us,
    };
    // SAFETY: the call's own fcinfo.
    unsafe { answer(fcinfo, &renewed, number::renew(&renewal, &bounds)) }
}

/// The same without comparison, as keepers of 0.7 call it: a ttl beyond the pool's says how far they are ahead of the clock
/// here.
#[pg_extern(sql = "CREATE FUNCTION worker_renew(pool text, token bigint, ttl interval, OUT not_after timestamptz, \
           OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn worker_renew(
    pool: Option<Text>,
    token: Option<i64>,
    ttl: Option<datum::Interval>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Composite {
    let (pool, token) = (checked_name(pool.as_deref()), required_token(token));
    let ttl_us = ttl_us(ttl);
    let bounds = checked_bounds(pool, token);
    let split = ttl_us.map(|ttl_us| bounds.split(ttl_us));
    let renewed = term::renew(pool, token, split.map(|(term_us, _)| term_us));
    let renewal = Renewal {
        pool,
        number: renewed.slot,
        token,
        last_not_after_us: None,
        reached_us: split.map_or(bounds.now_us, |(_, reached_us)| reached_us),
        ttl_us: renewed.ttl_us.min(bounds.ttl_us),
    };
    // SAFETY: the call's own fcinfo.
    unsafe { answer(fcinfo, &renewed, number::renew(&renewal, &bounds)) }
}

fn checked_bounds(pool: &str, token: i64) -> Bounds {
    term::refuse_where_nothing_can_be_written(c"worker_renew()");
    refuse_in_block(c"worker_renew()");
    number::bounds(row::look(pool).definition.ttl_us, history::for_holder(pool, token))
}

/// # Safety
/// `fcinfo` is that of the running call of a `worker_renew`.
unsafe fn answer(fcinfo: pg_sys::FunctionCallInfo, renewed: &Granted, interval: Interval) -> Composite {
    let expires_at = term::expires_at(renewed.session_key, renewed.ends_us);
    // SAFETY: by the above; the types are those of the OUT parameters.
    unsafe { composite::form(fcinfo, [number::time(interval.not_after_us).into_datum(), expires_at.into_datum()]) }
}
