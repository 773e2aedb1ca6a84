//! The pools: their rows, and what their owners do. An owner defines, alters and drops a pool, moves its worker ids to another
//! pool, and corrects the end of a rectangle.
//!
//! The order of locks: the row of a pool, the rows of worker ids, the table of the history. Who changes a pool locks its row
//! alone, and who grants from it locks it with others, so that no grant begins while the pool changes. A renewal locks
//! nothing before it writes, or its row before it changes the history: all pools need that table, so nothing waits for a row
//! with it locked. Whoever ends a holder's right sets its token to NULL or begins an epoch of the history, and then no
//! renewal finds it.

use super::errors;
use crate::args::{self, AclTable};
use crate::pg::datum::{self, Text};
use crate::pg::spi::{ExtensionTable, Query, micros, text, user, value};
use crate::pg::xact::{self, Durability};
use crate::settings;
use idgen_core::worker::granting::PoolDefinition;
use idgen_core::worker::recording;
use pgrx::datum::{DatumWithOid, Interval};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::ops::RangeInclusive;

pub static WORKER_POOL: ExtensionTable = ExtensionTable::new(c"worker_pool");
pub static WORKER_ID: ExtensionTable = ExtensionTable::new(c"worker_id");
pub static WORKER_HISTORY: ExtensionTable = ExtensionTable::new(c"worker_history");

/// These rows, as the procedures of the core reach them in the running transaction.
pub struct Database;

/// The arguments of a query on the worker ids of a pool in a range, or outside of it.
pub fn of_range<'a>(pool: &'a str, range: &RangeInclusive<i32>) -> [DatumWithOid<'a>; 3] {
    [pool.into(), (*range.start()).into(), (*range.end()).into()]
}

fn pool_text(lock: &str) -> String {
    format!(
        "SELECT first, count, {}, pg_catalog.pg_has_role($2, owner::pg_catalog.oid, 'USAGE') FROM idgen.worker_pool \
         WHERE name OPERATOR(pg_catalog.=) $1 {lock}",
        micros("ttl")
    )
}

static FIND_POOL: Query = Query::new(&WORKER_POOL, || pool_text(""));
pub static SHARE_POOL: Query = Query::new(&WORKER_POOL, || pool_text("FOR KEY SHARE"));
static LOCK_POOL: Query = Query::new(&WORKER_POOL, || pool_text("FOR UPDATE"));

/// A pool, and whether the current user may act as the role that has defined it.
pub fn pool(row: &SpiHeapTupleData) -> (PoolDefinition, bool) {
    let (first, count): (i32, i32) = (value(row, 1), value(row, 2));
    (PoolDefinition { range: first..=first + count - 1, ttl_us: value(row, 3) }, value(row, 4))
}

/// For an error: the holders whose id times end first.
pub fn holders(name: &str, range: &RangeInclusive<i32>) -> String {
    HOLDERS.read_latest(&of_range(name, range), |row| text(row, 1)).join("; ")
}

static HOLDERS: Query = WORKER_ID.query(
    "SELECT pg_catalog.format('%s by %s since %s', worker_id, \
            CASE WHEN owner IS NULL THEN pg_catalog.format('role %s', role) \
                 ELSE pg_catalog.format('\"%s\" (role %s)', owner, role) END, \
            pg_catalog.date_trunc('second', acquired_at)) \
     FROM idgen.worker_id WHERE pool OPERATOR(pg_catalog.=) $1 AND token IS NOT NULL \
       AND worker_id OPERATOR(pg_catalog.>=) $2 AND worker_id OPERATOR(pg_catalog.<=) $3 ORDER BY not_after LIMIT 5",
);

/// A pool that no transaction grants from until this one ends. Raises 42501 for another role than its owner, and 42704
/// without it.
fn lock_pool(name: &str) -> PoolDefinition {
    try_lock_pool(name).unwrap_or_else(|| errors::unknown_pool(name).raise())
}

/// As [`lock_pool`]. `None` without it.
fn try_lock_pool(name: &str) -> Option<PoolDefinition> {
    let owned = |mut found: Vec<(PoolDefinition, bool)>| match found.pop()? {
        (_, false) => errors::not_owner(name).raise(),
        (pool, true) => Some(pool),
    };
    let args = [name.into(), user().into()];
    // Before the wait, so that a call that must fail does not wait, and after it, when the pool may be another.
    owned(FIND_POOL.read_latest(&args, pool))?;
    owned(LOCK_POOL.write_losable(&args, pool))
}

