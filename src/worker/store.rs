//! The rows of pools and of worker ids, and checks that the functions of worker ids share.
//!
//! The order of locks: the row of a pool, the rows of worker ids, the table of the history. Who changes a pool locks its row
//! alone, and who grants from it locks it with others, so that no grant begins while the pool changes. A renewal locks
//! nothing before it writes, or its row before it changes the history: all pools need that table, so nothing waits for a row
//! with it locked. Whoever ends a holder's right sets its token to NULL or begins an epoch of the history, and then no
//! renewal finds it.

use super::errors;
use super::history;
use crate::pg::spi::{ExtensionTable, Query, micros, optional_text, text, user, value};
use crate::pg::{datum, xact};
use idgen_core::history::History;
use idgen_core::worker::Rectangle;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::ffi::CStr;
use std::ops::RangeInclusive;

pub static WORKER_POOL: ExtensionTable = ExtensionTable::new(c"worker_pool");
/// One row for each worker id of a pool, from its definition on.
pub static WORKER_ID: ExtensionTable = ExtensionTable::new(c"worker_id");
/// At most one row.
pub static WORKER_HISTORY: ExtensionTable = ExtensionTable::new(c"worker_history");

/// The definition of a pool.
pub struct Pool {
    pub first: i32,
    pub count: i32,
    pub ttl_us: i64,
    /// The current user may act as the role that has defined it.
    pub is_owned: bool,
}

impl Pool {
    pub fn range(&self) -> RangeInclusive<i32> {
        self.first..=self.first + self.count - 1
    }
}

fn pool_text(lock: &str) -> String {
    format!(
        "SELECT first, count, {}, pg_catalog.pg_has_role($2, owner::pg_catalog.oid, 'USAGE') FROM idgen.worker_pool \
         WHERE name OPERATOR(pg_catalog.=) $1 {lock}",
        micros("ttl")
    )
}

static FIND_POOL: Query = Query::new(&WORKER_POOL, || pool_text(""));
static SHARE_POOL: Query = Query::new(&WORKER_POOL, || pool_text("FOR KEY SHARE"));
static LOCK_POOL: Query = Query::new(&WORKER_POOL, || pool_text("FOR UPDATE"));

fn pool(row: &SpiHeapTupleData) -> Pool {
    Pool { first: value(row, 1), count: value(row, 2), ttl_us: value(row, 3), is_owned: value(row, 4) }
}

/// A pool that grants go on from until the transaction ends, and that nobody changes until then. Raises 42704 without it.
pub fn share_pool(name: &str) -> Pool {
    let found = SHARE_POOL.write_losable(&[name.into(), user().into()], pool).pop();
    found.unwrap_or_else(|| errors::unknown_pool(name).raise())
}

/// A pool that no transaction grants from until this one ends. Raises 42501 for another role than its owner, and 42704
/// without it.
pub fn lock_pool(name: &str) -> Pool {
    // Before the wait, so that a call that must fail does not wait, and after it, when the pool may be another.
    require_owned(name, FIND_POOL.read_latest(&[name.into(), user().into()], pool).pop());
    require_owned(name, LOCK_POOL.write_losable(&[name.into(), user().into()], pool).pop())
}

fn require_owned(name: &str, found: Option<Pool>) -> Pool {
    let pool = found.unwrap_or_else(|| errors::unknown_pool(name).raise());
    if !pool.is_owned {
        errors::not_owner(name).raise();
    }
    pool
}

/// A worker id with a current token.
pub struct Held {
    pub worker_id: i32,
    pub rectangle: Rectangle,
    pub acquired_us: i64,
    /// That of the pool.
    pub ttl_us: i64,
    /// As it was read with the row.
    pub history: Option<History>,
    /// The running transaction has granted or renewed it.
    pub is_uncommitted: bool,
}

/// A token of an earlier epoch is not current.
fn held_text(lock: &str) -> String {
    format!(
        "SELECT held.worker_id, held.not_before, held.not_after, held.acquired_at, {}, \
         COALESCE(held.xmin OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.xid, false), \
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
        is_uncommitted: value(row, 6),
        history: history::from_row(row, 8),
    };
    (held, optional_text(row, 7))
}

