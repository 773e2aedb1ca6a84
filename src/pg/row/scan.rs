//! Finding rows by their key, and their values.

use super::super::datum::Text;
use super::{Rows, heap, statement_snapshot, unreadable};
use pgrx::prelude::*;

/// A condition on a column of the key. A key has one for each of its first columns.
#[derive(Clone, Copy)]
pub enum Key<'a> {
    Text(&'a str),
    Int(i32),
    IntBelow(i32),
    IntFrom(i32),
}

/// An open table, as the latest snapshot shows it. That snapshot keeps versions from being vacuumed.
pub struct LatestRows<'a, const N: usize> {
    pub(super) rows: &'a Rows<N>,
    snapshot: pg_sys::Snapshot,
}

/// The values of a tuple, by the columns of the table.
#[derive(Clone)]
pub struct Values {
    pub(super) values: Vec<pg_sys::Datum>,
    pub(super) is_null: Vec<bool>,
}

/// A version of a row, while the scan is at it or a [`Locked`] owns it.
pub struct Row<'a, const N: usize> {
    pub(super) numbers: &'a [i16; N],
    pub(super) tuple: pg_sys::HeapTuple,
    pub(super) buffer: pg_sys::Buffer,
    pub(super) values: &'a Values,
}

#[derive(Clone, Copy)]
pub struct Version {
    pub(super) position: pg_sys::ItemPointerData,
    /// The buffer that had the page when the version was read.
    pub(super) buffer: pg_sys::Buffer,
}

pub const NO_VERSION: (pg_sys::Oid, Version) = {
    let position = pg_sys::ItemPointerData { ip_blkid: pg_sys::BlockIdData { bi_hi: 0, bi_lo: 0 }, ip_posid: 0 };
    (pg_sys::InvalidOid, Version { position, buffer: 0 })
};

impl<const N: usize> Rows<N> {
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

    /// As [`LatestRows::find`], of what the running statement sees.
    pub fn find_in_snapshot<R>(&self, key: &[Key], read: impl FnMut(&Row<N>) -> Option<R>) -> Option<R> {
        self.scan(key, statement_snapshot(), read)
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
        let mut filled: [pg_sys::ScanKeyData; 2] = Default::default();
        let filled = &mut filled[..key.len()];
        // SAFETY: the relation is open and a heap, and the columns of its key have these types. `keys` outlives the
        // scan. The scan returns tuples of pinned pages, which the next call releases; `read` keeps no reference to them.
        // Without an index, the scan reads the table.
        unsafe {
            for ((key, number), filled) in key.iter().zip(&self.numbers).zip(filled.iter_mut()) {
                key.fill(filled, *number);
            }
            let has_index = self.index != pg_sys::InvalidOid;
            let (count, keys) = (filled.len() as i32, filled.as_mut_ptr());
            let scan = pg_sys::systable_beginscan(self.relation, self.index, has_index, snapshot, count, keys);
            let mut values = Values::new(self.relation);
            let next = || Some(pg_sys::systable_getnext(scan)).filter(|tuple| !tuple.is_null());
            let found = std::iter::from_fn(next).find_map(|tuple| {
                values.fill(self.relation, tuple);
                let buffer = (*(*scan).slot.cast::<pg_sys::BufferHeapTupleTableSlot>()).buffer;
                read(&Row { numbers: &self.numbers, tuple, buffer, values: &values })
            });
            pg_sys::systable_endscan(scan);
            // A session that waits scans again and again in one memory context.
            filled.iter().filter(|key| key.sk_func.fn_oid == pg_sys::Oid::from(pg_sys::F_TEXTEQ)).for_each(|key| {
                pg_sys::pfree(key.sk_argument.cast_mut_ptr());
            });
            found
        }
    }
}