/// More than fit the worker field of any layout that is in use, and few enough for a row each.
const MAX_COUNT: i32 = 65536;

/// Defines a pool of worker ids. Does nothing if it is defined so. Raises 22004 for NULL, 22023 for an invalid name, range or
/// ttl, 25006 where nothing can be written, 42501 if another role has defined it, and 42710 if it is defined otherwise.
#[pg_extern(sql = false)]
fn worker_pool_define(name: Option<Text>, first: Option<i32>, count: Option<i32>, ttl: Option<Interval>) {
    let name = args::stored_name(name.as_deref(), "name");
    let (first, count, ttl) =
        (args::required(first, "first"), args::required(count, "count"), args::required(ttl, "ttl"));
    let range = checked_range(first, count);
    args::ttl_us(ttl, settings::lease_ttl_limits_us());
    xact::require_read_write(c"worker_pool_define()");
    recording::begin(&mut Database);
    let args = [name.into(), first.into(), count.into(), ttl.into(), user().into()];
    // Again if it is dropped while this waits for its lock.
    while DEFINE.write_latest(&args, |_| ()).is_empty() {
        if let Some(defined) = try_lock_pool(name) {
            if defined.range != range || i128::from(defined.ttl_us) != ttl.as_micros() {
                errors::defined_otherwise(name).raise();
            }
            return;
        }
    }
    ADD_ROWS.write_latest(&of_range(name, &range), |_| ());
    xact::require_durability(Durability::Failover);
}

static DEFINE: Query = WORKER_POOL.query(
    "INSERT INTO idgen.worker_pool (name, first, count, ttl, owner) VALUES ($1, $2, $3, $4, $5::pg_catalog.regrole) \
     ON CONFLICT (name) DO NOTHING RETURNING count",
);

/// Rows of an earlier definition stay as they are.
static ADD_ROWS: Query = WORKER_ID.query(
    "INSERT INTO idgen.worker_id (pool, worker_id) SELECT $1, number FROM pg_catalog.generate_series($2, $3) AS number \
     ON CONFLICT (pool, worker_id) DO NOTHING",
);

fn checked_range(first: i32, count: i32) -> RangeInclusive<i32> {
    if !(1..=MAX_COUNT).contains(&count) {
        errors::count_out_of_range(count, MAX_COUNT).raise();
    }
    if !(0..=MAX_COUNT - count).contains(&first) {
        errors::first_out_of_range(first, count, MAX_COUNT).raise();
    }
    first..=first + count - 1
}

static ALTER: Query = WORKER_POOL.query(
    "UPDATE idgen.worker_pool SET first = $2, count = $3, ttl = COALESCE($4, ttl) WHERE name OPERATOR(pg_catalog.=) $1",
);

/// Changes a pool; NULL keeps a setting. A worker id that is held and that the pool would no longer have is an error unless
/// `force` ends its token. Raises 22004 for NULL in `name` or `force`, 22023 as `worker_pool_define`, 42501 for another role
/// than the owner, 42704 for an unknown pool, and 55006 for such a worker id.
#[pg_extern(sql = false)]
fn worker_pool_alter(
    name: Option<Text>,
    first: Option<i32>,
    count: Option<i32>,
    ttl: Option<Interval>,
    force: Option<bool>,
) {
    let (name, force) = (args::name(name.as_deref(), "name"), args::required(force, "force"));
    ttl.map(|ttl| args::ttl_us(ttl, settings::lease_ttl_limits_us()));
    xact::require_read_write(c"worker_pool_alter()");
    let pool = lock_pool(name);
    let count = count.unwrap_or_else(|| pool.range.clone().count() as i32);
    let first = first.unwrap_or(*pool.range.start());
    let range = checked_range(first, count);
    let excluded = end_tokens(name, &range);
    if !excluded.is_empty() {
        let report = errors::excludes_holders(name, &pool.range, &range, &excluded);
        const HINT: &str = "Stop them first, or use force => true: they are refused at their next renewal.";
        if force { report.notice() } else { report.hint(HINT).raise() }
    }
    ALTER.write_latest(&[name.into(), first.into(), count.into(), ttl.into()], |_| ());
    REMOVE_UNUSED.write_latest(&of_range(name, &range), |_| ());
    ADD_ROWS.write_latest(&of_range(name, &range), |_| ());
    xact::require_durability(Durability::Failover);
}

