//! Tags made in the transaction that runs. Nobody else sees them, so values are counted here, and the row is raised once,
//! just before the commit. A savepoint rolled back does not bring values back: what was seen stays used.

use super::{attach, row};
use idgen_core::segment::allocation::{Allocation, Range};
use parking_lot::Mutex;
use pgrx::prelude::*;

/// A tag of this transaction.
struct Private {
    creation: i64,
    /// As the row, with what was drawn here.
    allocation: Allocation,
    drawn: bool,
}

static TAGS: Mutex<Vec<Private>> = Mutex::new(Vec::new());

/// Takes note of how the row is now. What was drawn here stays drawn.
pub fn adopt(creation: i64, row: Allocation) {
    let mut tags = TAGS.lock();
    match tags.iter_mut().find(|tag| tag.creation == creation) {
        Some(tag) => tag.allocation = Allocation { max_id: row.max_id.max(tag.allocation.max_id), ..row },
        None => tags.push(Private { creation, allocation: row, drawn: false }),
    }
}

/// The next `want` values, or unless they are wanted as a `whole`, as many as there are. `None` when there are no more.
pub fn draw(creation: i64, want: u64, whole: bool) -> Option<(Range, i64)> {
    let mut tags = TAGS.lock();
    let tag = tags.iter_mut().find(|tag| tag.creation == creation)?;
    let range = tag.allocation.next(want).filter(|range| range.count == want || !whole)?;
    tag.allocation.max_id = range.last;
    tag.drawn = true;
    Some((range, tag.allocation.stride))
}

/// Makes every later end of a transaction settle its private tags.
pub fn end_with_transaction() {
    // SAFETY: the callback has the signature of one, and lives as long as the library, which is never unloaded.
    unsafe { pg_sys::RegisterXactCallback(Some(at_transaction_end), std::ptr::null_mut()) };
}

#[pg_guard]
unsafe extern "C-unwind" fn at_transaction_end(event: pg_sys::XactEvent::Type, _arg: *mut std::ffi::c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT | pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE => {
            // Taken out first: nothing may be locked while a query runs.
            let tags = std::mem::take(&mut *TAGS.lock());
            if tags.is_empty() {
                return;
            }
            // SAFETY: the transaction still runs, but its last statement, with its snapshot, has ended.
            unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot()) };
            for tag in tags.iter().filter(|tag| tag.drawn) {
                // A tag whose creation was rolled back to a savepoint has no row any more.
                row::raise_max_id(tag.creation, tag.allocation.max_id, None);
            }
            // SAFETY: pushed above; an error gives it back by the end of the transaction.
            unsafe { pg_sys::PopActiveSnapshot() };
            attach::forget();
        }
        pg_sys::XactEvent::XACT_EVENT_ABORT => {
            row::clear_allocation();
            let tags = std::mem::take(&mut *TAGS.lock());
            if !tags.is_empty() {
                attach::forget();
            }
        }
        _ => {}
    }
}
