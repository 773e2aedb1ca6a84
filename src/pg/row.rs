//! Rows of a table of the extension, reached without SQL: found by the primary key, locked in one version, and written. As
//! PostgreSQL does for its catalogs, and where logical replication applies a row: a statement would cost several times as much,
//! and would lock the newest version of a row where the caller has decided on an older one.
//!
//! What such a write leaves out: triggers, constraints and generated columns, so a table with any is refused; and rules and
//! row security, which the owner of the table does not need. Indexes, replica identity and logical decoding are as for any write.

use super::advisory_lock::{Limit, within};
use super::datum::Text;
use super::ereport::errors;
use super::spi::{ExtensionTable, as_role};
use super::xact::{self, Durability};
use parking_lot::Mutex;
use pg_sys::LockTupleMode::*;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::ptr::null_mut;

/// A table whose rows are reached by their primary key.
pub struct RowTable<const N: usize> {
    pub table: &'static ExtensionTable,
    /// Names by which callers count columns. Those of the primary key come first, in its order.
    columns: [&'static CStr; N],
    /// The numbers of the columns in the table of this OID, with this many columns.
    known: Mutex<(pg_sys::Oid, i16, [i16; N])>,
    /// The version that this process has written last: the next call is often for the same row.
    last: Mutex<(pg_sys::Oid, Version)>,
}

/// A condition on a column of the primary key. A key has one for each of its first columns.
#[derive(Clone, Copy)]
pub enum Key<'a> {
    Text(&'a str),
    Int(i32),
    IntBelow(i32),
    IntFrom(i32),
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
    last: &'static Mutex<(pg_sys::Oid, Version)>,
    index: pg_sys::Oid,
    numbers: [i16; N],
}

/// An open table, as the latest snapshot shows it. That snapshot keeps versions from being vacuumed.
pub struct LatestRows<'a, const N: usize> {
    rows: &'a Rows<N>,
    snapshot: pg_sys::Snapshot,
}

/// The values of a tuple, by the columns of the table.
struct Values {
    values: Vec<pg_sys::Datum>,
    is_null: Vec<bool>,
}

/// A version of a row, while the scan is at it or a [`Locked`] owns it.
pub struct Row<'a, const N: usize> {
    numbers: &'a [i16; N],
    tuple: pg_sys::HeapTuple,
    buffer: pg_sys::Buffer,
    values: &'a Values,
}

/// Where a version of a row is.
#[derive(Clone, Copy)]
pub struct Version {
    position: pg_sys::ItemPointerData,
    /// The buffer that had the page when the version was read.
    buffer: pg_sys::Buffer,
}

const NO_VERSION: (pg_sys::Oid, Version) = {
    let position = pg_sys::ItemPointerData { ip_blkid: pg_sys::BlockIdData { bi_hi: 0, bi_lo: 0 }, ip_posid: 0 };
    (pg_sys::InvalidOid, Version { position, buffer: 0 })
};

/// A version of a row that this transaction has locked against everyone, also against those that share its key. No newer one
/// is committed.
pub struct Locked<'a, const N: usize>(Copied<'a, N>);

/// A copy of a version.
struct Copied<'a, const N: usize> {
    rows: &'a Rows<N>,
    tuple: pg_sys::HeapTuple,
    buffer: pg_sys::Buffer,
    values: Values,
}

/// New values of columns; `None` is NULL.
pub type NewValues<const C: usize> = [(usize, Option<pg_sys::Datum>); C];

