//! Queries, with plans that the process keeps. Every name in them is qualified: see [`super::owner`].

use super::encoding::{self, Text};
use super::ereport::Report;
use super::owner::{self, ExtensionTable};
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The predefined role `pg_read_all_stats`, which no header of PostgreSQL names for C.
const READ_ALL_STATS: pg_sys::Oid = pg_sys::Oid::from_u32(3375);

/// The rights that a query runs with.
enum Rights {
    OwnerOf(&'static ExtensionTable),
    ReadAllStats,
}

/// A query whose plan the process keeps from its first use.
pub struct Query {
    rights: Rights,
    text: fn() -> String,
    plan: AtomicPtr<pg_sys::_SPI_plan>,
}

impl Query {
    /// A query on a table of an extension, and on others of the same owner.
    pub const fn new(table: &'static ExtensionTable, text: fn() -> String) -> Self {
        Self { rights: Rights::OwnerOf(table), text, plan: AtomicPtr::new(null_mut()) }
    }

    /// A query on the statistics of the server.
    pub const fn of_statistics(text: fn() -> String) -> Self {
        Self { rights: Rights::ReadAllStats, text, plan: AtomicPtr::new(null_mut()) }
    }

    /// Reads what is committed now, even if the transaction's snapshot is older. Begins no new command, which the leader
    /// of a parallel plan must not.
    pub fn read_latest<R>(&self, args: &[DatumWithOid], read: impl Fn(&SpiHeapTupleData) -> R) -> Vec<R> {
        // SAFETY: a new snapshot for each read, because no table has this OID. SPI makes it the active one.
        self.run(args, read, true, || unsafe { pg_sys::GetCatalogSnapshot(pg_sys::InvalidOid) })
    }

    /// Changes or locks what is committed now, and returns the rows that the query returns.
    pub fn write_latest<R>(&self, args: &[DatumWithOid], read: impl Fn(&SpiHeapTupleData) -> R) -> Vec<R> {
        // SAFETY: SPI copies the snapshot.
        self.run(args, read, false, || unsafe { pg_sys::GetLatestSnapshot() })
    }

    /// Reads what the transaction's snapshot shows.
    pub fn read_snapshot<R>(&self, args: &[DatumWithOid], read: impl Fn(&SpiHeapTupleData) -> R) -> Vec<R> {
        // SAFETY: as in `read_latest`.
        self.run(args, read, true, || unsafe { pg_sys::GetTransactionSnapshot() })
    }

    fn run<R>(
        &self,
        args: &[DatumWithOid],
        read: impl Fn(&SpiHeapTupleData) -> R,
        read_only: bool,
        snapshot: impl FnOnce() -> pg_sys::Snapshot,
    ) -> Vec<R> {
        let args = encoding::arguments(args);
        let mut values: Vec<_> =
            args.iter().map(|arg| arg.datum().map_or(pg_sys::Datum::null(), |datum| datum.sans_lifetime())).collect();
        // As SPI says it: a blank for a value, an n for NULL.
        let nulls: Vec<_> = args.iter().map(|arg| if arg.datum().is_some() { b' ' } else { b'n' } as _).collect();
        let (values, nulls) = (values.as_mut_ptr(), nulls.as_ptr());
        let run = || {
            let plan = self.plan(&args);
            let _by_index = ByIndex::new();
            // SAFETY: connected to SPI; both arrays have as many elements as the plan has parameters. The rows are read
            // before SPI frees them.
            unsafe {
                let (snapshot, crosscheck) = (snapshot(), null_mut());
                let status =
                    pg_sys::SPI_execute_snapshot(plan, values, nulls, snapshot, crosscheck, read_only, true, 0);
                Spi::check_status(status).unwrap_or_else(unexpected);
                if pg_sys::SPI_tuptable.is_null() {
                    return Vec::new();
                }
                let table = &*pg_sys::SPI_tuptable;
                let row =
                    |index| SpiHeapTupleData::new(table.tupdesc, *table.vals.add(index)).unwrap_or_else(unexpected);
                (0..table.numvals as usize).filter_map(row).map(|row| read(&row)).collect()
            }
        };
        let mode = if read_only { pg_sys::AccessShareLock } else { pg_sys::RowExclusiveLock };
        match self.rights {
            Rights::OwnerOf(table) => owner::as_owner_of(table, mode, || Spi::connect(|_| run())),
            Rights::ReadAllStats => owner::as_role(READ_ALL_STATS, || Spi::connect(|_| run())),
        }
    }

