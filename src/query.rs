//! Queries on idgen's own tables. Every name in them is qualified: see [`crate::owner`].

use crate::encoding::{self, Text};
use crate::error;
use crate::owner::{self, Table};
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// The predefined role `pg_read_all_stats`, which no header of PostgreSQL names for C.
const READ_ALL_STATS: pg_sys::Oid = pg_sys::Oid::from_u32(3375);

/// With whose rights a query runs.
enum Rights {
    OwnerOf(&'static Table),
    ReadAllStats,
}

/// A query whose plan the process keeps from its first use on.
pub struct Query {
    rights: Rights,
    text: fn() -> String,
    plan: AtomicPtr<pg_sys::_SPI_plan>,
}

impl Query {
    /// A query on a table of the extension, and on others of it.
    pub const fn new(table: &'static Table, text: fn() -> String) -> Self {
        Self { rights: Rights::OwnerOf(table), text, plan: AtomicPtr::new(null_mut()) }
    }

    /// A query on the statistics of the server.
    pub const fn of_statistics(text: fn() -> String) -> Self {
        Self { rights: Rights::ReadAllStats, text, plan: AtomicPtr::new(null_mut()) }
    }

    /// Rows as they are now, also where the transaction's own snapshot is older. Begins no new command, which the leader of
    /// a parallel plan must not.
    pub fn look<R>(&self, args: &[DatumWithOid], read: impl Fn(&SpiHeapTupleData) -> R) -> Vec<R> {
        // SAFETY: a snapshot of its own for each look, because no table has this number. Whoever runs the plan makes it
        // the active one.
        self.run(args, read, true, || unsafe { pg_sys::GetCatalogSnapshot(pg_sys::InvalidOid) })
    }

    /// Changes or locks rows as they are now, and returns what the query returns.
    pub fn write<R>(&self, args: &[DatumWithOid], read: impl Fn(&SpiHeapTupleData) -> R) -> Vec<R> {
        // SAFETY: as in `look`; whoever runs the plan copies it.
        self.run(args, read, false, || unsafe { pg_sys::GetLatestSnapshot() })
    }

    /// Rows as the transaction's own snapshot shows them.
    pub fn see<R>(&self, args: &[DatumWithOid], read: impl Fn(&SpiHeapTupleData) -> R) -> Vec<R> {
        // SAFETY: as in `look`.
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

/// Plans that are made while this lives find rows by an index, and in its order. A plan is made when a table is a page or two
/// long, and kept while the remains of updates and deletions make it longer: to read it from end to end costs more with
/// each change then. Of what an index leads to, a bitmap forgets what was found dead. What has no index is read from end to
/// end all the same; PostgreSQL takes that for dear then, and would compile it.
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

/// Runs queries that lock or change rows as READ COMMITTED does: where another transaction has changed a row, they wait for it
/// and go on with the newest version. A transaction with one snapshot would end with 40001 there, although [`Query::write`]
/// never uses that snapshot.
pub fn as_read_committed<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: in a transaction. Its first snapshot is taken by its own isolation level.
    unsafe { pg_sys::GetTransactionSnapshot() };
    let _level = IsolationLevel::set(pg_sys::XACT_READ_COMMITTED as i32);
    work()
}

/// The isolation level to return to, also after an error.
struct IsolationLevel(i32);

impl IsolationLevel {
    fn set(level: i32) -> Self {
        // SAFETY: a variable of this process. The executor reads it where it meets a row that was changed.
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

/// A column of texts. What is not a `Text` cannot be read in a database of another encoding than UTF-8.
pub fn text(row: &SpiHeapTupleData, column: usize) -> String {
    value::<Text>(row, column).into()
}

pub fn optional<T: FromDatum + IntoDatum>(row: &SpiHeapTupleData, column: usize) -> Option<T> {
    row.get(column).unwrap_or_else(unexpected)
}

/// What PostgreSQL itself reports ends the statement before; this is left for a query or a type that is wrong in here.
pub fn unexpected<T>(error: pgrx::spi::SpiError) -> T {
    error::own_table(&error).raise()
}
