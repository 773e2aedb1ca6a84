//! Rows of a table of the extension, reached without SQL: found by the primary key, locked in one version, and written. As
//! PostgreSQL does for its catalogs, and where logical replication applies a row: a statement would cost several times as much,
//! and would lock the newest version of a row where the caller has decided on an older one.
//!
//! What such a write leaves out: triggers, so a table that has any is refused; and rules and row security, which the owner of
//! the table does not need. Constraints, indexes, replica identity and logical decoding are as for any write.

use super::datum::Text;
use super::ereport::errors;
use super::spi::{ExtensionTable, as_role};
use super::xact::{self, Durability};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::ptr::null_mut;

/// A table whose rows are reached by their primary key.
pub struct RowTable<const N: usize> {
    pub table: &'static ExtensionTable,
    /// Names by which callers count columns. Those of the primary key come first, in its order.
    columns: [&'static CStr; N],
    /// The numbers of the columns in the table of this OID, with this many columns.
    known: Mutex<(pg_sys::Oid, i16, [i16; N])>,
}

/// A condition on a column of the primary key. A key has one for each of its first columns.
#[derive(Clone, Copy)]
pub enum Key<'a> {
    Text(&'a str),
    Int(i32),
    IntBelow(i32),
    IntFrom(i32),
}

/// Which versions of rows a scan finds.
#[derive(Clone, Copy)]
pub enum Versions {
    /// What is committed now, and what this transaction has written, even if the transaction's snapshot is older.
    Latest,
    /// What the transaction's snapshot shows.
    OfSnapshot,
    /// All that are not vacuumed.
    All,
}

/// The mode of a lock of a row.
pub trait LockMode {
    const MODE: pg_sys::LockTupleMode::Type;
}

/// Against everyone: of a row that is deleted, or of which fences, which share the key, must know.
pub struct Exclusive;
/// Against other writers.
pub struct NoKey;
/// Against those with the exclusive mode.
pub struct KeyShare;

impl LockMode for Exclusive {
    const MODE: pg_sys::LockTupleMode::Type = pg_sys::LockTupleMode::LockTupleExclusive;
}

impl LockMode for NoKey {
    const MODE: pg_sys::LockTupleMode::Type = pg_sys::LockTupleMode::LockTupleNoKeyExclusive;
}

impl LockMode for KeyShare {
    const MODE: pg_sys::LockTupleMode::Type = pg_sys::LockTupleMode::LockTupleKeyShare;
}

/// What to do about a row that another transaction has locked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Skip,
    Block,
}

/// An open table.
pub struct Rows<const N: usize> {
    relation: pg_sys::Relation,
    index: pg_sys::Oid,
    numbers: [i16; N],
}

/// A version of a row, while the scan is at it or a [`Locked`] owns it.
pub struct Row<'a, const N: usize> {
    rows: &'a Rows<N>,
    tuple: pg_sys::HeapTuple,
}

/// A version of a row that this transaction has locked in the mode; no newer one is committed.
pub struct Locked<'a, M: LockMode, const N: usize> {
    row: Row<'a, N>,
    mode: PhantomData<M>,
}

