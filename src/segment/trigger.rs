//! The trigger of `idgen.segment`: sets the columns that no user sets, and announces changes to all processes.
//!
//! The commit ends the rings of the old rows, so that a statement that is drawing looks the tag up again. A prepared
//! transaction commits without this process: a running statement then draws on from the ring, and the next statement
//! that a session sends looks the tag up.

use super::fleet::servers;
use super::state::{SEGMENTS, ring_state};
use super::{define, errors, store, workers};
use crate::pg::datum::Text;
use crate::pg::effects::SubxactList;
use crate::pg::function::{self, TriggerRow, Tuple};
use crate::pg::{invalidation, session, spi, xact};
use crate::shmem;
use idgen_core::segment::tag::{Allocation, Basis};
use idgen_core::segment::{DROPPED, TagKey};
use pgrx::datum::{Interval, TryFromDatumError};
use pgrx::heap_tuple::PgHeapTuple;
use pgrx::prelude::*;
use std::sync::Once;
use std::sync::atomic::Ordering::Relaxed;

/// Runs before each row is written. A new row gets a random creation number, which changes keep. A lower `max_id` raises 22023.
/// A change of owner or grants keeps the version, so that the ring keeps its values.
#[pg_extern(sql = false)]
fn segment_row(fcinfo: pg_sys::FunctionCallInfo) -> Result<TriggerRow, TryFromDatumError> {
    // SAFETY: PostgreSQL passes the call's own fcinfo.
    let (table, trigger) = unsafe { function::trigger_of_table(fcinfo, "idgen.segment_row", &store::SEGMENT) };
    let old = trigger.old().map(PgHeapTuple::into_owned);
    let new = trigger.new().map(PgHeapTuple::into_owned);
    let is_allocation = store::IS_ALLOCATION.load(Relaxed);
    let is_silent = match (&old, &new) {
        (Some(old), Some(new)) => is_allocation && basis(old)?.keeps_values(&basis(new)?),
        _ => false,
    };
    if !is_silent {
        invalidation::announce(table);
    }
    let row = match (old, new) {
        (None, Some(new)) => Some(inserted(new)?),
        (Some(old), Some(new)) => Some(updated(&old, new, is_allocation)?),
        (Some(old), None) => {
            let creation = number(&old, "creation")?;
            end_ring_at_commit(Change { creation, version: DROPPED, stride: 1, is_link: false });
            servers::keep(&tag(&old)?, number(&old, "max_id")?);
            Some(old)
        }
        (None, None) => None,
    };
    Ok(row.into())
}

fn inserted(mut new: Tuple) -> Result<Tuple, TryFromDatumError> {
    let transaction = xact::id();
    new.set_by_name("creation", session::random_i64())?;
    new.set_by_name("version", 1i64)?;
    new.set_by_name("created_in", transaction)?;
    new.set_by_name("changed_in", transaction)?;
    link_inserted(&mut new)?;
    Ok(new)
}

/// The link of a row that a restore or a subscription writes, or whose tag was dropped before.
fn link_inserted(new: &mut Tuple) -> Result<(), TryFromDatumError> {
    let tag = tag(new)?;
    let is_attached = is_attached(new)?;
    // The owner of the database may insert rows. That alone must not give it values of the coordinator.
    let may_attach = !is_attached || define::may_attach(spi::user());
    if !may_attach {
        errors::not_restored(&tag).warn();
        new.set_by_name("reserve", None::<Interval>)?;
        new.set_by_name("upper_bound", number(new, "max_id")?)?;
        new.set_by_name("source", Text::from(String::new()))?;
    }
    // The origin may still be attached, and reports for itself.
    new.set_by_name("server", (is_attached && may_attach).then(session::random_i64))?;
    new.set_by_name("received", None::<i64>)?;
    // No history: the coordinator looks at the servers before it grants values.
    if new.get_by_name::<Text>("history")?.is_some() || servers::are_known(&tag) {
        new.set_by_name("history", Text::from(String::new()))?;
    }
    Ok(())
}

fn updated<'a>(old: &Tuple, mut new: Tuple<'a>, is_allocation: bool) -> Result<Tuple<'a>, TryFromDatumError> {
    let (before, after) = (basis(old)?, basis(&new)?);
    let (max_id, new_max_id) = (before.allocation.max_id, after.allocation.max_id);
    if new_max_id < max_id {
        errors::lowered(&tag(old)?, max_id, new_max_id).raise();
    }
    new.set_by_name("creation", number(old, "creation")?)?;
    new.set_by_name("created_in", number(old, "created_in")?)?;
    let is_new_version = before.is_another_version(&after, is_allocation);
    let version = number(old, "version")? + i64::from(is_new_version);
    new.set_by_name("version", version)?;
    if is_new_version {
        let (creation, stride) = (number(old, "creation")?, after.allocation.stride);
        let is_link = before.is_attached != after.is_attached;
        end_ring_at_commit(Change { creation, version, stride, is_link });
    }
    new.set_by_name("changed_in", if is_allocation { number(old, "changed_in")? } else { xact::id() })?;
    Ok(new)
}

fn basis(tuple: &Tuple) -> Result<Basis, TryFromDatumError> {
    let number = |name| number(tuple, name);
    let (max_id, stride) = (number("max_id")?, number("stride")?);
    let allocation = Allocation { max_id, stride, residue: number("residue")?, upper_bound: number("upper_bound")? };
    let source = tuple.get_by_name::<Text>("source")?.map(String::from);
    Ok(Basis { allocation, is_attached: is_attached(tuple)?, source })
}

fn is_attached(tuple: &Tuple) -> Result<bool, TryFromDatumError> {
    Ok(tuple.get_by_name::<Interval>("reserve")?.is_some())
}

fn tag(tuple: &Tuple) -> Result<String, TryFromDatumError> {
    Ok(tuple.get_by_name::<Text>("tag")?.map(String::from).unwrap_or_default())
}

fn number(tuple: &Tuple, name: &str) -> Result<i64, TryFromDatumError> {
    Ok(tuple.get_by_name::<i64>(name)?.unwrap_or_default())
}

/// A change after which the values of a ring are no longer those of its row.
struct Change {
    creation: i64,
    /// Rings of lower versions end; `DROPPED` if the row was deleted.
    version: i64,
    stride: i64,
    /// The tag was attached or detached.
    is_link: bool,
}

static CHANGES: SubxactList<Change> = SubxactList::new(drop);

fn end_ring_at_commit(change: Change) {
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
        for &Change { creation, version, stride, .. } in changes {
            let key = TagKey { database, creation };
            let attachment = segments.table.supersede(key, version, stride);
            if let Some(attachment) = attachment.filter(|attachment| attachment.is_new) {
                segments.begin(attachment.index);
                ended.push(attachment.index);
            }
        }
    });
    // Sessions that wait for a refill attach to the new ring, or find that the tag was dropped.
    ended.into_iter().for_each(|index| ring_state(index).refilled.broadcast());
    if changes.iter().any(|change| change.is_link) {
        workers::announce_links(database);
    }
}
