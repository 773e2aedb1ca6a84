//! The rectangles of worker ids, in `idgen.worker_number`, and checks that the functions of worker ids share. Column `number` is the
//! worker id.

use super::errors;
use crate::pg::spi::{ExtensionTable, Query, text, value};
use crate::pg::{datum, xact};
use idgen_core::worker::Rectangle;
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::ffi::CStr;

/// One row for each worker id of a pool that was ever granted.
pub static WORKER_NUMBER: ExtensionTable = ExtensionTable::new(c"worker_number");

/// A worker id, and the token of its lease.
#[derive(Clone, Copy)]
pub struct HeldWorkerId<'a> {
    pub pool: &'a str,
    pub worker_id: i32,
    pub token: i64,
}

static FIND: Query = WORKER_NUMBER.query(
    "SELECT not_before, not_after, token FROM idgen.worker_number \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND number OPERATOR(pg_catalog.=) $2",
);

/// The last rectangle, and its token. The caller holds the lease of the worker id, so no other transaction changes the
/// row.
fn find(pool: &str, worker_id: i32) -> Option<(Rectangle, i64)> {
    let read = |row: &SpiHeapTupleData| {
        let [not_before_us, not_after_us] = [1, 2].map(|column| datum::to_us(value(row, column)));
        (Rectangle { not_before_us, not_after_us }, value(row, 3))
    };
    FIND.read_latest(&[pool.into(), worker_id.into()], read).pop()
}

/// The end of the last rectangle of a worker id; `None` if it was never granted.
pub fn used_until_us(pool: &str, worker_id: i32) -> Option<i64> {
    find(pool, worker_id).map(|(rectangle, _)| rectangle.not_after_us)
}

impl HeldWorkerId<'_> {
    /// The holder's rectangle. Raises 55000 if the slot was acquired as a bare lease: the row is that of an earlier
    /// holder.
    pub fn rectangle(&self) -> Rectangle {
        let last = find(self.pool, self.worker_id).filter(|(_, token)| *token == self.token);
        last.unwrap_or_else(|| errors::bare_lease(self.pool, self.worker_id).raise()).0
    }

    /// Inserts or replaces the row of the worker id, for a new holder.
    pub fn begin(&self, rectangle: Rectangle, owner: Option<&str>) {
        let [pool, worker_id, token, not_before, not_after] = self.row(rectangle);
        BEGIN.write_latest(&[pool, worker_id, token, not_before, not_after, owner.into()], |_| ());
    }

    /// Moves the end of the rectangle.
    pub fn extend(&self, rectangle: Rectangle) {
        EXTEND.write_latest(&self.row(rectangle), |_| ());
    }

    /// Records that the worker id was released, and the end of its rectangle if the holder reports an earlier one. The row
    /// of a bare lease is that of an earlier holder, and stays.
    pub fn end(&self, used_until_us: Option<i64>) {
        let used_until = used_until_us.map(datum::from_us_or_infinity);
        END.write_latest(&[self.pool.into(), self.worker_id.into(), self.token.into(), used_until.into()], |_| ());
    }

    fn row(&self, rectangle: Rectangle) -> [DatumWithOid<'_>; 5] {
        let [not_before, not_after] = [rectangle.not_before_us, rectangle.not_after_us].map(datum::from_us_or_infinity);
        [self.pool.into(), self.worker_id.into(), self.token.into(), not_before.into(), not_after.into()]
    }

    /// Raises 55000 unless the rectangle ends where the caller was last told: another process has the token and renewed
    /// it.
    pub fn require_end(&self, rectangle: Rectangle, last_us: i64) {
        if rectangle.not_after_us != last_us {
            errors::renewed_by_another(self.pool, self.worker_id, last_us, rectangle.not_after_us).raise();
        }
    }
}

static BEGIN: Query = WORKER_NUMBER.query(
    "INSERT INTO idgen.worker_number AS known (pool, number, token, not_before, not_after, owner, released) \
     VALUES ($1, $2, $3, $4, $5, $6, false) ON CONFLICT (pool, number) DO UPDATE \
     SET token = excluded.token, not_before = excluded.not_before, not_after = excluded.not_after, \
         owner = excluded.owner, released = false",
);

static EXTEND: Query = WORKER_NUMBER.query(
    "UPDATE idgen.worker_number SET not_before = $4, not_after = $5 \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND number OPERATOR(pg_catalog.=) $2 AND token OPERATOR(pg_catalog.=) $3",
);

