//! Waiting for a lock on a row without taking it. The wait is in the lock manager, which detects deadlocks.

use pgrx::prelude::*;
use std::ffi::CStr;

/// The transactions of other sessions that have changed or locked a row, so that it cannot be updated. The index is unique,
/// on this bigint column.
///
/// # Safety
/// The caller holds a lock on the table, which is a heap.
pub unsafe fn holders(table: pg_sys::Oid, index: &CStr, column: &CStr, key: i64) -> Vec<pg_sys::TransactionId> {
    let mut holders = Vec::new();
    // SAFETY: by the above. `scan_key` outlives the scan, and its type is that of the column. The scan keeps the page of its
    // slot's tuple pinned. The lock of the page keeps the two fields together; nothing is called that could raise under it.
    unsafe {
        let table = pg_sys::table_open(table, pg_sys::NoLock as i32);
        let index = pg_sys::get_relname_relid(index.as_ptr(), (*(*table).rd_rel).relnamespace);
        let (column, equal) = (pg_sys::SPI_fnumber((*table).rd_att, column.as_ptr()), pg_sys::BTEqualStrategyNumber);
        let (no_type, no_collation, compare) = (pg_sys::InvalidOid, pg_sys::InvalidOid, pg_sys::F_INT8EQ.into());
        let mut scan_key = pg_sys::ScanKeyData::default();
        pg_sys::ScanKeyEntryInitialize(
            &mut scan_key,
            0,
            column as i16,
            equal as u16,
            no_type,
            no_collation,
            compare,
            key.into(),
        );
        let (is_indexed, all) = (index != pg_sys::InvalidOid, &raw mut pg_sys::SnapshotAnyData);
        let scan = pg_sys::systable_beginscan(table, index, is_indexed, all, 1, &mut scan_key);
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let buffer = (*(*scan).slot.cast::<pg_sys::BufferHeapTupleTableSlot>()).buffer;
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as _);
            let header = &*(*tuple).t_data;
            let (mask, xmax) = (u32::from(header.t_infomask), header.t_choice.t_heap.t_xmax);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as _);
            holders.extend(members(mask, xmax));
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(table, pg_sys::NoLock as i32);
        holders.retain(|xid| {
            !pg_sys::TransactionIdIsCurrentTransactionId(*xid) && pg_sys::TransactionIdIsInProgress(*xid)
        });
    }
    holders
}

/// The transactions that a version of a row names as having changed or locked it. Not those with a key share: a foreign key
/// takes that, and it keeps no update out.
fn members(mask: u32, xmax: pg_sys::TransactionId) -> Vec<pg_sys::TransactionId> {
    let has = |bits: u32| mask & bits == bits;
    if has(pg_sys::HEAP_XMAX_INVALID) {
        return Vec::new();
    }
    let is_lock = has(pg_sys::HEAP_XMAX_LOCK_ONLY);
    if !has(pg_sys::HEAP_XMAX_IS_MULTI) {
        let is_key_share = is_lock && has(pg_sys::HEAP_XMAX_KEYSHR_LOCK) && !has(pg_sys::HEAP_XMAX_EXCL_LOCK);
        return if is_key_share { Vec::new() } else { vec![xmax] };
    }
    let mut members = std::ptr::null_mut();
    // SAFETY: a multixact of a row that was just read. PostgreSQL returns as many members as it says, or none and a count of
    // -1; they stay until the end of the statement.
    let members = unsafe {
        match pg_sys::GetMultiXactIdMembers(xmax, &mut members, false, is_lock) {
            count @ 1.. => std::slice::from_raw_parts(members, count as usize),
            _ => &[],
        }
    };
    let is_obstacle =
        |member: &&pg_sys::MultiXactMember| member.status != pg_sys::MultiXactStatus::MultiXactStatusForKeyShare;
    members.iter().filter(is_obstacle).map(|member| member.xid).collect()
}

/// Waits for the end of a transaction, or of a subtransaction that is rolled back.
pub fn wait_for_end_of(xid: pg_sys::TransactionId) {
    // SAFETY: the id of a transaction of another session, and no tuple for the message.
    unsafe {
        let no_tuple = std::ptr::null_mut();
        pg_sys::XactLockTableWait(xid, std::ptr::null_mut(), no_tuple, pg_sys::XLTW_Oper::XLTW_None);
    }
}
