//! Versions of rows that no snapshot of the caller shows: of running transactions, and of those that have committed since
//! the snapshot was taken, even if the row is gone.

use super::store::{LEASE, LeaseState};
use crate::pg::datum::Text;
use crate::pg::spi::{Query, value};
use crate::pg::xact;
use idgen_core::lease::FIRST_SHARED;
use pgrx::prelude::*;

/// Rows of a lease.
pub enum Rows {
    OfSlot(i32),
    OfSlots,
    Shared,
}

/// True if a committed transaction that the transaction's own snapshot does not show has inserted, changed or deleted
/// one of the rows. VACUUM keeps the dead versions as long as that snapshot exists.
pub fn have_changed_since_snapshot(name: &str, rows: Rows) -> bool {
    let (strategy, compare, slot) = match rows {
        Rows::OfSlot(slot) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_INT4EQ, slot),
        Rows::OfSlots => (pg_sys::BTLessStrategyNumber, pg_sys::F_INT4LT, FIRST_SHARED),
        Rows::Shared => (pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_INT4GE, FIRST_SHARED),
    };
    let table = LEASE.lock(pg_sys::AccessShareLock);
    // SAFETY: the table is locked, and is a heap with a primary key of name and slot. `keys` outlives the scan, and
    // their types and collation are those of the columns. The scan returns tuples of pinned pages, which the next call
    // releases; no reference to them is kept. A transaction with one snapshot keeps it until its end.
    unsafe {
        let mut keys = [
            key(1, pg_sys::BTEqualStrategyNumber, pg_sys::F_TEXTEQ, Text::from(name).into_datum()),
            key(2, strategy, compare, slot.into_datum()),
        ];
        let own = pg_sys::GetTransactionSnapshot();
        let table = pg_sys::table_open(table, pg_sys::NoLock as i32);
        let index = pg_sys::get_relname_relid(c"lease_pkey".as_ptr(), (*(*table).rd_rel).relnamespace);
        let all = &raw mut pg_sys::SnapshotAnyData;
        let (count, keys) = (keys.len() as i32, keys.as_mut_ptr());
        let scan = pg_sys::systable_beginscan(table, index, true, all, count, keys);
        let mut has_changed = false;
        while !has_changed {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let is_missed = |xid| pg_sys::XidInMVCCSnapshot(xid, own) && pg_sys::TransactionIdDidCommit(xid);
            has_changed = writers(&*(*tuple).t_data).into_iter().flatten().any(is_missed);
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        has_changed
    }
}

/// # Safety
/// The value is of the type that the function compares.
unsafe fn key(column: i16, strategy: u32, compare: u32, value: Option<pg_sys::Datum>) -> pg_sys::ScanKeyData {
    let mut key = pg_sys::ScanKeyData::default();
    let value = value.unwrap_or(pg_sys::Datum::null());
    let (strategy, any, collation) = (strategy as u16, pg_sys::InvalidOid, pg_sys::DEFAULT_COLLATION_OID);
    // SAFETY: fills in the key, which is a local. Integers have no collation, and ignore it.
    unsafe { pg_sys::ScanKeyEntryInitialize(&mut key, 0, column, strategy, any, collation, compare.into(), value) };
    key
}

/// The transactions that have inserted and deleted or updated a version. Not one that has only locked it, and not a
/// frozen one, which every snapshot shows.
///
/// # Safety
/// The header is of a tuple on a page that is pinned.
unsafe fn writers(header: &pg_sys::HeapTupleHeaderData) -> [Option<pg_sys::TransactionId>; 2] {
    let has = |bits: u32| u32::from(header.t_infomask) & bits == bits;
    // SAFETY: a tuple of a table has these fields, and not those of a composite value. A multixact that is not only a
    // lock has a member that updated the version.
    unsafe {
        let fields = header.t_choice.t_heap;
        let is_only_locked = has(pg_sys::HEAP_XMAX_INVALID) || has(pg_sys::HEAP_XMAX_LOCK_ONLY);
        let updated_by = || match has(pg_sys::HEAP_XMAX_IS_MULTI) {
            true => pg_sys::HeapTupleGetUpdateXid(std::ptr::from_ref(header).cast_mut()),
            false => fields.t_xmax,
        };
        [
            (!has(pg_sys::HEAP_XMIN_FROZEN)).then_some(fields.t_xmin),
            (!is_only_locked).then(updated_by).filter(|xid| *xid != pg_sys::InvalidTransactionId),
        ]
    }
}