    fn plan(&self, args: &[DatumWithOid]) -> *mut pg_sys::_SPI_plan {
        let kept = self.plan.load(Relaxed);
        if !kept.is_null() {
            return kept;
        }
        let text = CString::new((self.text)()).expect("a query of ours has no NUL");
        let mut types: Vec<_> = args.iter().map(DatumWithOid::oid).collect();
        // SAFETY: connected to SPI; as many types as are said.
        let plan = unsafe {
            let plan = pg_sys::SPI_prepare(text.as_ptr(), types.len() as i32, types.as_mut_ptr());
            if plan.is_null() {
                unexpected::<()>(Spi::check_status(pg_sys::SPI_result).expect_err("there is no plan"));
            }
            pg_sys::SPI_keepplan(plan);
            plan
        };
        self.plan.store(plan, Relaxed);
        plan
    }
}

/// While this lives, the planner prefers plain index scans. A plan is made when the table has a page or two, and kept while
/// updates and deletions bloat it: a sequential scan would cost more with each change. Bitmap scans do not mark dead index
/// entries. A disabled sequential scan that has no alternative inflates the cost and would trigger JIT.
struct ByIndex {
    seqscan: bool,
    bitmapscan: bool,
    jit: bool,
}

impl ByIndex {
    fn new() -> Self {
        // SAFETY: variables of this process, which the planner reads.
        unsafe {
            Self {
                seqscan: (&raw mut pg_sys::enable_seqscan).replace(false),
                bitmapscan: (&raw mut pg_sys::enable_bitmapscan).replace(false),
                jit: (&raw mut pg_sys::jit_enabled).replace(false),
            }
        }
    }
}

impl Drop for ByIndex {
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        unsafe {
            pg_sys::enable_seqscan = self.seqscan;
            pg_sys::enable_bitmapscan = self.bitmapscan;
            pg_sys::jit_enabled = self.jit;
        }
    }
}

/// Runs queries that lock or change rows as READ COMMITTED does: where another transaction has changed a row, they wait for
/// it and go on with the newest version. A transaction with one snapshot would fail with 40001 there, although
/// [`Query::write_latest`] never uses that snapshot.
pub fn as_read_committed<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: in a transaction. Its first snapshot is taken by its own isolation level.
    unsafe { pg_sys::GetTransactionSnapshot() };
    let _level = IsolationLevel::set(pg_sys::XACT_READ_COMMITTED as i32);
    work()
}

/// Restores the isolation level, also after an error.
struct IsolationLevel(i32);

impl IsolationLevel {
    fn set(level: i32) -> Self {
        // SAFETY: a variable of this process. The executor reads it when it finds a changed row.
        Self(unsafe { (&raw mut pg_sys::XactIsoLevel).replace(level) })
    }
}

impl Drop for IsolationLevel {
    fn drop(&mut self) {
        // SAFETY: as in `set`.
        unsafe { pg_sys::XactIsoLevel = self.0 };
    }
}

/// A column that is never NULL.
pub fn value<T: FromDatum + IntoDatum>(row: &SpiHeapTupleData, column: usize) -> T {
    optional(row, column).unwrap_or_else(|| unexpected(pgrx::spi::SpiError::InvalidPosition))
}

/// A text column that is never NULL. A `String` could not be read unless the database has UTF-8.
pub fn text(row: &SpiHeapTupleData, column: usize) -> String {
    value::<Text>(row, column).into()
}

pub fn optional<T: FromDatum + IntoDatum>(row: &SpiHeapTupleData, column: usize) -> Option<T> {
    row.get(column).unwrap_or_else(unexpected)
}

/// PostgreSQL raises its own errors. This error means that the query does not fit the tables.
pub fn unexpected<T>(error: pgrx::spi::SpiError) -> T {
    Report::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("cannot read the tables of {}: {error}", env!("CARGO_PKG_NAME")),
    )
    .hint(concat!(
        "The library and the SQL objects may be of different versions: run ALTER EXTENSION ",
        env!("CARGO_PKG_NAME"),
        " UPDATE."
    ))
    .raise()
}

/// The first value of the first row, with the rights of the user; `None` for NULL or no row. Takes no transaction id, so it
/// works on a standby and in a read-only transaction, which pgrx's short forms do not.
pub fn read_one<T: FromDatum + IntoDatum>(query: &str) -> Option<T> {
    Spi::connect(|client| client.select(query, Some(1), &[])?.first().get_one()).ok().flatten()
}