impl<const N: usize> RowTable<N> {
    pub const fn new(table: &'static ExtensionTable, columns: [&'static CStr; N]) -> Self {
        Self { table, columns, known: Mutex::new((pg_sys::InvalidOid, 0, [0; N])) }
    }

    /// Works with the table open, and locked no longer than that: a queued ALTER TABLE would block everyone behind a session
    /// that keeps the lock and sleeps.
    pub fn read<R>(&self, work: impl FnOnce(&Rows<N>) -> R) -> R {
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
    pub fn write<R>(&self, work: impl FnOnce(&Rows<N>) -> Option<R>) -> Option<R> {
        xact::owning_locks(|| {
            let mode = pg_sys::RowExclusiveLock;
            let table = self.table.lock(mode);
            let result = self.open(table, |rows| {
                rows.require_plain();
                work(rows)
            });
            if result.is_none() {
                ExtensionTable::unlock(table, mode);
            }
            result
        })
    }

    /// An error leaves it to the end of the (sub)transaction to close the table.
    fn open<R>(&self, table: pg_sys::Oid, work: impl FnOnce(&Rows<N>) -> R) -> R {
        // SAFETY: the table is locked by the caller, and closed after its last use.
        unsafe {
            let relation = pg_sys::table_open(table, pg_sys::NoLock as i32);
            let rows = Rows { relation, index: primary_key(relation), numbers: self.numbers(relation) };
            let result = work(&rows);
            pg_sys::table_close(relation, pg_sys::NoLock as i32);
            result
        }
    }

    /// A number is never used again, so they stay as they are while the table has as many.
    ///
    /// # Safety
    /// The relation is open.
    unsafe fn numbers(&self, relation: pg_sys::Relation) -> [i16; N] {
        // SAFETY: by the above; C strings.
        unsafe {
            let (table, count) = ((*relation).rd_id, (*(*relation).rd_att).natts as i16);
            let mut known = self.known.lock();
            if (known.0, known.1) != (table, count) {
                let number = |name: &CStr| pg_sys::SPI_fnumber((*relation).rd_att, name.as_ptr()) as i16;
                *known = (table, count, self.columns.map(number));
            }
            known.2
        }
    }
}

/// # Safety
/// The relation is open.
unsafe fn primary_key(relation: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: by the above.
    unsafe {
        #[cfg(not(any(feature = "pg18", feature = "pg19")))]
        return pg_sys::RelationGetPrimaryKeyIndex(relation);
        #[cfg(any(feature = "pg18", feature = "pg19"))]
        return pg_sys::RelationGetPrimaryKeyIndex(relation, false);
    }
}

impl<const N: usize> Rows<N> {
    /// A superuser can change a table of the extension.
    fn require_plain(&self) {
        // SAFETY: the relation is open.
        let (form, has_triggers) = unsafe { (&*(*self.relation).rd_rel, !(*self.relation).trigdesc.is_null()) };
        if has_triggers || form.relam != pg_sys::HEAP_TABLE_AM_OID || self.index == pg_sys::InvalidOid {
            // SAFETY: the name of an open relation.
            let name = super::datum::name(unsafe { CStr::from_ptr(form.relname.data.as_ptr()) });
            changed_table(&name).raise();
        }
    }

    /// Reads the versions of a key in its order, until `read` returns a value.
    pub fn find<R>(&self, key: &[Key], versions: Versions, read: impl FnMut(&Row<N>) -> Option<R>) -> Option<R> {
        with_snapshot(versions, |snapshot| self.scan(key, snapshot, read))
    }

    fn scan<R>(
        &self,
        key: &[Key],
        snapshot: pg_sys::Snapshot,
        mut read: impl FnMut(&Row<N>) -> Option<R>,
    ) -> Option<R> {
        let mut keys: [pg_sys::ScanKeyData; 2] = Default::default();
        let keys = &mut keys[..key.len()];
        // SAFETY: the relation is open and a heap, and the columns of its primary key have these types. `keys` outlives the
        // scan. The scan returns tuples of pinned pages, which the next call releases; `read` keeps no reference to them.
        // Without an index, the scan reads the table.
        unsafe {
            for ((key, number), filled) in key.iter().zip(&self.numbers).zip(keys.iter_mut()) {
                key.fill(filled, *number);
            }
            let has_index = self.index != pg_sys::InvalidOid;
            let (count, keys) = (keys.len() as i32, keys.as_mut_ptr());
            let scan = pg_sys::systable_beginscan(self.relation, self.index, has_index, snapshot, count, keys);
            let next = || Some(pg_sys::systable_getnext(scan)).filter(|tuple| !tuple.is_null());
            let found = std::iter::from_fn(next).find_map(|tuple| read(&Row { rows: self, tuple }));
            pg_sys::systable_endscan(scan);
            found
        }
    }

