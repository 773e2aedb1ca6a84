//! The rows of `idgen.segment`: every query on them, in one place.

use crate::elevated;
use idgen_core::segment::allocation::Allocation;
use idgen_core::segment::definition::Definition;
use idgen_core::segment::table::Key;
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::{SpiClient, SpiHeapTupleData, SpiTupleTable};
use std::ffi::CString;
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

/// The tag's row as it is now.
pub fn find(tag: &str) -> Option<Row> {
    let query = format!(
        "SELECT {COLUMNS}, {MAY_DRAW}, pg_catalog.pg_has_role($2, owner::pg_catalog.oid, 'USAGE') \
         FROM idgen.segment WHERE tag OPERATOR(pg_catalog.=) $1"
    );
    // SAFETY: reads this process's own state.
    let user = unsafe { pg_sys::GetUserId() };
    let read = |row: &SpiHeapTupleData| Row {
        key: Key { database: database(), creation: number(row, 1) },
        version: number(row, 2),
        allocation: allocation(row),
        made_here: is_own_transaction(number(row, 7)),
        changed_here: is_own_transaction(number(row, 8)),
        may_draw: truth(row, 13),
        may_alter: truth(row, 14),
        definition: definition(row),
    };
    look(&query, &[tag.into(), user.into()], read).pop()
}

/// Rows as they are now, read as idgen itself. Not by the transaction's snapshot, which may be old: values are everybody's,
/// and a tag that was dropped meanwhile must not be drawn from. Not by pgrx's `select`, which begins a new command in a
/// transaction that has written: the leader of a parallel plan must not.
fn look<R>(query: &str, args: &[DatumWithOid], read: impl Fn(&SpiHeapTupleData) -> R) -> Vec<R> {
    let query = CString::new(query).expect("a query of ours has no NUL");
    let mut types: Vec<_> = args.iter().map(DatumWithOid::oid).collect();
    let mut values: Vec<_> = args.iter().map(|arg| arg.datum().expect("no argument is NULL").sans_lifetime()).collect();
    let (count, nulls) = (args.len() as i32, std::ptr::null());
    let mut run = || {
        // SAFETY: connected to SPI; the arrays have the length said. PostgreSQL copies the snapshot, and an error gives it
        // back by the end of the (sub)transaction. The rows are read before SPI frees them.
        unsafe {
            pg_sys::PushActiveSnapshot(pg_sys::GetCatalogSnapshot(relation()));
            let (types, values) = (types.as_mut_ptr(), values.as_mut_ptr());
            let status = pg_sys::SPI_execute_with_args(query.as_ptr(), count, types, values, nulls, true, 0);
            Spi::check_status(status).unwrap_or_else(unexpected);
            let table = &*pg_sys::SPI_tuptable;
            let row = |index| SpiHeapTupleData::new(table.tupdesc, *table.vals.add(index)).unwrap_or_else(unexpected);
            let rows = (0..table.numvals as usize).filter_map(row).map(|row| read(&row)).collect();
            pg_sys::PopActiveSnapshot();
            rows
        }
    };
    elevated::run(|| Spi::connect(|_| run()))
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
                version: number(&row, 2),
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

/// The tags that are there, by their creation.
pub fn creations() -> Vec<i64> {
    look("SELECT creation FROM idgen.segment", &[], |row| number(row, 1))
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
    Allocation { max_id: number(row, 3), stride: number(row, 4), residue: number(row, 5), upper_bound: number(row, 6) }
}

fn definition(row: &SpiHeapTupleData) -> Definition {
    Definition {
        max_id: number(row, 3),
        step: number(row, 9),
        min_step: number(row, 10),
        max_step: number(row, 11),
        target_us: number(row, 12),
        stride: number(row, 4),
        residue: number(row, 5),
        upper_bound: number(row, 6),
    }
}

/// A column that is declared NOT NULL.
fn number(row: &SpiHeapTupleData, column: usize) -> i64 {
    row.get(column).unwrap_or_else(unexpected).unwrap_or_default()
}

fn truth(row: &SpiHeapTupleData, column: usize) -> bool {
    row.get(column).unwrap_or_else(unexpected).unwrap_or_default()
}

/// What PostgreSQL itself reports ends the statement before; this is left for a query or a type that is wrong in here.
fn unexpected<T>(error: pgrx::spi::SpiError) -> T {
    crate::error::segment::unexpected(&error).raise()
}
