//! Functions of PostgreSQL's heap that differ between its versions.

use pgrx::prelude::*;
use std::ptr::null_mut;

/// Waits for who has locked the version: without waiting, PostgreSQL allows it for versions that nobody has locked only.
/// Returns which indexes need an entry for the new version: as PostgreSQL numbers it from 16 on, 0 for none.
///
/// # Safety
/// The relation is an open heap, the version is not vacuumed, and the tuple is one of its.
pub unsafe fn heap_update(
    relation: pg_sys::Relation,
    version: &mut pg_sys::ItemPointerData,
    tuple: pg_sys::HeapTuple,
) -> (pg_sys::TM_Result::Type, u32) {
    let (mut failure, mut mode) = (pg_sys::TM_FailureData::default(), 0);
    // SAFETY: by the above.
    unsafe {
        let command = pg_sys::GetCurrentCommandId(true);
        #[cfg(not(feature = "pg15"))]
        let mut indexes = 0;
        let outcome = pg_sys::heap_update(
            relation,
            version,
            tuple,
            command,
            #[cfg(feature = "pg19")]
            0,
            null_mut(),
            true,
            &mut failure,
            &mut mode,
            #[cfg(not(feature = "pg15"))]
            &mut indexes,
        );
        #[cfg(feature = "pg15")]
        let indexes = u32::from(u32::from((*(*tuple).t_data).t_infomask2) & pg_sys::HEAP_ONLY_TUPLE == 0);
        (outcome, indexes)
    }
}

/// # Safety
/// The relation is an open heap, and the version is not vacuumed.
pub unsafe fn heap_delete(
    relation: pg_sys::Relation,
    version: &mut pg_sys::ItemPointerData,
) -> pg_sys::TM_Result::Type {
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
pub unsafe fn insert_index_tuples(
    target: &mut pg_sys::ResultRelInfo,
    state: *mut pg_sys::EState,
    slot: *mut pg_sys::TupleTableSlot,
    #[cfg_attr(feature = "pg15", expect(unused_variables, reason = "there are no others"))] which: u32,
) {
    #[cfg(not(feature = "pg15"))]
    let only_summarizing = which == pg_sys::TU_UpdateIndexes::TU_Summarizing;
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

/// Pins a page that a buffer had. False if the buffer has another one by now: VACUUM may have cut the page off. Removes dead
/// versions, as a scan does: otherwise nobody would, and the row would move from page to page.
///
/// # Safety
/// The relation is open.
pub unsafe fn pin_recent(relation: pg_sys::Relation, page: u32, buffer: pg_sys::Buffer) -> bool {
    // SAFETY: by the above.
    unsafe {
        #[cfg(feature = "pg15")]
        let file = (*relation).rd_node;
        #[cfg(not(feature = "pg15"))]
        let file = (*relation).rd_locator;
        if !pg_sys::ReadRecentBuffer(file, pg_sys::ForkNumber::MAIN_FORKNUM, page, buffer) {
            return false;
        }
        #[cfg(not(feature = "pg19"))]
        pg_sys::heap_page_prune_opt(relation, buffer);
        #[cfg(feature = "pg19")]
        {
            let mut visibility = 0;
            pg_sys::heap_page_prune_opt(relation, buffer, &mut visibility, false);
            if visibility != 0 {
                pg_sys::ReleaseBuffer(visibility);
            }
        }
        true
    }
}
