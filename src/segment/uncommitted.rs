//! Tags that the running transaction created. No other session sees them, so this process counts their values, and
//! raises `max_id` of the row once, just before the commit. Rolling back to a savepoint does not return values: a
//! client may have seen them.

use super::{attach, store};
use crate::pg::xact;
use idgen_core::segment::ValueRun;
use idgen_core::segment::tag::Allocation;
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::sync::Once;

struct Uncommitted {
    creation: i64,
    /// That of the row, with `max_id` as drawn here.
    allocation: Allocation,
    drawn: bool,
}

static TAGS: Mutex<Vec<Uncommitted>> = Mutex::new(Vec::new());

/// Takes over the row's state. Values that were drawn here stay drawn.
pub fn adopt(creation: i64, row: Allocation) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| xact::on_xact_event(at_xact_event));
    let mut tags = TAGS.lock();
    match tags.iter_mut().find(|tag| tag.creation == creation) {
        Some(tag) => tag.allocation = Allocation { max_id: row.max_id.max(tag.allocation.max_id), ..row },
        None => tags.push(Uncommitted { creation, allocation: row, drawn: false }),
    }
}

/// The next values: `want` of them, or if they need not be `whole`, as many as there are. `None` if there are none.
pub fn draw(creation: i64, want: u64, whole: bool) -> Option<ValueRun> {
    let mut tags = TAGS.lock();
    let tag = tags.iter_mut().find(|tag| tag.creation == creation)?;
    let run = tag.allocation.next(want).filter(|run| run.count == want || !whole)?;
    tag.allocation.max_id = run.last();
    tag.drawn = true;
    Some(run)
}

fn at_xact_event(event: pg_sys::XactEvent::Type) {
    match event {
        pg_sys::XactEvent::XACT_EVENT_PRE_COMMIT | pg_sys::XactEvent::XACT_EVENT_PRE_PREPARE => settle(),
        pg_sys::XactEvent::XACT_EVENT_ABORT => {
            let tags = std::mem::take(&mut *TAGS.lock());
            if !tags.is_empty() {
                attach::forget();
            }
        }
        _ => {}
    }
}

/// Raises `max_id` of the rows.
fn settle() {
    // The mutex is not held while a query runs.
    let tags = std::mem::take(&mut *TAGS.lock());
    if tags.is_empty() {
        return;
    }
    // The transaction may have dropped the extension.
    if store::SEGMENT.find().is_some() {
        // A tag whose creation was rolled back to a savepoint has no row: this changes nothing then.
        let drawn = tags.iter().filter(|tag| tag.drawn);
        xact::write_before_commit(|| {
            drawn.for_each(|tag| store::raise_max_id(tag.creation, tag.allocation.max_id, None));
        });
    }
    attach::forget();
}
