//! Confirming a rectangle: positive evidence that a failover to a synchronous standby keeps it.
//!
//! A commit that was cancelled while it waited for a standby succeeds, with a warning that the caller may never see. So a
//! caller that must know asks here, after the commit, and PostgreSQL's own record of what the standbys have decides.

use super::errors;
use super::history;
use crate::lease::row::{LEASE, user};
use crate::lease::{required_token, term};
use crate::lock::checked_name;
use crate::pg::encoding::Text;
use crate::pg::latch;
use crate::pg::session;
use crate::pg::spi::{Query, optional, value};
use crate::pg::wait_event::WaitEvent;
use crate::pg::{compat, xact};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::time::Duration;

/// What a token stands for.
struct Confirmable {
    slot: i32,
    /// `None` for a bare lease.
    not_after: Option<TimestampWithTimeZone>,
    /// The transaction that asks has written it.
    is_uncommitted: bool,
}

static FIND: Query = Query::new(&LEASE, || {
    "SELECT lease.slot, known.not_after, \
            COALESCE(known.xmin OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.xid, false) \
     FROM idgen.lease LEFT JOIN idgen.worker_number AS known \
       ON known.pool OPERATOR(pg_catalog.=) lease.name AND known.number OPERATOR(pg_catalog.=) lease.slot \
      AND known.token OPERATOR(pg_catalog.=) lease.token \
     WHERE lease.name OPERATOR(pg_catalog.=) $1 AND lease.token OPERATOR(pg_catalog.=) $2 \
       AND lease.depth OPERATOR(pg_catalog.>) 0 \
       AND pg_catalog.pg_has_role($3, lease.role::pg_catalog.oid, 'USAGE')"
        .to_owned()
});

/// Waits until the synchronous standbys have the rectangle of a token, and returns its end. Without one it returns at once.
#[pg_extern(sql = "CREATE FUNCTION worker_confirm(pool text, token bigint) RETURNS timestamptz \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn worker_confirm(pool: Option<Text>, token: Option<i64>) -> TimestampWithTimeZone {
    let (pool, token) = (checked_name(pool.as_deref()), required_token(token));
    // SAFETY: a C string.
    unsafe { pg_sys::PreventCommandDuringRecovery(c"worker_confirm()".as_ptr()) };
    let read = |row: &SpiHeapTupleData| Confirmable {
        slot: value(row, 1),
        not_after: optional(row, 2),
        is_uncommitted: value(row, 3),
    };
    // Hold no table lock while waiting: a queued ALTER TABLE would block renewals.
    let found = xact::rolled_back(|| {
        let found = FIND.read_latest(&[pool.into(), token.into(), user().into()], read).pop();
        if found.is_some() {
            history::for_holder(pool, token);
        }
        found
    });
    let found = found.unwrap_or_else(|| term::stale(pool, token));
    let not_after = found.not_after.unwrap_or_else(|| errors::bare_lease(pool, found.slot).raise());
    if found.is_uncommitted {
        errors::confirmed_too_early(pool, found.slot).raise();
    }
    // SAFETY: not in recovery. What was read above is committed, and worker ids are committed durably: it is flushed.
    wait_for_standbys(unsafe { pg_sys::GetFlushRecPtr(std::ptr::null_mut()) });
    not_after
}

/// Waits until PostgreSQL knows that the synchronous standbys have flushed WAL up to here. An error when it is cancelled.
fn wait_for_standbys(until: pg_sys::XLogRecPtr) {
    while has_synchronous_standbys() && flushed_by_standbys() < until {
        check_for_interrupts!();
        latch::wait(Some(READ_EVERY), STANDBY_WAIT);
        take_new_settings();
    }
}

/// PostgreSQL reads them between two statements. A commit that waits for a standby ends as soon as none is asked for any more,
/// and so does this wait.
fn take_new_settings() {
    if session::is_reload_pending() {
        session::reload_configuration();
    }
}

/// PostgreSQL wakes only the processes in its queue of commits. A standby's answer takes about as long.
const READ_EVERY: Duration = Duration::from_millis(2);

/// As `pg_stat_activity` shows the wait for synchronous standbys.
const STANDBY_WAIT: WaitEvent = WaitEvent::named(c"IdgenWorkerConfirm");

fn has_synchronous_standbys() -> bool {
    // SAFETY: settings of this process; the text is null or a C string.
    unsafe {
        let names = pg_sys::SyncRepStandbyNames;
        pg_sys::max_wal_senders > 0 && !names.is_null() && *names != 0
    }
}

fn flushed_by_standbys() -> pg_sys::XLogRecPtr {
    // SAFETY: shared memory that is there from the start; the lock guards it.
    unsafe {
        let lock = compat::sync_rep_lock();
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_SHARED);
        let flushed = (*pg_sys::WalSndCtl).lsn[pg_sys::SYNC_REP_WAIT_FLUSH as usize];
        pg_sys::LWLockRelease(lock);
        flushed
    }
}
