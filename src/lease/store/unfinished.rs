//! Terms that running transactions have begun. No snapshot shows their rows, so this file reads the versions themselves.

use super::{LEASE, LeaseState};
use crate::pg::datum::Text;
use crate::pg::row_lock;
use crate::pg::spi::{Query, value};
use idgen_core::lease::FIRST_SHARED;
use pgrx::prelude::*;

/// Waits for all other transactions that have begun a term of the lease. The wait is in the lock manager, which detects
/// deadlocks.
pub fn wait(name: &str) {
    while let Some(Grant { xid, .. }) = find(name, |_| true) {
        row_lock::wait_for_end_of(xid);
    }
}

/// The process that runs a transaction, which is no subtransaction: these lock their id only until they commit.
static PROCESS: Query = Query::of_statistics(
    "SELECT pid FROM pg_catalog.pg_locks WHERE locktype OPERATOR(pg_catalog.=) 'transactionid' AND granted \
     AND mode OPERATOR(pg_catalog.=) 'ExclusiveLock' \
     AND transactionid OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.xid",
);

/// This slot, or the number of a shared term, if another session has acquired it and not committed; and its process.
pub fn slot_and_process(name: &str, slot: i32) -> Option<(i32, i32)> {
    let grant = find(name, |granted| granted == slot || granted >= FIRST_SHARED)?;
    // SAFETY: the id of a transaction that was running.
    let xid = unsafe { pg_sys::SubTransGetTopmostTransaction(grant.xid) };
    let process = PROCESS.read_latest(&[i64::from(u32::from(xid)).into()], |row| value(row, 1)).pop()?;
    Some((grant.slot, process))
}

struct Grant {
    slot: i32,
    xid: pg_sys::TransactionId,
}

/// A running transaction of another session that has written a version with a token that was never committed, in such a
/// slot. Renewals and releases keep the token.
fn find(name: &str, is_wanted: impl Fn(i32) -> bool) -> Option<Grant> {
    let committed: Vec<i64> = LeaseState::read(name).terms.into_iter().map(|term| term.token).collect();
    let table = LEASE.lock(pg_sys::AccessShareLock);
    // SAFETY: the table is locked, and is a heap with a primary key that begins with the name. `key` outlives the scan, and
    // its type and collation are those of the column. The scan returns tuples of pinned pages, which the next call
    // releases. Who inserted a tuple, and its columns, never change.
    unsafe {
        let mut key = pg_sys::ScanKeyData::default();
        let name = Text::from(name).into_datum().unwrap_or(pg_sys::Datum::null());
        let (equal, collation) = (pg_sys::BTEqualStrategyNumber as u16, pg_sys::DEFAULT_COLLATION_OID);
        let compare = pg_sys::F_TEXTEQ.into();
        pg_sys::ScanKeyEntryInitialize(&mut key, 0, 1, equal, pg_sys::InvalidOid, collation, compare, name);
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
            (is_wanted(slot) && !committed.contains(&token)).then_some(Grant { slot, xid })
        });
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        found
    }
}