/// Waits for all other transactions that have begun a term of the lease. The wait is in the lock manager, which detects
/// deadlocks.
pub fn wait_for_grants(name: &str) {
    while let Some(Uncommitted { xid, .. }) = find(name, |_| true) {
        xact::wait_for_end_of(xid);
    }
}

/// The process that runs a transaction, which is no subtransaction: these lock their id only until they commit.
static PROCESS: Query = Query::of_statistics(
    "SELECT pid FROM pg_catalog.pg_locks WHERE locktype OPERATOR(pg_catalog.=) 'transactionid' AND granted \
     AND mode OPERATOR(pg_catalog.=) 'ExclusiveLock' \
     AND transactionid OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.xid",
);

/// A term that another session has acquired and not committed, in this slot or shared: its slot, and the process of the
/// session.
pub fn slot_and_process(name: &str, slot: i32) -> Option<(i32, i32)> {
    let grant = find(name, |granted| granted == slot || granted >= FIRST_SHARED)?;
    // SAFETY: the id of a transaction that was running.
    let xid = unsafe { pg_sys::SubTransGetTopmostTransaction(grant.xid) };
    let process = PROCESS.read_latest(&[i64::from(u32::from(xid)).into()], |row| value(row, 1)).pop()?;
    Some((grant.slot, process))
}

struct Uncommitted {
    slot: i32,
    xid: pg_sys::TransactionId,
}

/// A running transaction of another session that has written a version with a token that was never committed, in such a
/// slot. Renewals and releases keep the token.
fn find(name: &str, is_wanted: impl Fn(i32) -> bool) -> Option<Uncommitted> {
    let committed: Vec<i64> = LeaseState::read(name).terms.into_iter().map(|term| term.token).collect();
    let table = LEASE.lock(pg_sys::AccessShareLock);
    // SAFETY: the table is locked, and is a heap with a primary key that begins with the name. `key` outlives the scan, and
    // its type and collation are those of the column. The scan returns tuples of pinned pages, which the next call
    // releases. Who inserted a tuple, and its columns, never change.
    unsafe {
        let name = Text::from(name).into_datum();
        let mut key = key(1, pg_sys::BTEqualStrategyNumber, pg_sys::F_TEXTEQ, name);
        let table = pg_sys::table_open(table, pg_sys::NoLock as i32);
        let index = pg_sys::get_relname_relid(c"lease_pkey".as_ptr(), (*(*table).rd_rel).relnamespace);
        let columns = (*table).rd_att;
        let [slot, token] = [c"slot", c"token"].map(|name| pg_sys::SPI_fnumber(columns, name.as_ptr()));
        let scan = pg_sys::systable_beginscan(table, index, true, &raw mut pg_sys::SnapshotAnyData, 1, &mut key);
        let next = || Some(pg_sys::systable_getnext(scan)).filter(|tuple| !tuple.is_null());
        let found = std::iter::from_fn(next).find_map(|tuple| {
            let header = &*(*tuple).t_data;
            let is_frozen = u32::from(header.t_infomask) & pg_sys::HEAP_XMIN_FROZEN == pg_sys::HEAP_XMIN_FROZEN;
            let xid = header.t_choice.t_heap.t_xmin;
            if is_frozen || pg_sys::TransactionIdIsCurrentTransactionId(xid) || !pg_sys::TransactionIdIsInProgress(xid)
            {
                return None;
            }
            let column = |number| pg_sys::SPI_getbinval(tuple, columns, number, &mut false);
            let (slot, token) = (i32::from_datum(column(slot), false)?, i64::from_datum(column(token), false)?);
            (is_wanted(slot) && !committed.contains(&token)).then_some(Uncommitted { slot, xid })
        });
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        found
    }
}