    /// What `read` makes of each version of a key.
    pub fn all<R>(&self, key: &[Key], versions: Versions, read: impl Fn(&Row<N>) -> R) -> Vec<R> {
        let mut found = Vec::new();
        self.find(key, versions, |row| {
            found.push(read(row));
            None::<()>
        });
        found
    }

    /// Locks the newest version of the first row of a key that is wanted. `None` if there is none, or if a transaction that is
    /// not waited for has locked it. A version that is not wanted is never locked: its holder could not write it.
    pub fn lock<M: LockMode>(
        &self,
        key: &[Key],
        wait: Wait,
        is_wanted: impl Fn(&Row<N>) -> bool,
    ) -> Option<Locked<'_, M, N>> {
        loop {
            // The snapshot keeps the version from being vacuumed before it is locked.
            let outcome = with_snapshot(Versions::Latest, |snapshot| {
                let version = self.scan(key, snapshot, |row| is_wanted(row).then(|| row.version()))?;
                Some(self.lock_version::<M>(version, wait))
            })?;
            match outcome {
                Ok(locked) => return Some(locked),
                Err(IsLocked) => return None,
                Err(WasReplaced) => {}
            }
            check_for_interrupts!();
        }
    }

    fn lock_version<M: LockMode>(
        &self,
        version: pg_sys::ItemPointerData,
        wait: Wait,
    ) -> Result<Locked<'_, M, N>, NotLocked> {
        let policy = match wait {
            Wait::Skip => pg_sys::LockWaitPolicy::LockWaitSkip,
            Wait::Block => pg_sys::LockWaitPolicy::LockWaitBlock,
        };
        // SAFETY: the relation is open and a heap, and a scan has found the version in this transaction. The tuple is copied
        // before its page is released. With `follow`, a shared lock holds for a version that another transaction is writing.
        unsafe {
            let mut tuple =
                pg_sys::HeapTupleData { t_self: version, t_tableOid: (*self.relation).rd_id, ..Default::default() };
            let (mut buffer, mut failure) = (0, pg_sys::TM_FailureData::default());
            let (command, follow) = (pg_sys::GetCurrentCommandId(true), true);
            let outcome = pg_sys::heap_lock_tuple(
                self.relation,
                &mut tuple,
                command,
                M::MODE,
                policy,
                follow,
                &mut buffer,
                &mut failure,
            );
            let result = match outcome {
                pg_sys::TM_Result::TM_Ok => Ok(pg_sys::heap_copytuple(&mut tuple)),
                pg_sys::TM_Result::TM_WouldBlock => Err(IsLocked),
                _ => Err(WasReplaced),
            };
            pg_sys::ReleaseBuffer(buffer);
            result.map(|tuple| Locked { row: Row { rows: self, tuple }, mode: PhantomData })
        }
    }
}

enum NotLocked {
    /// By a transaction that is not waited for.
    IsLocked,
    /// A newer version is committed, or the row is deleted.
    WasReplaced,
}
use NotLocked::*;

fn with_snapshot<R>(versions: Versions, work: impl FnOnce(pg_sys::Snapshot) -> R) -> R {
    // SAFETY: in a transaction. A snapshot that is registered is a copy, which nothing else frees. After an error, the end of
    // the (sub)transaction frees it.
    unsafe {
        let snapshot = match versions {
            Versions::Latest => pg_sys::GetCatalogSnapshot(pg_sys::InvalidOid),
            Versions::OfSnapshot => pg_sys::GetTransactionSnapshot(),
            Versions::All => return work(&raw mut pg_sys::SnapshotAnyData),
        };
        let snapshot = pg_sys::RegisterSnapshot(snapshot);
        let result = work(snapshot);
        pg_sys::UnregisterSnapshot(snapshot);
        result
    }
}

