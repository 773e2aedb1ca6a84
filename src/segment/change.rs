//! Changes of segments in the transaction that runs. Its commit ends the rings of the old rows, so that a statement which
//! goes on drawing looks the tag up again. A prepared transaction is committed without this process: there a statement that
//! runs draws on from the ring, and the next statement of each session looks the tag up.

use super::{attach, row};
use crate::shmem;
use crate::subtransaction::Done;
use idgen_core::segment::table::{DROPPED, Key};
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::sync::Once;

/// A row whose values are no longer those of its ring.
struct Change {
    creation: i64,
    /// Rings of older versions end.
    version: i64,
    stride: i64,
}

static CHANGES: Mutex<Done<Change>> = Mutex::new(Done::new());

/// The numbers of a row have changed.
pub fn altered(creation: i64, version: i64, stride: i64) {
    note(Change { creation, version, stride });
}

/// The row is deleted.
pub fn dropped(creation: i64) {
    note(Change { creation, version: DROPPED, stride: 1 });
}

fn note(change: Change) {
    static REGISTERED: Once = Once::new();
    // SAFETY: the callbacks have the signatures asked for, and live as long as the library, which is never unloaded.
    REGISTERED.call_once(|| unsafe {
        pg_sys::RegisterXactCallback(Some(at_end), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(at_subtransaction_end), std::ptr::null_mut());
    });
    CHANGES.lock().push(change);
}

#[pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _arg: *mut std::ffi::c_void) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_COMMIT => {
            let changes = CHANGES.lock().take();
            if !changes.is_empty() {
                end_rings(&changes);
            }
        }
        pg_sys::XactEvent::XACT_EVENT_ABORT | pg_sys::XactEvent::XACT_EVENT_PREPARE => {
            CHANGES.lock().take();
        }
        _ => {}
    }
}

/// Other sessions see the new rows already: a session that finds its ring ended finds the new row.
fn end_rings(changes: &[Change]) {
    let Some(shared) = shmem::shared() else {
        return;
    };
    let database = row::database();
    // Before the lock is taken: nothing may allocate under it.
    let mut ended = Vec::with_capacity(changes.len());
    shared.with_segments(|segments| {
        for Change { creation, version, stride } in changes {
            let key = Key { database, creation: *creation };
            let place = segments.table.supersede(key, *version, *stride, attach::now_us());
            if let Some(place) = place.filter(|place| place.new) {
                attach::begin(shared, segments, place.index);
                ended.push(place.index);
            }
        }
    });
    // Sessions that wait for a refill wait at another ring from here on, or learn that the tag is gone.
    ended.into_iter().for_each(|index| shared.slots[index].refilled.ring());
}

#[pg_guard]
unsafe extern "C-unwind" fn at_subtransaction_end(
    event: pg_sys::SubXactEvent::Type,
    own: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _arg: *mut std::ffi::c_void,
) {
    match event {
        pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => CHANGES.lock().committed(own, parent),
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
            CHANGES.lock().undone(own);
        }
        _ => {}
    }
}