static END_TOKENS: Query = WORKER_ID.query(
    "UPDATE idgen.worker_id SET token = NULL WHERE pool OPERATOR(pg_catalog.=) $1 AND token IS NOT NULL \
     AND (worker_id OPERATOR(pg_catalog.<) $2 OR worker_id OPERATOR(pg_catalog.>) $3) \
     RETURNING worker_id, not_after OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()",
);

/// Ends the tokens of worker ids outside of a range. Returns the worker ids that are held.
fn end_tokens(pool: &str, range: &RangeInclusive<i32>) -> Vec<i32> {
    let read = |row: &SpiHeapTupleData| value::<bool>(row, 2).then(|| value::<i32>(row, 1));
    let mut held: Vec<i32> = END_TOKENS.write_latest(&of_range(pool, range), read).into_iter().flatten().collect();
    held.sort_unstable();
    held
}

static REMOVE_UNUSED: Query = WORKER_ID.query(
    "DELETE FROM idgen.worker_id WHERE pool OPERATOR(pg_catalog.=) $1 AND acquired_at IS NULL \
     AND (worker_id OPERATOR(pg_catalog.<) $2 OR worker_id OPERATOR(pg_catalog.>) $3)",
);

/// A range outside of which every worker id is.
const NONE: RangeInclusive<i32> = -1..=-1;

static DROP: Query = WORKER_POOL.query("DELETE FROM idgen.worker_pool WHERE name OPERATOR(pg_catalog.=) $1");

/// Drops a pool. The id times of its worker ids stay: a pool of this name that is defined again begins after them. Raises
/// 42501 for another role than the owner, 42704 for an unknown pool, and 55006 if a worker id is held.
#[pg_extern(sql = false)]
fn worker_pool_drop(name: Option<Text>) {
    drop_pool(args::name(name.as_deref(), "name"));
}

fn drop_pool(name: &str) {
    xact::require_read_write(c"worker_pool_drop()");
    lock_pool(name);
    end_tokens(name, &NONE);
    if let Some(worker_id) = HELD.read_latest(&[name.into()], |row| value(row, 1)).pop() {
        errors::in_use(name, worker_id).raise();
    }
    REMOVE_UNUSED.write_latest(&of_range(name, &NONE), |_| ());
    DROP.write_latest(&[name.into()], |_| ());
    xact::require_durability(Durability::Failover);
}

/// A holder that has lost its token may still issue ids.
static HELD: Query = WORKER_ID.query(
    "SELECT worker_id FROM idgen.worker_id WHERE pool OPERATOR(pg_catalog.=) $1 AND role IS NOT NULL \
     AND not_after OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() ORDER BY worker_id LIMIT 1",
);

static OWNED: Query = WORKER_POOL.query(
    "SELECT name FROM idgen.worker_pool WHERE owner::pg_catalog.oid OPERATOR(pg_catalog.=) ANY ($1) ORDER BY name",
);

/// Drops all pools of these roles. False if there are none.
pub fn drop_owned(owners: &[pg_sys::Oid]) -> bool {
    let names = OWNED.read_latest(&[owners.to_vec().into()], |row| text(row, 1));
    names.iter().for_each(|name| drop_pool(name));
    !names.is_empty()
}

/// Makes another role the owner of all pools of these roles. False if there are none.
pub fn reassign(owners: &[pg_sys::Oid], heir: pg_sys::Oid) -> bool {
    AclTable { table: &WORKER_POOL, key: "name", lock_order: "name", grantees: "" }.reassign(owners, heir)
}

/// Moves the worker ids of a pool that were ever granted to another pool, with their id times and holders, and drops the
/// pool. Returns the count of worker ids. Tokens stay current under the new name, except for worker ids outside of its range.
/// For the owner of both pools. Raises 22023 for two equal names, 42501 for another role, 42704 for an unknown pool, and 55006
/// if both pools have granted a worker id.
#[pg_extern(sql = false)]
fn worker_move(from_pool: Option<Text>, to_pool: Option<Text>) -> i32 {
    let (from, to) = (args::name(from_pool.as_deref(), "from_pool"), args::name(to_pool.as_deref(), "to_pool"));
    if from == to {
        errors::same_pool(from).raise();
    }
    xact::require_read_write(c"worker_move()");
    lock_pool(from.min(to));
    lock_pool(from.max(to));
    let both = [from.into(), to.into()];
    if let Some(worker_id) = GRANTED_FROM_BOTH.read_latest(&both, |row| value(row, 1)).pop() {
        errors::granted_from_both(worker_id, from, to).raise();
    }
    REPLACED.write_latest(&both, |_| ());
    let moved = MOVE.write_latest(&both, |_| ()).len();
    let range = lock_pool(to).range;
    let excluded = end_tokens(to, &range);
    if !excluded.is_empty() {
        errors::moved_outside(to, &range, &excluded).notice();
    }
    REMOVE_UNUSED.write_latest(&of_range(from, &NONE), |_| ());
    DROP.write_latest(&[from.into()], |_| ());
    xact::require_durability(Durability::Failover);
    moved as i32
}