impl<const N: usize> LatestRows<'_, N> {
    /// Reads the rows of a key in its order, until `read` returns a value.
    pub fn find<R>(&self, key: &[Key], read: impl FnMut(&Row<N>) -> Option<R>) -> Option<R> {
        self.rows.scan(key, self.snapshot, read)
    }

    /// Reads the row that this process has written last, if it is one of the key and still as it was written.
    pub fn find_last<R>(&self, key: &[Key], read: impl FnOnce(&Row<N>) -> Option<R>) -> Option<R> {
        let (table, version) = *self.rows.last.lock();
        let relation = self.rows.relation;
        // SAFETY: the relation is open and a heap, and the page is pinned, also while it is read. A position that has another
        // tuple by now, or none, is not read, or its key tells.
        unsafe {
            if (*relation).rd_id != table || !heap::pin_recent(relation, page_of(version.position), version.buffer) {
                return None;
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
}

impl Values {
    /// # Safety
    /// The relation is open.
    pub unsafe fn new(relation: pg_sys::Relation) -> Self {
        // SAFETY: by the above.
        let count = unsafe { (*(*relation).rd_att).natts } as usize;
        Self { values: vec![pg_sys::Datum::null(); count], is_null: vec![true; count] }
    }

    /// # Safety
    /// As for `new`, and the tuple is one of the relation.
    pub unsafe fn fill(&mut self, relation: pg_sys::Relation, tuple: pg_sys::HeapTuple) {
        // SAFETY: by the above; both arrays have an element for each column.
        unsafe {
            let columns = (*relation).rd_att;
            pg_sys::heap_deform_tuple(tuple, columns, self.values.as_mut_ptr(), self.is_null.as_mut_ptr());
        }
    }
}

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
    ///
    /// # Safety
    /// The row is one that a scan shows: its page is pinned, and not locked.
    pub unsafe fn replaced_by(&self) -> Option<pg_sys::TransactionId> {
        // SAFETY: as above. A transaction that locks the version replaces its mask and its xmax under the lock of the page:
        // an xmax read beside the mask of another could be taken for a multixact. The copy is of the fixed part, which has
        // both. A multixact that is not only a lock has a member that updated the version.
        unsafe {
            let mut header = self.with_page_locked(|| std::ptr::read((*self.tuple).t_data));
            if !is_replaced(&header) {
                return None;
            }
            let xid = match has(&header, pg_sys::HEAP_XMAX_IS_MULTI) {
                true => pg_sys::HeapTupleGetUpdateXid(&raw mut header),
                false => header.t_choice.t_heap.t_xmax,
            };
            Some(xid).filter(|xid| *xid != pg_sys::InvalidTransactionId)
        }
    }

    /// True if a transaction has begun to replace this copy of a version. It may have been rolled back.
    pub(super) fn was_replaced(&self) -> bool {
        // SAFETY: a tuple of a table, as above.
        is_replaced(unsafe { &*(*self.tuple).t_data })
    }

    /// True if no transaction, also not this one, has locked, updated or deleted this version.
    ///
    /// # Safety
    /// As for `replaced_by`.
    pub(super) unsafe fn is_free(&self) -> bool {
        // SAFETY: as above.
        let outcome = unsafe {
            let command = pg_sys::GetCurrentCommandId(false);
            self.with_page_locked(|| pg_sys::HeapTupleSatisfiesUpdate(self.tuple, command, self.buffer))
        };
        outcome == pg_sys::TM_Result::TM_Ok
    }

    /// # Safety
    /// As for `replaced_by`. `read` raises no error.
    unsafe fn with_page_locked<R>(&self, read: impl FnOnce() -> R) -> R {
        // SAFETY: the page is pinned, and not locked.
        unsafe { pg_sys::LockBuffer(self.buffer, pg_sys::BUFFER_LOCK_SHARE as _) };
        let result = read();
        // SAFETY: it was locked above.
        unsafe { pg_sys::LockBuffer(self.buffer, pg_sys::BUFFER_LOCK_UNLOCK as _) };
        result
    }
}

pub fn page_of(position: pg_sys::ItemPointerData) -> u32 {
    u32::from(position.ip_blkid.bi_hi) << 16 | u32::from(position.ip_blkid.bi_lo)
}

fn is_replaced(header: &pg_sys::HeapTupleHeaderData) -> bool {
    !has(header, pg_sys::HEAP_XMAX_INVALID) && !has(header, pg_sys::HEAP_XMAX_LOCK_ONLY)
}

fn has(header: &pg_sys::HeapTupleHeaderData, bits: u32) -> bool {
    u32::from(header.t_infomask) & bits == bits
}
