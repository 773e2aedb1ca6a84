//! What the holder of a worker id does: it renews, confirms and releases it.
//!
//! A commit that is canceled while it waits for a standby succeeds, with a warning that the caller may never see. So a
//! caller that must know calls `worker_confirm()` after the commit, which waits until a failover to a synchronous
//! standby keeps the rectangle: it reads how much WAL the standbys have flushed.

use super::pool::{Database, WORKER_ID};
use super::{errors, history, require_own_transaction};
use crate::args;
use crate::pg::datum::{self, Composite, Text};
use crate::pg::latch::WaitEvent;
use crate::pg::spi::{Query, micros, optional_text, user, value};
use crate::pg::{recovery, xact};
use idgen_core::worker::Rectangle;
use idgen_core::worker::holding::{self, Held, HeldRows, Lock, Renewal};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;

/// A token of an earlier epoch is not current.
fn held_text(lock: &str) -> String {
    format!(
        "SELECT held.worker_id, held.not_before, held.not_after, held.acquired_at, {}, \
         held.xmin, \
         CASE WHEN NOT pg_catalog.pg_has_role($3, held.role::pg_catalog.oid, 'USAGE') THEN held.role::pg_catalog.text END, {} \
         FROM idgen.worker_id AS held JOIN idgen.worker_pool AS pool ON pool.name OPERATOR(pg_catalog.=) held.pool \
         LEFT JOIN idgen.worker_history AS history ON true \
         WHERE held.pool OPERATOR(pg_catalog.=) $1 AND held.token OPERATOR(pg_catalog.=) $2 \
           AND held.epoch OPERATOR(pg_catalog.=) COALESCE(history.epoch, 0) {lock}",
        micros("pool.ttl"),
        history::columns()
    )
}

static FIND_HELD: Query = Query::new(&WORKER_ID, || held_text(""));
static LOCK_HELD: Query = Query::new(&WORKER_ID, || held_text("FOR NO KEY UPDATE OF held"));

/// The worker id of a token, and its holder's role if the current user may not act as that.
fn held(row: &SpiHeapTupleData) -> (Held, Option<String>) {
    let [not_before_us, not_after_us, acquired_us] = [2, 3, 4].map(|column| datum::to_us(value(row, column)));
    let held = Held {
        worker_id: value(row, 1),
        rectangle: Rectangle { not_before_us, not_after_us },
        acquired_us,
        ttl_us: value(row, 5),
        is_uncommitted: xact::is_current(value(row, 6)),
        history: history::from_row(row, 8),
    };
    (held, optional_text(row, 7))
}

