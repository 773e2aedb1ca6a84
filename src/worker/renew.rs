//! What the holder of a worker id does: it renews its lease and the end of its rectangle, confirms the rectangle, and
//! releases it.
//!
//! A commit that is canceled while it waits for a standby succeeds, with a warning that the caller may never see. So a
//! caller that must know calls `worker_confirm()` after the commit, which waits until a failover to a synchronous
//! standby keeps the rectangle: it reads how much WAL the standbys have flushed.

use super::store::{HeldWorkerId, finite_us, require_own_transaction};
use super::{errors, history};
use crate::args;
use crate::lease;
use crate::lease::LEASE;
use crate::pg::datum::{self, Composite, Text};
use crate::pg::latch::WaitEvent;
use crate::pg::spi::{self, Query, optional, value};
use crate::pg::{recovery, xact};
use idgen_core::lease::LeaseDefinition;
use idgen_core::worker::Rectangle;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;

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
) -> Composite<2> {
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
    let renewed = xact::deferring_standbys(|| lease::renew(pool, token, Some(bounds.ttl_us)));
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
    Composite([not_after.into(), renewed.expires_at().into()])
}

/// Another pool may have got the worker ids that a new definition leaves out.
fn require_in_range(pool: &str, worker_id: i32, definition: &LeaseDefinition) {
    if !definition.has(worker_id) {
        errors::outside_of_range(pool, worker_id, definition.range()).raise();
    }
}

/// Waits until the synchronous standbys have the rectangle of a token, and returns its end. Returns at once if there
/// are no synchronous standbys. Raises 22004 for NULL, 25001 in the transaction of the acquisition or renewal, 25006 on a
/// standby, 42501 if the lease is another role's, and 55000 for a stale token or a bare lease.
#[pg_extern(sql = false)]
fn worker_confirm(pool: Option<Text>, token: Option<i64>) -> TimestampWithTimeZone {
    let (pool, token) = (args::name(pool.as_deref(), "pool"), args::required(token, "token"));
    xact::refuse_during_recovery(c"worker_confirm()");
    let read = |row: &SpiHeapTupleData| Confirmable {
        worker_id: value(row, 1),
        not_after: optional(row, 2),
        is_uncommitted: value(row, 3),
    };
    // Hold no table lock while waiting: a queued ALTER TABLE would block renewals.
    let found = xact::rolled_back(|| {
        let found = FIND.read_latest(&[pool.into(), token.into(), spi::user().into()], read).pop();
        if found.is_some() {
            history::require_known(pool, token);
        }
        found
    });
    let found = found.unwrap_or_else(|| lease::raise_stale(pool, token));
    let not_after = found.not_after.unwrap_or_else(|| errors::bare_lease(pool, found.worker_id).raise());
    if found.is_uncommitted {
        errors::confirmed_too_early(pool, found.worker_id).raise();
    }
    // The rectangle that was read is committed, and so flushed: its commits are durable.
    recovery::wait_for_flushed(&STANDBY_WAIT);
    not_after
}

/// The rectangle of a token.
struct Confirmable {
    worker_id: i32,
    /// `None` for a bare lease.
    not_after: Option<TimestampWithTimeZone>,
    /// The running transaction has written it.
    is_uncommitted: bool,
}

static FIND: Query = LEASE.query("SELECT lease.slot, known.not_after, \
            COALESCE(known.xmin OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.xid, false) \
     FROM idgen.lease LEFT JOIN idgen.worker_number AS known \
       ON known.pool OPERATOR(pg_catalog.=) lease.name AND known.number OPERATOR(pg_catalog.=) lease.slot \
      AND known.token OPERATOR(pg_catalog.=) lease.token \
     WHERE lease.name OPERATOR(pg_catalog.=) $1 AND lease.token OPERATOR(pg_catalog.=) $2 \
       AND lease.depth OPERATOR(pg_catalog.>) 0 \
       AND pg_catalog.pg_has_role($3, lease.role::pg_catalog.oid, 'USAGE')");

static STANDBY_WAIT: WaitEvent = WaitEvent::new(c"IdgenWorkerConfirm");

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