impl Key<'_> {
    /// # Safety
    /// The column has the type of the value.
    unsafe fn fill(self, key: &mut pg_sys::ScanKeyData, column: i16) {
        use pg_sys::{BTEqualStrategyNumber, BTGreaterEqualStrategyNumber, BTLessStrategyNumber};
        let (strategy, compare, value) = match self {
            Self::Text(text) => (BTEqualStrategyNumber, pg_sys::F_TEXTEQ, Text::from(text).into_datum()),
            Self::Int(int) => (BTEqualStrategyNumber, pg_sys::F_INT4EQ, int.into_datum()),
            Self::IntBelow(int) => (BTLessStrategyNumber, pg_sys::F_INT4LT, int.into_datum()),
            Self::IntFrom(int) => (BTGreaterEqualStrategyNumber, pg_sys::F_INT4GE, int.into_datum()),
        };
        let (any, collation) = (pg_sys::InvalidOid, pg_sys::DEFAULT_COLLATION_OID);
        let value = value.expect("not NULL");
        // SAFETY: fills in the key, which is a local. Integers have no collation, and ignore it.
        unsafe {
            pg_sys::ScanKeyEntryInitialize(key, 0, column, strategy as u16, any, collation, compare.into(), value)
        };
    }
}

impl<const N: usize> Row<'_, N> {
    fn datum(&self, column: usize) -> (pg_sys::Datum, bool) {
        let mut is_null = false;
        // SAFETY: a tuple of this relation, which is open.
        let datum = unsafe {
            let columns = (*self.rows.relation).rd_att;
            pg_sys::SPI_getbinval(self.tuple, columns, self.rows.numbers[column].into(), &mut is_null)
        };
        (datum, is_null)
    }

    /// The value of a column; `None` for NULL.
    pub fn optional<T: FromDatum>(&self, column: usize) -> Option<T> {
        let (datum, is_null) = self.datum(column);
        // SAFETY: callers name the type of the column. A value by reference is copied or detoasted.
        unsafe { T::from_datum(datum, is_null) }
    }

    /// A column that is never NULL.
    pub fn value<T: FromDatum>(&self, column: usize) -> T {
        self.optional(column).unwrap_or_else(|| unreadable().raise())
    }

    pub fn text(&self, column: usize) -> Option<String> {
        self.optional::<Text>(column).map(String::from)
    }

    fn version(&self) -> pg_sys::ItemPointerData {
        // SAFETY: a tuple of the scan.
        unsafe { (*self.tuple).t_self }
    }

    /// The transaction that has inserted this version; `None` if every snapshot shows it.
    pub fn inserted_by(&self) -> Option<pg_sys::TransactionId> {
        // SAFETY: a tuple of a table has these fields, and not those of a composite value.
        unsafe {
            let header = &*(*self.tuple).t_data;
            (!has(header, pg_sys::HEAP_XMIN_FROZEN)).then_some(header.t_choice.t_heap.t_xmin)
        }
    }

    /// The transaction that has updated or deleted this version, and not only locked it.
    pub fn replaced_by(&self) -> Option<pg_sys::TransactionId> {
        // SAFETY: as above. A multixact that is not only a lock has a member that updated the version.
        unsafe {
            let header = (*self.tuple).t_data;
            if has(&*header, pg_sys::HEAP_XMAX_INVALID) || has(&*header, pg_sys::HEAP_XMAX_LOCK_ONLY) {
                return None;
            }
            let xid = match has(&*header, pg_sys::HEAP_XMAX_IS_MULTI) {
                true => pg_sys::HeapTupleGetUpdateXid(header),
                false => (*header).t_choice.t_heap.t_xmax,
            };
            Some(xid).filter(|xid| *xid != pg_sys::InvalidTransactionId)
        }
    }
}

fn has(header: &pg_sys::HeapTupleHeaderData, bits: u32) -> bool {
    u32::from(header.t_infomask) & bits == bits
}

impl<'a, M: LockMode, const N: usize> Locked<'a, M, N> {
    pub fn row(&self) -> &Row<'a, N> {
        &self.row
    }
}

impl<M: LockMode, const N: usize> Drop for Locked<'_, M, N> {
    fn drop(&mut self) {
        // SAFETY: a copy of its own.
        unsafe { pg_sys::heap_freetuple(self.row.tuple) };
    }
}