/// As [`holding::renew`]. If all tokens end, the result is `last_not_after`, which stays valid. `reached` is the latest time of
/// the caller's ids and clock; NULL: this server's clock. Raises 22008 for an infinite time, 25001 in a transaction block, 42501
/// if another role has acquired it, and 55000 for a token that is not current or another end.
#[pg_extern(sql = false)]
fn worker_renew_compared(
    pool: Option<Text>,
    token: Option<i64>,
    last_not_after: Option<TimestampWithTimeZone>,
    reached: Option<TimestampWithTimeZone>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Composite<2> {
    let (pool, token) = (args::name(pool.as_deref(), "pool"), args::required(token, "token"));
    let last_us = args::finite_us(args::required(last_not_after, "last_not_after"), "last_not_after");
    let reached_us = reached.map(|reached| args::finite_us(reached, "reached"));
    // SAFETY: the call's own fcinfo.
    unsafe { require_own_transaction(c"worker_renew()", fcinfo) };
    let renewal = holding::renew(&mut Database, pool, token, last_us, reached_us);
    let not_after_us = match renewal.unwrap_or_else(|refusal| errors::refused(pool, refusal)) {
        Renewal::Until(not_after_us) => not_after_us,
        Renewal::Ended { has_lost_grants } => {
            if has_lost_grants {
                errors::grants_are_lost().warn();
            }
            last_us
        }
    };
    let not_after = datum::from_us_or_infinity(not_after_us);
    Composite([not_after.into(), not_after.into()])
}

static EXTEND: Query = WORKER_ID.query(
    "UPDATE idgen.worker_id SET not_after = $5 WHERE pool OPERATOR(pg_catalog.=) $1 AND worker_id OPERATOR(pg_catalog.=) $2 \
     AND token OPERATOR(pg_catalog.=) $3 AND not_after OPERATOR(pg_catalog.=) $4 RETURNING worker_id",
);

/// As [`holding::confirm`]; at once if there are no synchronous standbys. Raises 22004 for NULL, 25001 in the transaction of the
/// acquisition or renewal, 25006 on a standby, 42501 if another role has acquired it, and 55000 for a token that is not current.
#[pg_extern(sql = false)]
fn worker_confirm(pool: Option<Text>, token: Option<i64>) -> TimestampWithTimeZone {
    let (pool, token) = (args::name(pool.as_deref(), "pool"), args::required(token, "token"));
    xact::refuse_during_recovery(c"worker_confirm()");
    let confirmed = holding::confirm(&mut Database, pool, token);
    let not_after_us = confirmed.unwrap_or_else(|refusal| errors::refused(pool, refusal));
    datum::from_us_or_infinity(not_after_us)
}

static STANDBY_WAIT: WaitEvent = WaitEvent::new(c"IdgenWorkerConfirm");

static RELEASE: Query = WORKER_ID.query(
    "UPDATE idgen.worker_id SET token = NULL, role = NULL, not_after = $3 \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND worker_id OPERATOR(pg_catalog.=) $2",
);

/// As [`holding::release`]; returns true. `last_time` NULL: all id times count as used. `last_not_after` NULL compares nothing.
/// Raises 42501 if another role has acquired it, and 55000 for a token that is not current or another end.
#[pg_extern(sql = false)]
fn worker_release_compared(
    pool: Option<Text>,
    token: Option<i64>,
    last_time: Option<TimestampWithTimeZone>,
    last_not_after: Option<TimestampWithTimeZone>,
) -> bool {
    let (pool, token) = (args::name(pool.as_deref(), "pool"), args::required(token, "token"));
    xact::require_read_write(c"worker_release()");
    let released =
        holding::release(&mut Database, pool, token, last_time.map(datum::to_us), last_not_after.map(datum::to_us));
    released.unwrap_or_else(|refusal| errors::refused(pool, refusal));
    true
}

impl HeldRows for Database {
    /// Raises 42501 if the current user may not act as the role that has acquired it.
    fn held(&mut self, pool: &str, token: i64, lock: Lock) -> Option<Held> {
        let args = [pool.into(), token.into(), user().into()];
        let found = match lock {
            Lock::Nothing => xact::rolled_back(|| FIND_HELD.read_latest(&args, held)),
            Lock::Tables => FIND_HELD.read_latest(&args, held),
            Lock::Row => LOCK_HELD.write_losable(&args, held),
        };
        let (held, refused_role) = found.into_iter().next()?;
        if let Some(role) = refused_role {
            errors::not_the_holders_role(pool, held.worker_id, &role).raise();
        }
        Some(held)
    }

    fn extend(&mut self, pool: &str, token: i64, held: &Held, not_after_us: i64) -> bool {
        let [before, after] =
            [held.rectangle.not_after_us, not_after_us].map(|us| datum::from_us_or_infinity(us).into());
        let args = [pool.into(), held.worker_id.into(), token.into(), before, after];
        let is_extended = !EXTEND.write_latest(&args, |_| ()).is_empty();
        crate::pg::crash_point!("pool: renewal written");
        if !is_extended {
            check_for_interrupts!();
        }
        is_extended
    }

    fn wait_for_standbys(&mut self) {
        recovery::wait_for_flushed(&STANDBY_WAIT);
    }

    fn release(&mut self, pool: &str, worker_id: i32, used_until_us: i64) {
        let used_until = datum::from_us_or_infinity(used_until_us);
        // A crash that loses this costs a wait for the end of the rectangle.
        RELEASE.write_losable(&[pool.into(), worker_id.into(), used_until.into()], |_| ());
        crate::pg::crash_point!("pool: release written");
    }
}
