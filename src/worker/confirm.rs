//! Confirming a rectangle: waits until a failover to a synchronous standby keeps it.
//!
//! A commit that is canceled while it waits for a standby succeeds, with a warning that the caller may never see. So a
//! caller that must know calls `worker_confirm()` after the commit, which reads how much WAL the standbys have flushed.

use super::{errors, history};
use crate::args;
use crate::lease::{self, LEASE};
use crate::pg::datum::Text;
use crate::pg::latch::WaitEvent;
use crate::pg::spi::{self, Query, optional, value};
use crate::pg::{recovery, xact};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;

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

static STANDBY_WAIT: WaitEvent = WaitEvent::new(c"IdgenWorkerConfirm");