impl<const N: usize> RowTable<N> {
    pub const fn new(table: &'static ExtensionTable, columns: [&'static CStr; N]) -> Self {
        Self { table, columns, known: Mutex::new((pg_sys::InvalidOid, 0, [0; N])), last: Mutex::new(NO_VERSION) }
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

    /// The same if the table can be locked at once. Otherwise `None`.
    pub fn try_write<R>(&'static self, work: impl FnOnce(&Rows<N>) -> Option<R>) -> Option<R> {
        xact::owning_locks(|| self.write_locked(self.table.try_lock(pg_sys::RowExclusiveLock)?, work))
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
            let (index, numbers) = (primary_key(relation), self.numbers(relation));
            let rows = Rows { relation, last: &self.last, index, numbers };
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
                let numbers = self.columns.map(number);
                if numbers.iter().any(|number| *number <= 0) {
                    unreadable().raise();
                }
                *known = (table, count, numbers);
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

    /// Works on what is committed now, and what this transaction has written, even if the transaction's snapshot is older.
    pub fn latest<R>(&self, work: impl FnOnce(&LatestRows<N>) -> R) -> R {
        // SAFETY: in a transaction. A snapshot that is registered is a copy, which nothing else frees. After an error, the end
        // of the (sub)transaction frees it.
        unsafe {
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetCatalogSnapshot(pg_sys::InvalidOid));
            let result = work(&LatestRows { rows: self, snapshot });
            pg_sys::UnregisterSnapshot(snapshot);
            result
        }
    }

    /// As [`LatestRows::find`], of what the transaction's snapshot shows.
    pub fn find_in_snapshot<R>(&self, key: &[Key], read: impl FnMut(&Row<N>) -> Option<R>) -> Option<R> {
        // SAFETY: in a transaction, which keeps its snapshot while a statement runs.
        self.scan(key, unsafe { pg_sys::GetTransactionSnapshot() }, read)
    }

    /// The same of all versions that are not vacuumed.
    pub fn find_in_all<R>(&self, key: &[Key], read: impl FnMut(&Row<N>) -> Option<R>) -> Option<R> {
        self.scan(key, &raw mut pg_sys::SnapshotAnyData, read)
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
            let mut values = Values::new(self.relation);
            let next = || Some(pg_sys::systable_getnext(scan)).filter(|tuple| !tuple.is_null());
            let found = std::iter::from_fn(next).find_map(|tuple| {
                values.fill(self.relation, tuple);
                let buffer = (*(*scan).slot.cast::<pg_sys::BufferHeapTupleTableSlot>()).buffer;
                read(&Row { numbers: &self.numbers, tuple, buffer, values: &values })
            });
            pg_sys::systable_endscan(scan);
            found
        }
    }

    /// Locks the newest version of the first row of a key that is wanted, against everyone. `None` if there is none, or if a
    /// transaction that is not waited for has locked it. A version that is not wanted is never locked: its holder could not
    /// write it.
    pub fn lock(&self, key: &[Key], wait: Wait, is_wanted: impl Fn(&Row<N>) -> bool) -> Option<Locked<'_, N>> {
        self.newest(
            key,
            |row| is_wanted(row).then(|| row.version()),
            |version| self.lock_version(version, LockTupleExclusive, wait).map(Locked),
        )
    }

    /// The same with the key shared: others may write the row, but neither lock it against everyone nor delete it. Returns what
    /// was read.
    pub fn share<R>(&self, key: &[Key], read: impl Fn(&Row<N>) -> Option<R>) -> Option<R> {
        let read = |row: &Row<N>| Some((row.version(), read(row)?));
        self.newest(key, read, |(version, found)| {
            self.lock_version(version, LockTupleKeyShare, Wait::Block).map(|_| found)
        })
    }

    /// Updates the newest version of the first row of a key for which there is a change, beside those who share the key. A crash
    /// may undo it. Waits for others who have locked it, and then asks for the change again.
    pub fn update<const C: usize, R>(
        &self,
        key: &[Key],
        change: impl Fn(&Row<N>) -> Option<(NewValues<C>, R)>,
    ) -> Option<R> {
        let found = |row: &Row<N>| {
            let (values, changed) = change(row)?;
            Some((row.version(), self.modified(row.tuple, values), changed))
        };
        self.newest(key, found, |(version, tuple, changed)| {
            // SAFETY: the relation is open, and a snapshot shows the version.
            let outcome = unsafe { self.write(version, tuple, false) };
            if outcome != Err(IsLocked) {
                return outcome.map(|()| changed);
            }
            let locked = self.lock_version(version, LockTupleNoKeyExclusive, Wait::Block)?;
            // By the clock of now.
            let (values, changed) = change(&locked.row()).ok_or(WasReplaced)?;
            // SAFETY: as above. Only those who share the key can be waited for, and they are not.
            unsafe { self.write(version, self.modified(locked.tuple, values), true) }.map(|()| changed)
        })
    }

    /// Tries the newest version that `read` wants until it is not replaced meanwhile.
    fn newest<V, R>(
        &self,
        key: &[Key],
        read: impl Fn(&Row<N>) -> Option<V>,
        attempt: impl Fn(V) -> Result<R, NotLocked>,
    ) -> Option<R> {
        loop {
            match self
                .latest(|latest| latest.find_last(key, &read).or_else(|| latest.find(key, &read)).map(&attempt))?
            {
                Ok(result) => return Some(result),
                Err(IsLocked) => return None,
                Err(WasReplaced) => {}
            }
            check_for_interrupts!();
        }
    }

    /// The version is one that a snapshot still shows. Returns a copy.
    fn lock_version(
        &self,
        version: Version,
        mode: pg_sys::LockTupleMode::Type,
        wait: Wait,
    ) -> Result<Copied<'_, N>, NotLocked> {
        let policy = match wait {
            Wait::Skip => pg_sys::LockWaitPolicy::LockWaitSkip,
            Wait::Block => pg_sys::LockWaitPolicy::LockWaitBlock,
        };
        // SAFETY: the relation is open and a heap, and the version is not vacuumed by the above. The tuple is copied before its
        // page is released. With `follow`, a shared lock holds for a version that another transaction is writing, too.
        unsafe {
            let mut tuple = pg_sys::HeapTupleData {
                t_self: version.position,
                t_tableOid: (*self.relation).rd_id,
                ..Default::default()
            };
            let (mut buffer, mut failure) = (0, pg_sys::TM_FailureData::default());
            let (command, follow) = (pg_sys::GetCurrentCommandId(true), true);
            let outcome = pg_sys::heap_lock_tuple(
                self.relation,
                &mut tuple,
                command,
                mode,
                policy,
                follow,
                &mut buffer,
                &mut failure,
            );
            let locked = outcome_of(outcome).map(|()| Copied::new(self, pg_sys::heap_copytuple(&mut tuple), buffer));
            pg_sys::ReleaseBuffer(buffer);
            locked
        }
    }

    fn modified<const C: usize>(&self, tuple: pg_sys::HeapTuple, values: NewValues<C>) -> pg_sys::HeapTuple {
        let mut columns = values.map(|(column, _)| i32::from(self.numbers[column]));
        let mut is_null = values.map(|(_, value)| value.is_none());
        let mut values = values.map(|(_, value)| value.unwrap_or(pg_sys::Datum::null()));
        let (columns, values, is_null) = (columns.as_mut_ptr(), values.as_mut_ptr(), is_null.as_mut_ptr());
        // SAFETY: the relation is open, the tuple is one of its, and the values have the types of its columns.
        unsafe {
            let types = (*self.relation).rd_att;
            pg_sys::heap_modify_tuple_by_cols(tuple, types, C as i32, columns, values, is_null)
        }
    }

    /// Replaces a version by a tuple, which it frees. The next command of this transaction sees that.
    ///
    /// # Safety
    /// A snapshot shows the version.
    unsafe fn write(&self, version: Version, tuple: pg_sys::HeapTuple, wait: bool) -> Result<(), NotLocked> {
        let (relation, mut position) = (self.relation, version.position);
        // SAFETY: the relation is open and a heap, and the version is not vacuumed by the above.
        unsafe {
            pg_sys::CheckCmdReplicaIdentity(relation, pg_sys::CmdType::CMD_UPDATE);
            let (outcome, indexes) = heap_update(relation, &mut position, tuple, wait);
            outcome_of(outcome)?;
            if indexes != 0 {
                self.add_index_entries(tuple, indexes);
            }
            let (position, is_near) = ((*tuple).t_self, page_of((*tuple).t_self) == page_of(version.position));
            *self.last.lock() = if is_near { ((*relation).rd_id, Version { position, ..version }) } else { NO_VERSION };
            pg_sys::heap_freetuple(tuple);
            pg_sys::CommandCounterIncrement();
        }
        Ok(())
    }

    /// Of a tuple that is no longer on the page of the version before, with the rights of the table's owner: a superuser can add
    /// an index on an expression.
    ///
    /// # Safety
    /// The tuple was written.
    #[cold]
    unsafe fn add_index_entries(&self, tuple: pg_sys::HeapTuple, which: u32) {
        let relation = self.relation;
        // SAFETY: the relation is open, and everything is freed with the state.
        let add = || unsafe {
            let state = pg_sys::CreateExecutorState();
            let context = pg_sys::MemoryContextSwitchTo((*state).es_query_cxt);
            let mut target = pg_sys::ResultRelInfo::default();
            pg_sys::InitResultRelInfo(&mut target, relation, 0, null_mut(), 0);
            pg_sys::ExecOpenIndices(&mut target, false);
            let slot = pg_sys::MakeSingleTupleTableSlot((*relation).rd_att, &raw const pg_sys::TTSOpsHeapTuple);
            pg_sys::ExecStoreHeapTuple(tuple, slot, false);
            insert_index_tuples(&mut target, state, slot, which);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            pg_sys::ExecCloseIndices(&mut target);
            pg_sys::MemoryContextSwitchTo(context);
            pg_sys::FreeExecutorState(state);
        };
        // SAFETY: the relation is open.
        as_role(unsafe { (*(*relation).rd_rel).relowner }, pg_sys::SECURITY_NOFORCE_RLS, add);
    }
}