/// The worker id of a token. Raises 42501 if it was acquired by another role, and 55000 if the token is not current.
pub fn find_held(name: &str, token: i64) -> Held {
    permitted(name, token, FIND_HELD.read_latest(&[name.into(), token.into(), user().into()], held).pop())
}

/// The same, locked until the transaction ends.
pub fn lock_held(name: &str, token: i64) -> Held {
    permitted(name, token, LOCK_HELD.write_losable(&[name.into(), token.into(), user().into()], held).pop())
}

fn permitted(name: &str, token: i64, found: Option<(Held, Option<String>)>) -> Held {
    match found {
        Some((held, None)) => held,
        Some((held, Some(role))) => errors::not_the_holders_role(name, held.worker_id, &role).raise(),
        None => errors::stale(name, token).raise(),
    }
}

static LONGEST_TTL: Query = Query::new(&WORKER_POOL, || {
    format!("SELECT COALESCE(pg_catalog.max({}), 0) FROM idgen.worker_pool", micros("ttl"))
});

/// The longest ttl of the pools in microseconds.
pub fn longest_ttl_us() -> i64 {
    LONGEST_TTL.read_latest(&[], |row| value(row, 1)).pop().unwrap_or(0)
}

static ANY: Query = WORKER_ID.query("SELECT FROM idgen.worker_id LIMIT 1");

/// True if this database has no row of a worker id.
pub fn is_empty() -> bool {
    ANY.read_latest(&[], |_| ()).is_empty()
}

static OUTSIDE: Query = WORKER_ID.query(
    "SELECT known.pool, known.worker_id, known.not_after FROM idgen.worker_id AS known \
     JOIN idgen.worker_pool AS pool ON pool.name OPERATOR(pg_catalog.=) known.pool \
     WHERE known.not_after OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() \
       AND (known.worker_id OPERATOR(pg_catalog.<) pool.first \
            OR known.worker_id OPERATOR(pg_catalog.>=) (pool.first OPERATOR(pg_catalog.+) pool.count)) \
     ORDER BY known.not_after DESC LIMIT 1",
);

/// A worker id whose id times are not over, and which the definition of its pool leaves out: the pool, the worker id, and the
/// end of its id times in microseconds since 1970. Of several the one that ends last.
pub fn outside_of_ranges() -> Option<(String, i32, i64)> {
    let read = |row: &SpiHeapTupleData| (text(row, 1), value(row, 2), datum::to_us(value(row, 3)));
    OUTSIDE.read_latest(&[], read).pop()
}

static FULL: Query = WORKER_ID.query(
    "SELECT pool.name FROM idgen.worker_pool AS pool \
     WHERE NOT EXISTS (SELECT FROM idgen.worker_id AS known WHERE known.pool OPERATOR(pg_catalog.=) pool.name \
         AND known.token IS NULL AND known.worker_id OPERATOR(pg_catalog.>=) pool.first \
         AND known.worker_id OPERATOR(pg_catalog.<) (pool.first OPERATOR(pg_catalog.+) pool.count)) \
       AND NOT EXISTS (SELECT FROM idgen.worker_id AS known WHERE known.pool OPERATOR(pg_catalog.=) pool.name \
         AND known.token IS NOT NULL AND (known.not_after OPERATOR(pg_catalog.<=) $1 \
             OR known.epoch OPERATOR(pg_catalog.<>) COALESCE((SELECT history.epoch FROM idgen.worker_history AS history), 0)) \
         AND known.worker_id OPERATOR(pg_catalog.>=) pool.first \
         AND known.worker_id OPERATOR(pg_catalog.<) (pool.first OPERATOR(pg_catalog.+) pool.count)) \
     ORDER BY pool.name",
);

/// The pools of this database whose worker ids are all held at this time.
pub fn full_pools(now_us: i64) -> Vec<String> {
    FULL.read_latest(&[datum::from_us_or_infinity(now_us).into()], |row| text(row, 1))
}

static POOL_THAT_GRANTS: Query = WORKER_ID.query(
    "SELECT name FROM idgen.worker_pool \
     WHERE $1 OPERATOR(pg_catalog.>=) first AND $1 OPERATOR(pg_catalog.<) (first OPERATOR(pg_catalog.+) count) \
     UNION ALL \
     SELECT pool FROM idgen.worker_id WHERE worker_id OPERATOR(pg_catalog.=) $1 AND acquired_at IS NOT NULL LIMIT 1",
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
