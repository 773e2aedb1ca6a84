//! What `idgen.stat_segment` shows of the rings of this database.

use super::row;
use super::slot::LastError;
use super::slot::{RINGS, SEGMENTS, SLOTS, Slot, ring, slot, slots};
use crate::pg::encoding::Text;
use crate::shmem;
use idgen_core::segment::table::Tenant;
use idgen_core::segment::{Rest, Run};
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A ring as it was at one moment.
struct Ring {
    index: usize,
    tenant: Tenant,
    rest: Rest,
    position: u64,
    error: LastError,
}

/// One row for each tag that has a ring and that the caller may draw from. Members of pg_read_all_stats see all of them.
#[pg_extern(
    sql = "CREATE FUNCTION idgen.stat_get_segment(OUT creation bigint, OUT first_id bigint, OUT last_id bigint, \
           OUT next_first_id bigint, OUT next_last_id bigint, OUT remaining bigint, OUT issued bigint, OUT refills bigint, \
           OUT refill_us bigint, OUT waits bigint, OUT wait_us bigint, OUT last_error text) RETURNS SETOF record \
           VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity, reason = "the columns of a view")]
fn stat_get_segment() -> TableIterator<
    'static,
    (
        name!(creation, i64),
        name!(first_id, Option<i64>),
        name!(last_id, Option<i64>),
        name!(next_first_id, Option<i64>),
        name!(next_last_id, Option<i64>),
        name!(remaining, i64),
        name!(issued, i64),
        name!(refills, i64),
        name!(refill_us, i64),
        name!(waits, i64),
        name!(wait_us, i64),
        name!(last_error, Option<Text<'static>>),
    ),
> {
    let rows = shmem::is_preloaded().then_some(()).into_iter().flat_map(|()| {
        let visible = row::visible_creations();
        let rings = rings().into_iter().filter(move |ring| visible.contains(&ring.tenant.key.creation));
        rings.map(|ring| {
            let slot = slot(ring.index);
            let of = |counter: fn(&Slot) -> &AtomicU64| counter(slot).load(Relaxed) as i64;
            let Rest { current, next } = ring.rest;
            let remaining = [current, next].into_iter().flatten().map(|run| run.count as i64).sum();
            (
                ring.tenant.key.creation,
                current.map(|run| run.first),
                current.as_ref().map(Run::last),
                next.map(|run| run.first),
                next.as_ref().map(Run::last),
                remaining,
                ring.position.saturating_sub(slot.reset_at.load(Relaxed)) as i64,
                of(|s| &s.refills),
                of(|s| &s.refill_us),
                of(|s| &s.waits),
                of(|s| &s.wait_us),
                ring.error.text().map(Text::from),
            )
        })
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}

fn rings() -> Vec<Ring> {
    // Before the lock is taken: nothing may allocate under it.
    let mut found = Vec::with_capacity(slots().len());
    SEGMENTS.exclusive(|segments| {
        for (index, tenant) in segments.table.tenants.iter().enumerate() {
            if let Some(tenant) = tenant.filter(|tenant| tenant.key.database == row::database()) {
                let ring = ring(index);
                let (rest, position) = (ring.rest(tenant.handle), ring.position());
                found.push(Ring { index, tenant, rest, position, error: segments.errors[index] });
            }
        }
    });
    found
}

/// Sets the counters of every database to zero.
pub fn reset() {
    for (slot, ring) in SLOTS.get().into_iter().flat_map(|slots| slots.iter()).zip(RINGS.require().iter()) {
        slot.reset(ring.position());
    }
}