fn outcome_of(outcome: pg_sys::TM_Result::Type) -> Result<(), NotLocked> {
    match outcome {
        pg_sys::TM_Result::TM_Ok => Ok(()),
        pg_sys::TM_Result::TM_WouldBlock | pg_sys::TM_Result::TM_BeingModified => Err(IsLocked),
        _ => Err(WasReplaced),
    }
}

impl<'a, const N: usize> LatestRows<'a, N> {
    /// Reads the rows of a key in its order, until `read` returns a value.
    pub fn find<R>(&self, key: &[Key], read: impl FnMut(&Row<N>) -> Option<R>) -> Option<R> {
        self.rows.scan(key, self.snapshot, read)
    }

    /// Reads the row that this process has written last, if it is one of the key and still as it was written.
    pub fn find_last<R>(&self, key: &[Key], read: impl FnOnce(&Row<N>) -> Option<R>) -> Option<R> {
        let (table, version) = *self.rows.last.lock();
        let relation = self.rows.relation;
        // SAFETY: the relation is open and a heap. The page is read only if it is still in the buffer, because VACUUM may have
        // cut it off. A position that has another tuple by now, or none, is not read, or its key tells. The page stays pinned
        // while it is read.
        unsafe {
            #[cfg(feature = "pg15")]
            let file = (*relation).rd_node;
            #[cfg(not(feature = "pg15"))]
            let file = (*relation).rd_locator;
            let (fork, page) = (pg_sys::ForkNumber::MAIN_FORKNUM, page_of(version.position));
            if (*relation).rd_id != table || !pg_sys::ReadRecentBuffer(file, fork, page, version.buffer) {
                return None;
            }
            // As a scan does: otherwise no one would remove dead versions, and the row would move from page to page.
            #[cfg(not(feature = "pg19"))]
            pg_sys::heap_page_prune_opt(relation, version.buffer);
            #[cfg(feature = "pg19")]
            {
                let mut visibility = 0;
                pg_sys::heap_page_prune_opt(relation, version.buffer, &mut visibility, false);
                if visibility != 0 {
                    pg_sys::ReleaseBuffer(visibility);
                }
            }
            let mut tuple = pg_sys::HeapTupleData { t_self: version.position, ..Default::default() };
            let mut buffer = 0;
            let is_found = pg_sys::heap_fetch(relation, self.snapshot, &mut tuple, &mut buffer, false);
            pg_sys::ReleaseBuffer(version.buffer);
            if !is_found {
                return None;
            }
            let mut values = Values::new(relation);
            values.fill(relation, &mut tuple);
            let row = Row { numbers: &self.rows.numbers, tuple: &mut tuple, buffer, values: &values };
            let is_it = key.iter().enumerate().all(|(column, key)| key.is_of(&row, column));
            let found = if is_it { read(&row) } else { None };
            pg_sys::ReleaseBuffer(buffer);
            found
        }
    }

