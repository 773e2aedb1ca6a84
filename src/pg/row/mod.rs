//! Rows of a table of the extension, reached without SQL: found by their key, locked in one version, and written. As
//! PostgreSQL does for its catalogs, and where logical replication applies a row: a statement would cost several times as much,
//! and would lock the newest version of a row where the caller has decided on an older one.
//!
//! What such a write leaves out: triggers, constraints and generated columns, so a table with any is refused; and rules and
//! row security, which the owner of the table does not need. Indexes, replica identity and logical decoding are as for any write.

use super::advisory_lock::{Limit, within};
use super::ereport::errors;
use super::spi::ExtensionTable;
use super::xact;
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::ffi::{CStr, CString};
use std::ptr::null_mut;

mod heap;
mod scan;
mod write;

use scan::NO_VERSION;
pub use scan::{Key, LatestRows, Row, Version};
pub use write::{Locked, NewValue, Wait};

/// A table whose rows are reached by their key.
pub struct RowTable<const N: usize> {
    table: &'static ExtensionTable,
    /// Names by which callers count columns. Those of the key come first, in its order.
    columns: [&'static CStr; N],
    /// So many columns are the key.
    key_columns: usize,
    known: Mutex<Known<N>>,
    /// The version that this process has written last: the next call is often for the same row.
    last: Mutex<(pg_sys::Oid, Version)>,
}

/// The numbers of the columns in the table of this OID, with this many columns, and an index of its key.
#[derive(Clone, Copy)]
struct Known<const N: usize> {
    table: pg_sys::Oid,
    count: i16,
    numbers: [i16; N],
    index: pg_sys::Oid,
}

pub struct Rows<const N: usize> {
    relation: pg_sys::Relation,
    last: &'static Mutex<(pg_sys::Oid, Version)>,
    index: pg_sys::Oid,
    numbers: [i16; N],
}

impl<const N: usize> RowTable<N> {
    pub const fn new(table: &'static ExtensionTable, columns: [&'static CStr; N], key_columns: usize) -> Self {
        let known = Known { table: pg_sys::InvalidOid, count: 0, numbers: [0; N], index: pg_sys::InvalidOid };
        Self { table, columns, key_columns, known: Mutex::new(known), last: Mutex::new(NO_VERSION) }
    }

    /// Works with the table open, and locked no longer than that: a queued ALTER TABLE would block everyone behind a session
    /// that keeps the lock and sleeps.
    pub fn read<R>(&'static self, work: impl FnOnce(&Rows<N>) -> R) -> R {
        xact::owning_locks(|| {
            let mode = pg_sys::AccessShareLock;
            let table = self.table.lock(mode);
            let result = self.open(table, work);
            ExtensionTable::unlock(table, mode);
            result
        })
    }

    /// Works with the table open, and locked until the transaction ends if the work returns a value. Work that returns `None`
    /// must have written nothing.
    pub fn write<R>(&'static self, work: impl FnOnce(&Rows<N>) -> Option<R>) -> Option<R> {
        xact::owning_locks(|| self.write_locked(self.table.lock(pg_sys::RowExclusiveLock), work))
    }

    /// The same for a caller whose time is limited. `None` too, or the error of `lock_timeout`, if the table is locked.
    pub fn write_within<R>(&'static self, limit: Limit, work: impl FnOnce(&Rows<N>) -> Option<R>) -> Option<R> {
        let mode = pg_sys::RowExclusiveLock;
        xact::owning_locks(|| {
            let table = self.table.try_lock(mode).or_else(|| within(limit, || self.table.lock(mode)))?;
            self.write_locked(table, work)
        })
    }

    fn write_locked<R>(&'static self, table: pg_sys::Oid, work: impl FnOnce(&Rows<N>) -> Option<R>) -> Option<R> {
        let result = self.open(table, |rows| {
            rows.require_plain();
            work(rows)
        });
        if result.is_none() {
            ExtensionTable::unlock(table, pg_sys::RowExclusiveLock);
        }
        result
    }

    /// An error leaves it to the end of the (sub)transaction to close the table.
    fn open<R>(&'static self, table: pg_sys::Oid, work: impl FnOnce(&Rows<N>) -> R) -> R {
        // SAFETY: the table is locked by the caller, and closed after its last use.
        unsafe {
            let relation = pg_sys::table_open(table, pg_sys::NoLock as i32);
            let Known { index, numbers, .. } = self.known(relation);
            let rows = Rows { relation, last: &self.last, index, numbers };
            let result = work(&rows);
            pg_sys::table_close(relation, pg_sys::NoLock as i32);
            result
        }
    }