static GRANTED_FROM_BOTH: Query = WORKER_ID.query(
    "SELECT worker_id FROM idgen.worker_id WHERE pool OPERATOR(pg_catalog.=) ANY (ARRAY[$1, $2]) AND acquired_at IS NOT NULL \
     GROUP BY worker_id HAVING pg_catalog.count(*) OPERATOR(pg_catalog.>) 1 ORDER BY worker_id LIMIT 1",
);

/// The rows of the other pool that those which move replace.
static REPLACED: Query = WORKER_ID.query(
    "DELETE FROM idgen.worker_id WHERE pool OPERATOR(pg_catalog.=) $2 AND worker_id OPERATOR(pg_catalog.=) ANY (ARRAY( \
         SELECT worker_id FROM idgen.worker_id WHERE pool OPERATOR(pg_catalog.=) $1 AND acquired_at IS NOT NULL))",
);

static MOVE: Query = WORKER_ID.query(
    "UPDATE idgen.worker_id SET pool = $2 WHERE pool OPERATOR(pg_catalog.=) $1 AND acquired_at IS NOT NULL \
     RETURNING worker_id",
);

/// Records that no id at or after `used_until` was issued under a worker id, which is free then. NULL keeps the recorded time.
/// Returns the time recorded before. A worker id with a holder is an error unless `force` ends its token. For the owner of the
/// pool. Raises 22004 for NULL in another argument, 22023 for an infinite time, 42501 for another role, 42704 for an unknown pool
/// or if the worker id was never granted, and 55006 for one with a holder.
#[pg_extern(sql = false)]
fn worker_correct_unless_held(
    pool: Option<Text>,
    worker_id: Option<i32>,
    used_until: Option<TimestampWithTimeZone>,
    force: Option<bool>,
) -> TimestampWithTimeZone {
    let (pool, worker_id) = (args::name(pool.as_deref(), "pool"), args::required(worker_id, "worker_id"));
    let force = args::required(force, "force");
    if used_until.is_some_and(|used_until| datum::from_us(datum::to_us(used_until)).is_none()) {
        errors::used_until_not_finite().raise();
    }
    xact::require_read_write(c"worker_correct()");
    // A running transaction may acquire this worker id.
    lock_pool(pool);
    let read = |row: &SpiHeapTupleData| (value(row, 1), value(row, 2));
    let corrected = CORRECT.write_latest(&[pool.into(), worker_id.into(), used_until.into()], read).pop();
    let (before, has_holder): (_, bool) = corrected.unwrap_or_else(|| errors::never_granted(pool, worker_id).raise());
    // One with a token may still renew it, and one whose id times are not over may still issue ids.
    if has_holder && !force {
        errors::held(pool, worker_id).raise();
    }
    xact::require_durability(Durability::Failover);
    before
}

/// Locks the row first, so that the end before is that of a running renewal.
static CORRECT: Query = WORKER_ID.query(
    "UPDATE idgen.worker_id AS known \
     SET not_after = COALESCE($3, before.not_after), not_before = LEAST(known.not_before, $3), token = NULL, role = NULL \
     FROM (SELECT pool, worker_id, not_after, token IS NOT NULL \
                OR role IS NOT NULL AND not_after OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() AS has_holder \
           FROM idgen.worker_id \
           WHERE pool OPERATOR(pg_catalog.=) $1 AND worker_id OPERATOR(pg_catalog.=) $2 AND acquired_at IS NOT NULL \
           FOR UPDATE) AS before \
     WHERE known.pool OPERATOR(pg_catalog.=) before.pool AND known.worker_id OPERATOR(pg_catalog.=) before.worker_id \
     RETURNING before.not_after, before.has_holder",
);
