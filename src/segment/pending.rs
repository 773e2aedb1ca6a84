//! Changes of rows in the running transaction. Its commit ends the rings of the old rows, so that a statement that is
//! drawing looks the tag up again. A prepared transaction commits without this process: a running statement then draws
//! on from the ring, and the next statement of each session looks the tag up.

use super::state::{SEGMENTS, slot};
use crate::pg::xact::{self, SubxactList};
use crate::pg::{session, system_clock};
use crate::shmem;
use idgen_core::segment::{DROPPED, TagKey};
use pgrx::prelude::*;
use std::sync::Once;

/// A change after which the values of a ring are no longer those of its row.
struct Change {
    creation: i64,
    /// Rings of lower versions end.
    version: i64,
    stride: i64,
}

static CHANGES: SubxactList<Change> = SubxactList::new(drop);

/// The row was altered.
pub fn altered(creation: i64, version: i64, stride: i64) {
    push(Change { creation, version, stride });
}

/// The row was deleted.
pub fn dropped(creation: i64) {
    push(Change { creation, version: DROPPED, stride: 1 });
}

fn push(change: Change) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        xact::on_xact_event(at_xact_event);
        CHANGES.follow();
    });
    CHANGES.push(change);
}

fn at_xact_event(event: pg_sys::XactEvent::Type) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_COMMIT => {
            let changes = CHANGES.take();
            if !changes.is_empty() && shmem::is_preloaded() {
                end_rings(&changes);
            }
        }
        pg_sys::XactEvent::XACT_EVENT_ABORT | pg_sys::XactEvent::XACT_EVENT_PREPARE => drop(CHANGES.take()),
        _ => {}
    }
}

/// At this event other sessions see the new rows: a session that finds its ring ended finds the new row.
fn end_rings(changes: &[Change]) {
    let database = session::database();
    // Allocated before the lock is acquired.
    let mut ended = Vec::with_capacity(changes.len());
    SEGMENTS.exclusive(|segments| {
        for Change { creation, version, stride } in changes {
            let key = TagKey { database, creation: *creation };
            let attachment = segments.table.supersede(key, *version, *stride, system_clock::boot_us());
            if let Some(attachment) = attachment.filter(|attachment| attachment.is_new) {
                segments.begin(attachment.index);
                ended.push(attachment.index);
            }
        }
    });
    // Sessions that wait for a refill attach to the new ring, or find that the tag was dropped.
    ended.into_iter().for_each(|index| slot(index).refilled.broadcast());
}
