//! Renewing and releasing a worker id: its lease, and the end of its rectangle.

use super::checks::{finite_us, require_own_transaction};
use super::store::HeldWorkerId;
use super::{errors, history};
use crate::args;
use crate::lease;
use crate::pg::datum::{self, Composite, Text, form_row};
use crate::pg::xact;
use idgen_core::lease::LeaseDefinition;
use idgen_core::worker::Rectangle;
use pgrx::prelude::*;

/// Extends the lease of a worker id and the end of its id time. `last_not_after` is the end that the caller was last
/// told. Of two processes with one token, the second one is refused. For a term from before the start of this server, a later
/// end than the recorded one proves that this database was set back, and interrupts its history; the result then is that end.
/// `reached` is the latest time of the caller's ids and clock; NULL: this server's clock. Raises 22008 for an infinite `reached`, 25001 in a transaction block, 55000 for
/// a stale token, a bare lease, another end, or a worker id outside of the pool's range, and 42501 if the lease is another
/// role's.
#[pg_extern(sql = false)]
fn worker_renew_compared(
    pool: Option<Text>,
    token: Option<i64>,
    last_not_after: Option<TimestampWithTimeZone>,
    reached: Option<TimestampWithTimeZone>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Composite {
    let (pool, token) = (args::name(pool.as_deref(), "pool"), args::required(token, "token"));
    let last_us = datum::to_us(args::required(last_not_after, "last_not_after"));
    let reached_us = reached.map(|reached| finite_us("reached", reached));
    // SAFETY: the call's own fcinfo.
    unsafe { require_own_transaction(c"worker_renew()", fcinfo) };
    let Some(lease::Defined { definition, .. }) = lease::defined(pool) else {
        // Without a ttl the term would end at once: a move may give the name its pool and this term just after this.
        history::require_known(pool, token);
        lease::raise_stale(pool, token)
    };
    let bounds = history::for_holder(pool, token, definition.ttl_us).of_pool(definition.ttl_us);
    let renewed = xact::confirmed_apart(|| lease::renew(pool, token, Some(bounds.ttl_us)));
    require_in_range(pool, renewed.slot, &definition);
    // The row of the lease is locked, so no other renewal is running.
    let holder = HeldWorkerId { pool, worker_id: renewed.slot, token };
    let held = holder.rectangle();
    let acquired_us = datum::to_us(renewed.acquired_at);
    let rectangle = match last_us > held.not_after_us && history::note_lost_grants(acquired_us) {
        // The next call raises that the token is older than the interruption: an error here would undo that.
        true => Rectangle { not_after_us: last_us, ..held },
        false => {
            holder.require_end(held, last_us);
            let rectangle = held.renewed(reached_us.unwrap_or(bounds.now_us), bounds.ttl_us, &bounds);
            holder.extend(rectangle);
            rectangle
        }
    };
    let not_after = datum::from_us_or_infinity(rectangle.not_after_us);
    // SAFETY: the call's own fcinfo; the types are those of the OUT parameters.
    unsafe { form_row(fcinfo, [not_after.into_datum(), renewed.expires_at().into_datum()]) }
}

/// Another pool may have got the worker ids that a new definition leaves out.
fn require_in_range(pool: &str, worker_id: i32, definition: &LeaseDefinition) {
    if !definition.has(worker_id) {
        errors::outside_of_range(pool, worker_id, definition).raise();
    }
}

/// Releases a worker id. True if it is free now. `last_time` is the last time in the caller's ids: the next holder
/// begins after it; NULL: after the end of the rectangle. `last_not_after` is the end that the caller was last told;
/// NULL compares nothing. Raises 42501 if the lease is another role's, and 55000 for a stale token, a bare lease or another
/// end: another process with the token may have used later times.
#[pg_extern(sql = false)]
fn worker_release_compared(
    pool: Option<Text>,
    token: Option<i64>,
    last_time: Option<TimestampWithTimeZone>,
    last_not_after: Option<TimestampWithTimeZone>,
) -> bool {
    let (pool, token) = (args::name(pool.as_deref(), "pool"), args::required(token, "token"));
    xact::require_read_write(c"worker_release()");
    let slot = lease::slot_of(pool, token);
    let is_free = lease::release(pool, token);
    if let Some(worker_id) = slot {
        // The row of the lease is locked, so no renewal is running.
        let holder = HeldWorkerId { pool, worker_id, token };
        let last_us = last_time.filter(|_| is_free).map(datum::to_us);
        let held = (last_us.is_some() || last_not_after.is_some()).then(|| holder.rectangle());
        if let Some((held, last_not_after)) = held.zip(last_not_after) {
            holder.require_end(held, datum::to_us(last_not_after));
        }
        if is_free {
            holder.end(held.filter(|_| last_us.is_some()).map(|held| held.used_until_us(last_us)));
        }
    }
    is_free
}