    /// What `read` makes of each row of a key.
    pub fn all<R>(&self, key: &[Key], read: impl Fn(&Row<N>) -> R) -> Vec<R> {
        let mut found = Vec::new();
        self.find(key, |row| {
            found.push(read(row));
            None::<()>
        });
        found
    }

    /// Locks a version that was found here against everyone. `None` if it is not the newest any more, or another transaction
    /// has locked it.
    pub fn try_lock(&self, version: Version) -> Option<Locked<'a, N>> {
        self.rows.lock_version(version, LockTupleExclusive, Wait::Skip).ok().map(Locked)
    }
}

impl Values {
    /// # Safety
    /// The relation is open.
    unsafe fn new(relation: pg_sys::Relation) -> Self {
        // SAFETY: by the above.
        let count = unsafe { (*(*relation).rd_att).natts } as usize;
        Self { values: vec![pg_sys::Datum::null(); count], is_null: vec![true; count] }
    }

    /// # Safety
    /// As for `new`, and the tuple is one of the relation.
    unsafe fn fill(&mut self, relation: pg_sys::Relation, tuple: pg_sys::HeapTuple) {
        // SAFETY: by the above; both arrays have an element for each column.
        unsafe {
            let columns = (*relation).rd_att;
            pg_sys::heap_deform_tuple(tuple, columns, self.values.as_mut_ptr(), self.is_null.as_mut_ptr());
        }
    }
}