    /// The number of a column is never used again, nor the OID of an index, and both stay as they are. An index that is not that
    /// of the replica identity can be another one at each call.
    ///
    /// # Safety
    /// The relation is open.
    unsafe fn known(&self, relation: pg_sys::Relation) -> Known<N> {
        // SAFETY: by the above; C strings.
        unsafe {
            let (table, count) = ((*relation).rd_id, (*(*relation).rd_att).natts as i16);
            let identity = pg_sys::RelationGetReplicaIndex(relation);
            let mut known = *self.known.lock();
            if (known.table, known.count) != (table, count) {
                let numbers = self.columns.map(|name| pg_sys::SPI_fnumber((*relation).rd_att, name.as_ptr()) as i16);
                if numbers.iter().any(|number| *number <= 0) {
                    unreadable().raise();
                }
                known = Known { table, count, numbers, index: pg_sys::InvalidOid };
            }
            if identity == pg_sys::InvalidOid || identity != known.index {
                known.index = key_of(relation, identity, &known.numbers[..self.key_columns]);
                *self.known.lock() = known;
            }
            known
        }
    }
}

/// What the running statement sees. In stricter levels than READ COMMITTED, with what the transaction has written in between.
fn statement_snapshot() -> pg_sys::Snapshot {
    // SAFETY: a function that SQL has called has a snapshot, and a transaction with one keeps it.
    unsafe { if xact::is_read_committed() { pg_sys::GetActiveSnapshot() } else { pg_sys::GetTransactionSnapshot() } }
}

/// The index of these columns: that of the replica identity, by default the primary key, which the tables of earlier versions
/// have. Where tools have set another identity, the index has the name that idgen gives it.
///
/// # Safety
/// The relation is open.
unsafe fn key_of(relation: pg_sys::Relation, identity: pg_sys::Oid, key: &[i16]) -> pg_sys::Oid {
    // SAFETY: by the above. The names are C strings.
    unsafe {
        let table_id = (*relation).rd_id;
        if is_index_of(identity, table_id, key) {
            return identity;
        }
        let form = &*(*relation).rd_rel;
        let table = CStr::from_ptr(form.relname.data.as_ptr()).to_bytes();
        let named = |suffix: &[u8]| {
            let name = CString::new([table, suffix].concat()).expect("a name has no NUL");
            pg_sys::get_relname_relid(name.as_ptr(), form.relnamespace)
        };
        [named(b"_key"), named(b"_pkey")]
            .into_iter()
            .find(|index| is_index_of(*index, table_id, key))
            .unwrap_or_default()
    }
}

/// True if this is a valid and unique index of all rows on these columns, in the collation by which they are compared.
fn is_index_of(index: pg_sys::Oid, table: pg_sys::Oid, key: &[i16]) -> bool {
    let cache = pg_sys::SysCacheIdentifier::INDEXRELID as i32;
    let (predicate, collation) = (pg_sys::Anum_pg_index_indpred as i32, pg_sys::Anum_pg_index_indcollation as i16);
    // SAFETY: the tuple is of that catalog, and read before it is released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(cache, index.into());
        if tuple.is_null() {
            return false;
        }
        let form = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_index>();
        let columns = form.indkey.values.as_slice(form.indnkeyatts as usize);
        let is_whole = form.indisunique && form.indisvalid && pg_sys::heap_attisnull(tuple, predicate, null_mut());
        // Of the name, the first column. It is never NULL.
        let collations = pg_sys::SysCacheGetAttr(cache, tuple, collation, &mut false);
        let collations = &(*collations.cast_mut_ptr::<pg_sys::oidvector>()).values;
        let is_compared = collations.as_slice(1) == [pg_sys::DEFAULT_COLLATION_OID];
        let is_it = form.indrelid == table && columns == key && is_compared && is_whole;
        pg_sys::ReleaseSysCache(tuple);
        is_it
    }
}

impl<const N: usize> Rows<N> {
    /// A superuser can change a table of the extension.
    fn require_plain(&self) {
        // SAFETY: the relation is open.
        let (form, has_more) = unsafe {
            let constraints = (*(*self.relation).rd_att).constr.as_ref();
            let has_checks = constraints.is_some_and(|all| all.num_check > 0 || all.has_generated_stored);
            (&*(*self.relation).rd_rel, has_checks || !(*self.relation).trigdesc.is_null())
        };
        if has_more || form.relam != pg_sys::HEAP_TABLE_AM_OID || self.index == pg_sys::InvalidOid {
            // SAFETY: the name of an open relation.
            let name = super::datum::name(unsafe { CStr::from_ptr(form.relname.data.as_ptr()) });
            changed_table(&name).raise();
        }
    }
}

errors! {
    fn changed_table(table: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "table \"{table}\" of extension idgen was changed";
        detail: "It has a trigger, a check, a generated column, another access method, or no key. idgen writes its rows \
            without SQL.";
        hint: "Undo that. To observe leases, define them with notify => true.";
    }

    fn changed_under_lock() {
        ERRCODE_T_R_SERIALIZATION_FAILURE: "could not serialize access: a row has changed although it is locked";
    }

    fn unreadable() {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "a table of extension idgen lacks a column or a value";
        hint: "The library and the SQL objects may be of different versions: run ALTER EXTENSION idgen UPDATE.";
    }
}