static END: Query = WORKER_NUMBER.query(
    "UPDATE idgen.worker_number SET not_after = COALESCE($4, not_after), released = true \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND number OPERATOR(pg_catalog.=) $2 AND token OPERATOR(pg_catalog.=) $3",
);

static OUTSIDE: Query = WORKER_NUMBER.query(
    "SELECT known.pool, known.number, known.not_after FROM idgen.worker_number AS known \
     JOIN idgen.lease_definition AS defined ON defined.name OPERATOR(pg_catalog.=) known.pool \
     WHERE known.not_after OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() \
       AND (known.number OPERATOR(pg_catalog.<) defined.first_slot \
            OR known.number OPERATOR(pg_catalog.>=) (defined.first_slot OPERATOR(pg_catalog.+) defined.slots)) \
     ORDER BY known.not_after DESC LIMIT 1",
);

/// A worker id whose id times are not over, and which the definition of its pool leaves out: the pool, the worker id, and the
/// end of its id times in microseconds since 1970. Of several the one that ends last.
pub fn outside_of_ranges() -> Option<(String, i32, i64)> {
    let read = |row: &SpiHeapTupleData| (text(row, 1), value(row, 2), datum::to_us(value(row, 3)));
    OUTSIDE.read_latest(&[], read).pop()
}

/// With as many rows of holders as slots. Whether these terms are over is told by the view only.
static FULL: Query = WORKER_NUMBER.query(
    "SELECT defined.name FROM idgen.lease_definition AS defined \
     WHERE EXISTS (SELECT FROM idgen.worker_number AS known WHERE known.pool OPERATOR(pg_catalog.=) defined.name) \
       AND (SELECT pg_catalog.count(*) FROM idgen.lease \
            WHERE lease.name OPERATOR(pg_catalog.=) defined.name AND lease.depth OPERATOR(pg_catalog.>) 0) \
           OPERATOR(pg_catalog.>=) defined.slots \
       AND (SELECT pg_catalog.count(*) FROM idgen.leases AS term \
            WHERE term.name OPERATOR(pg_catalog.=) defined.name AND term.state OPERATOR(pg_catalog.=) 'held' \
              AND term.slot OPERATOR(pg_catalog.>=) defined.first_slot) \
           OPERATOR(pg_catalog.>=) defined.slots \
     ORDER BY defined.name",
);

/// The pools of this database whose worker ids are all held.
pub fn full_pools() -> Vec<String> {
    FULL.read_latest(&[], |row| text(row, 1))
}

/// A pool is a lease that has granted a worker id.
static POOL_THAT_GRANTS: Query = WORKER_NUMBER.query(
    "SELECT known.pool FROM idgen.worker_number AS known WHERE known.number OPERATOR(pg_catalog.=) $1 \
     UNION ALL \
     SELECT defined.name FROM idgen.lease_definition AS defined \
     WHERE $1 OPERATOR(pg_catalog.>=) defined.first_slot \
       AND $1 OPERATOR(pg_catalog.<) (defined.first_slot OPERATOR(pg_catalog.+) defined.slots) \
       AND EXISTS (SELECT FROM idgen.worker_number AS known WHERE known.pool OPERATOR(pg_catalog.=) defined.name) \
     LIMIT 1",
);

/// A pool in this database that has granted this worker id, or may grant it.
pub fn pool_that_grants(worker_id: u32) -> Option<String> {
    let worker_id = i32::try_from(worker_id).ok()?;
    POOL_THAT_GRANTS.read_latest(&[worker_id.into()], |row| text(row, 1)).pop()
}

/// For functions that grant id times. A rectangle must be committed before the caller learns of it: a rollback would
/// give its id times to the next holder. So this raises 25006 where nothing can be written, and 25001 if the call is not of
/// a statement that is the whole of its transaction.
///
/// In SERIALIZABLE, grants of different pools would fail because of each other: their rows share pages of indexes.
///
/// # Safety
/// `fcinfo` is that of the running call.
pub unsafe fn require_own_transaction(function: &CStr, fcinfo: pg_sys::FunctionCallInfo) {
    xact::require_read_write(function);
    // SAFETY: by the above.
    if !unsafe { xact::is_own_statement(fcinfo) } {
        errors::not_own_statement(function).raise();
    }
    xact::commit_with_statement();
    xact::leave_serializable();
}

/// Microseconds since 1970. Raises 22008 if the time is infinite.
pub fn finite_us(name: &str, time: TimestampWithTimeZone) -> i64 {
    match datum::to_us(time) {
        i64::MIN | i64::MAX => errors::not_finite(name).raise(),
        us => us,
    }
}