#[derive(PartialEq)]
enum NotLocked {
    /// By a transaction that is not waited for.
    IsLocked,
    /// A newer version is committed, or the row is deleted.
    WasReplaced,
}
use NotLocked::*;

impl Key<'_> {
    fn is_of<const N: usize>(self, row: &Row<N>, column: usize) -> bool {
        match self {
            Self::Text(text) => row.text(column).as_deref() == Some(text),
            Self::Int(int) => row.value::<i32>(column) == int,
            Self::IntBelow(int) => row.value::<i32>(column) < int,
            Self::IntFrom(int) => row.value::<i32>(column) >= int,
        }
    }

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
    /// The value of a column, of a type that is passed by value; `None` for NULL.
    pub fn optional<T: FromDatum>(&self, column: usize) -> Option<T> {
        let index = self.numbers[column] as usize - 1;
        // SAFETY: callers name the type of the column.
        unsafe { T::from_datum(self.values.values[index], self.values.is_null[index]) }
    }

    /// A column that is never NULL.
    pub fn value<T: FromDatum>(&self, column: usize) -> T {
        self.optional(column).unwrap_or_else(|| unreadable().raise())
    }

    pub fn text(&self, column: usize) -> Option<String> {
        self.optional::<Text>(column).map(String::from)
    }

    /// True if the column has this text, of ASCII only.
    pub fn has_text(&self, column: usize, text: &str) -> bool {
        self.optional::<&[u8]>(column) == Some(text.as_bytes())
    }

    pub fn version(&self) -> Version {
        // SAFETY: a tuple of the scan.
        let position = unsafe { (*self.tuple).t_self };
        Version { position, buffer: self.buffer }
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

fn page_of(position: pg_sys::ItemPointerData) -> u32 {
    u32::from(position.ip_blkid.bi_hi) << 16 | u32::from(position.ip_blkid.bi_lo)
}

fn has(header: &pg_sys::HeapTupleHeaderData, bits: u32) -> bool {
    u32::from(header.t_infomask) & bits == bits
}

impl<'a, const N: usize> Copied<'a, N> {
    fn new(rows: &'a Rows<N>, tuple: pg_sys::HeapTuple, buffer: pg_sys::Buffer) -> Self {
        // SAFETY: the relation is open, and the tuple is a copy of one of its.
        unsafe {
            let mut values = Values::new(rows.relation);
            values.fill(rows.relation, tuple);
            Self { rows, tuple, buffer, values }
        }
    }

    fn row(&self) -> Row<'_, N> {
        Row { numbers: &self.rows.numbers, tuple: self.tuple, buffer: self.buffer, values: &self.values }
    }
}

impl<const N: usize> Drop for Copied<'_, N> {
    fn drop(&mut self) {
        // SAFETY: a copy of its own.
        unsafe { pg_sys::heap_freetuple(self.tuple) };
    }
}

