//! The rows of `idgen.segment`: every query on them, in one place.

use crate::elevated;
use crate::query::{Query, unexpected, value};
use idgen_core::segment::allocation::Allocation;
use idgen_core::segment::definition::Definition;
use idgen_core::segment::table::Key;
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::{SpiClient, SpiHeapTupleData, SpiTupleTable};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// A tag as a query found it, in the eyes of the current user.
#[derive(Clone, Debug)]
pub struct Row {
    pub key: Key,
    pub version: i64,
    pub allocation: Allocation,
    /// Made in the transaction that runs: nobody else sees it.
    pub made_here: bool,
    /// Changed in the transaction that runs: nobody else sees how it is now.
    pub changed_here: bool,
    pub may_draw: bool,
    pub may_alter: bool,
    pub definition: Definition,
}

/// What a refill has to know beside the allocation.
pub struct Refillable {
    pub version: i64,
    pub allocation: Allocation,
    pub step: i64,
    pub min_step: i64,
    pub max_step: i64,
    pub target: Duration,
}

/// What a look at a row under its lock has found.
pub enum Locked {
    Row(Refillable),
    /// Somebody else holds the row.
    Busy,
    Gone,
}

/// A duration too long for a bigint of microseconds is as good as for ever.
const COLUMNS: &str = "creation, version, max_id, stride, residue, upper_bound, created_in, changed_in, step, min_step, \
                       max_step, LEAST(pg_catalog.extract('epoch', target_duration) OPERATOR(pg_catalog.*) 1000000, \
                                       9223372036854775807)::bigint";

/// May a role draw: as the owner, as a member of it, or because it, or everybody, was granted to.
const MAY_DRAW: &str = "pg_catalog.pg_has_role($2, owner::pg_catalog.oid, 'USAGE') \
     OR 0::pg_catalog.oid OPERATOR(pg_catalog.=) ANY (drawers::pg_catalog.oid[]) \
     OR EXISTS (SELECT FROM pg_catalog.unnest(drawers::pg_catalog.oid[]) AS granted (role) \
                WHERE pg_catalog.pg_has_role($2, granted.role, 'USAGE'))";

static FIND: Query = Query::new(|| {
    format!(
        "SELECT {COLUMNS}, {MAY_DRAW}, pg_catalog.pg_has_role($2, owner::pg_catalog.oid, 'USAGE') \
         FROM idgen.segment WHERE tag OPERATOR(pg_catalog.=) $1"
    )
});

/// The tag's row as it is now. Not by the transaction's snapshot, which may be old: values are everybody's, and a tag that
/// was dropped meanwhile must not be drawn from.
pub fn find(tag: &str) -> Option<Row> {
    // SAFETY: reads this process's own state.
    let user = unsafe { pg_sys::GetUserId() };
    let read = |row: &SpiHeapTupleData| Row {
        key: Key { database: database(), creation: value(row, 1) },
        version: value(row, 2),
        allocation: allocation(row),
        made_here: is_own_transaction(value(row, 7)),
        changed_here: is_own_transaction(value(row, 8)),
        may_draw: value(row, 13),
        may_alter: value(row, 14),
        definition: definition(row),
    };
    FIND.look(&[tag.into(), user.into()], read).pop()
}

/// The row under its lock, if that is to be had at once.
pub fn lock(creation: i64) -> Locked {
    let by_creation = "FROM idgen.segment WHERE creation OPERATOR(pg_catalog.=) $1";
    let lock = format!("SELECT {COLUMNS} {by_creation} FOR NO KEY UPDATE SKIP LOCKED");
    let any = format!("SELECT tag {by_creation}");
    // As idgen itself here too: a role may be set for the database.
    let look = |client: &mut SpiClient| {
        let exists = |table: SpiTupleTable| !table.is_empty();
        let found = client.update(&lock, Some(1), &[creation.into()]).unwrap_or_else(unexpected);
        if let Some(row) = found.into_iter().next() {
            let definition = definition(&row);
            return Locked::Row(Refillable {
                version: value(&row, 2),
                allocation: allocation(&row),
                step: definition.step,
                min_step: definition.min_step,
                max_step: definition.max_step,
                target: Duration::from_micros(definition.target_us as u64),
            });
        }
        match exists(client.update(&any, Some(1), &[creation.into()]).unwrap_or_else(unexpected)) {
            true => Locked::Busy,
            false => Locked::Gone,
        }
    };
    elevated::run(|| Spi::connect_mut(look))
}

/// Is the table there? Not when the extension is not, or not yet.
pub fn table_exists() -> bool {
    // SAFETY: C string literals; looks into the system's caches.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"idgen".as_ptr(), true);
        schema != pg_sys::InvalidOid && relation() != pg_sys::InvalidOid
    }
}

/// The table's number, or 0.
pub fn relation() -> pg_sys::Oid {
    // SAFETY: C string literals; looks into the system's caches.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"idgen".as_ptr(), true);
        pg_sys::get_relname_relid(c"segment".as_ptr(), schema)
    }
}

static CREATIONS: Query = Query::new(|| "SELECT creation FROM idgen.segment".to_owned());

/// The tags that are there, by their creation.
pub fn creations() -> Vec<i64> {
    CREATIONS.look(&[], |row| value(row, 1))
}

/// The row gives out values up to this one, by a refill or in the transaction that made it: no change of the tag.
pub fn raise_max_id(creation: i64, max_id: i64, step: Option<i64>) {
    let query = "UPDATE idgen.segment SET max_id = GREATEST(max_id, $2), step = COALESCE($3, step) \
                 WHERE creation OPERATOR(pg_catalog.=) $1";
    IS_ALLOCATION.store(true, Relaxed);
    write(query, &[creation.into(), max_id.into(), step.into()]);
    IS_ALLOCATION.store(false, Relaxed);
}

/// This process is in `raise_max_id`. An error in there leaves it set, so whoever may fail comes by `clear_allocation`.
static IS_ALLOCATION: AtomicBool = AtomicBool::new(false);

pub fn is_allocation() -> bool {
    IS_ALLOCATION.load(Relaxed)
}

pub fn clear_allocation() {
    IS_ALLOCATION.store(false, Relaxed);
}

/// Writes as idgen itself; returns the number of rows.
pub fn write(query: &str, args: &[DatumWithOid]) -> usize {
    // PostgreSQL would complain about a transaction's number before it does about the write.
    // SAFETY: a C string literal.
    unsafe { pg_sys::PreventCommandDuringRecovery(c"a write to idgen.segment".as_ptr()) };
    elevated::run(|| Spi::connect_mut(|client| client.update(query, None, args).unwrap_or_else(unexpected).len()))
}

pub fn database() -> u32 {
    // SAFETY: set when the process connects, and never again.
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

/// The number of the transaction that runs; 0 if it has none.
pub fn transaction() -> i64 {
    // SAFETY: reads this process's own state.
    unsafe { pg_sys::GetTopFullTransactionIdIfAny() }.value as i64
}

fn is_own_transaction(number: i64) -> bool {
    number == transaction()
}

fn allocation(row: &SpiHeapTupleData) -> Allocation {
    Allocation { max_id: value(row, 3), stride: value(row, 4), residue: value(row, 5), upper_bound: value(row, 6) }
}

fn definition(row: &SpiHeapTupleData) -> Definition {
    Definition {
        max_id: value(row, 3),
        step: value(row, 9),
        min_step: value(row, 10),
        max_step: value(row, 11),
        target_us: value(row, 12),
        stride: value(row, 4),
        residue: value(row, 5),
        upper_bound: value(row, 6),
    }
}