/// A mode that allows writes.
pub trait WriteMode: LockMode {}
impl WriteMode for Exclusive {}
impl WriteMode for NoKey {}

impl<M: WriteMode, const N: usize> Locked<'_, M, N> {
    /// Changes these columns; `None` is NULL. A crash after the commit does not undo it.
    pub fn update<const C: usize>(self, values: [(usize, Option<pg_sys::Datum>); C]) {
        xact::require_durability(Durability::Crash);
        self.update_losably(values);
    }

    /// The same for what a crash may undo.
    pub fn update_losably<const C: usize>(self, values: [(usize, Option<pg_sys::Datum>); C]) {
        let Rows { relation, numbers, .. } = *self.row.rows;
        let mut columns = values.map(|(column, _)| i32::from(numbers[column]));
        let mut is_null = values.map(|(_, value)| value.is_none());
        let mut values = values.map(|(_, value)| value.unwrap_or(pg_sys::Datum::null()));
        // SAFETY: the relation is open, and the values have the types of its columns.
        unsafe {
            let tuple = pg_sys::heap_modify_tuple_by_cols(
                self.row.tuple,
                (*relation).rd_att,
                C as i32,
                columns.as_mut_ptr(),
                values.as_mut_ptr(),
                is_null.as_mut_ptr(),
            );
            write(relation, self.row.version(), Some(tuple));
            pg_sys::heap_freetuple(tuple);
        }
    }
}

impl<const N: usize> Locked<'_, Exclusive, N> {
    pub fn delete(self) {
        // SAFETY: the relation is open.
        unsafe { write(self.row.rows.relation, self.row.version(), None) };
    }
}

/// Replaces a version, or deletes it, with the rights of the table's owner. The next command of this transaction sees that.
///
/// # Safety
/// The relation is open, and this transaction has locked the version against writers.
unsafe fn write(relation: pg_sys::Relation, version: pg_sys::ItemPointerData, tuple: Option<pg_sys::HeapTuple>) {
    // SAFETY: by the above. The functions of logical replication find the version by its position only, because there is no
    // trigger. They fail if another transaction has replaced it, which the lock excludes. Everything is freed with the state.
    let write = || unsafe {
        let state = pg_sys::CreateExecutorState();
        let context = pg_sys::MemoryContextSwitchTo((*state).es_query_cxt);
        let mut target = pg_sys::ResultRelInfo::default();
        pg_sys::InitResultRelInfo(&mut target, relation, 0, null_mut(), 0);
        pg_sys::ExecOpenIndices(&mut target, false);
        let slot = || pg_sys::MakeSingleTupleTableSlot((*relation).rd_att, &raw const pg_sys::TTSOpsHeapTuple);
        let (old, mut recheck) = (slot(), pg_sys::EPQState::default());
        (*old).tts_tid = version;
        match tuple {
            Some(tuple) => {
                let new = pg_sys::ExecStoreHeapTuple(tuple, slot(), false);
                pg_sys::ExecSimpleRelationUpdate(&mut target, state, &mut recheck, old, new);
                pg_sys::ExecDropSingleTupleTableSlot(new);
            }
            None => pg_sys::ExecSimpleRelationDelete(&mut target, state, &mut recheck, old),
        }
        pg_sys::ExecDropSingleTupleTableSlot(old);
        pg_sys::ExecCloseIndices(&mut target);
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::FreeExecutorState(state);
        pg_sys::CommandCounterIncrement();
    };
    // SAFETY: the relation is open.
    let owner = unsafe { (*(*relation).rd_rel).relowner };
    as_role(owner, pg_sys::SECURITY_NOFORCE_RLS, write);
}

errors! {
    fn changed_table(table: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "table \"{table}\" of extension idgen was changed";
        detail: "It has a trigger, another access method, or no primary key. idgen writes its rows without SQL.";
        hint: "Undo that. To observe leases, define them with notify => true.";
    }

    fn unreadable() {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "a table of extension idgen lacks a value";
        hint: "The library and the SQL objects may be of different versions: run ALTER EXTENSION idgen UPDATE.";
    }
}