impl<const N: usize> Locked<'_, N> {
    pub fn row(&self) -> Row<'_, N> {
        self.0.row()
    }

    /// Who waits to share the key finds another row. A crash after the commit does not undo it.
    pub fn update<const C: usize>(self, values: NewValues<C>) {
        xact::require_durability(Durability::Crash);
        let tuple = self.0.rows.modified(self.0.tuple, values);
        // SAFETY: the relation is open, and the lock keeps the version.
        let outcome = unsafe { self.0.rows.write(self.row().version(), tuple, true) };
        outcome.unwrap_or_else(|_| changed_under_lock().raise());
    }

    pub fn delete(self) {
        let mut version = self.row().version().position;
        // SAFETY: the relation is open, and the lock keeps the version.
        let outcome = unsafe {
            pg_sys::CheckCmdReplicaIdentity(self.0.rows.relation, pg_sys::CmdType::CMD_DELETE);
            let outcome = heap_delete(self.0.rows.relation, &mut version);
            pg_sys::CommandCounterIncrement();
            outcome
        };
        outcome_of(outcome).unwrap_or_else(|_| changed_under_lock().raise());
    }
}

/// Returns which indexes need an entry for the new version: as PostgreSQL numbers it from 16 on, 0 for none.
///
/// # Safety
/// The relation is an open heap, the version is not vacuumed, and the tuple is one of its.
unsafe fn heap_update(
    relation: pg_sys::Relation,
    version: &mut pg_sys::ItemPointerData,
    tuple: pg_sys::HeapTuple,
    wait: bool,
) -> (pg_sys::TM_Result::Type, u32) {
    let (mut failure, mut mode) = (pg_sys::TM_FailureData::default(), 0);
    // SAFETY: by the above.
    unsafe {
        let command = pg_sys::GetCurrentCommandId(true);
        #[cfg(feature = "pg15")]
        {
            let outcome =
                pg_sys::heap_update(relation, version, tuple, command, null_mut(), wait, &mut failure, &mut mode);
            let is_heap_only = u32::from((*(*tuple).t_data).t_infomask2) & pg_sys::HEAP_ONLY_TUPLE != 0;
            (outcome, u32::from(!is_heap_only))
        }
        #[cfg(not(feature = "pg15"))]
        {
            let mut indexes = 0;
            let outcome = pg_sys::heap_update(
                relation,
                version,
                tuple,
                command,
                #[cfg(feature = "pg19")]
                0,
                null_mut(),
                wait,
                &mut failure,
                &mut mode,
                &mut indexes,
            );
            (outcome, indexes as u32)
        }
    }
}

/// # Safety
/// The relation is an open heap, and the version is not vacuumed.
unsafe fn heap_delete(relation: pg_sys::Relation, version: &mut pg_sys::ItemPointerData) -> pg_sys::TM_Result::Type {
    let mut failure = pg_sys::TM_FailureData::default();
    // SAFETY: by the above.
    unsafe {
        pg_sys::heap_delete(
            relation,
            version,
            pg_sys::GetCurrentCommandId(true),
            #[cfg(feature = "pg19")]
            0,
            null_mut(),
            true,
            &mut failure,
            #[cfg(not(feature = "pg19"))]
            false,
        )
    }
}

/// # Safety
/// The slot has a tuple that was written to the target, whose indexes are open.
unsafe fn insert_index_tuples(
    target: &mut pg_sys::ResultRelInfo,
    state: *mut pg_sys::EState,
    slot: *mut pg_sys::TupleTableSlot,
    #[cfg_attr(feature = "pg15", expect(unused_variables, reason = "there are no others"))] which: u32,
) {
    #[cfg(not(feature = "pg15"))]
    let only_summarizing = which == pg_sys::TU_UpdateIndexes::TU_Summarizing as u32;
    // SAFETY: by the above. It is an update, and a conflict is an error.
    unsafe {
        #[cfg(feature = "pg19")]
        {
            let flags = pg_sys::EIIT_IS_UPDATE | if only_summarizing { pg_sys::EIIT_ONLY_SUMMARIZING } else { 0 };
            pg_sys::ExecInsertIndexTuples(target, state, flags, slot, null_mut(), null_mut());
        }
        #[cfg(not(feature = "pg19"))]
        pg_sys::ExecInsertIndexTuples(
            target,
            slot,
            state,
            true,
            false,
            null_mut(),
            null_mut(),
            #[cfg(not(feature = "pg15"))]
            only_summarizing,
        );
    }
}

errors! {
    fn changed_table(table: &str) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "table \"{table}\" of extension idgen was changed";
        detail: "It has a trigger, a check, a generated column, another access method, or no primary key. idgen writes its \
            rows without SQL.";
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
