//! The view `idgen.stat_segment`: the rings of this database.

use super::state::{LastError, RING_STATES, RINGS, RingState, SEGMENTS, ring, ring_state, ring_states};
use super::store;
use crate::pg::datum::Text;
use crate::pg::session::database;
use crate::shmem;
use idgen_core::segment::{Remaining, RingTenant, ValueRun};
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A ring at one moment.
struct RingSnapshot {
    index: usize,
    tenant: RingTenant,
    remaining: Remaining,
    position: u64,
    error: LastError,
}

/// One row for each segment of this database that has a ring and that the caller may draw from. Members of
/// pg_read_all_stats see all of them. No rows without preload.
#[pg_extern(sql = false)]
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
        let visible = store::visible_creations();
        let rings = rings().into_iter().filter(move |ring| visible.contains(&ring.tenant.key.creation));
        rings.map(|ring| {
            let state = ring_state(ring.index);
            let of = |counter: fn(&RingState) -> &AtomicU64| counter(state).load(Relaxed) as i64;
            let Remaining { current, next, count } = ring.remaining;
            (
                ring.tenant.key.creation,
                current.map(|run| run.first),
                current.as_ref().map(ValueRun::last),
                next.map(|run| run.first),
                next.as_ref().map(ValueRun::last),
                count as i64,
                ring.position.saturating_sub(state.reset_at.load(Relaxed)) as i64,
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

/// One row for each attached segment of this database that has a ring and that the caller may draw from: the state of the
/// coordinator, and the rate of draws in values per second. Members of pg_read_all_stats see all of them. No rows without
/// preload.
#[pg_extern(sql = false)]
fn stat_get_segment_supply()
-> TableIterator<'static, (name!(creation, i64), name!(coordinator, Text<'static>), name!(rate, f64))> {
    let rows = shmem::is_preloaded().then_some(()).into_iter().flat_map(|()| {
        let visible = store::visible_creations();
        let is_shown = move |ring: &RingSnapshot| {
            visible.contains(&ring.tenant.key.creation) && ring_state(ring.index).is_attached.load(Relaxed)
        };
        rings().into_iter().filter(is_shown).map(|ring| {
            let state = ring_state(ring.index);
            let rate = f64::from_bits(state.rate.load(Relaxed));
            (ring.tenant.key.creation, Text::from(state.coordinator().name().to_owned()), rate)
        })
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}

fn rings() -> Vec<RingSnapshot> {
    // Allocated before the lock is acquired.
    let mut found = Vec::with_capacity(ring_states().len());
    SEGMENTS.exclusive(|segments| {
        for (index, tenant) in segments.table.tenants.iter().enumerate() {
            if let Some(tenant) = tenant.filter(|tenant| tenant.key.database == database()) {
                let ring = ring(index);
                let (remaining, position) = (ring.remaining(tenant.handle), ring.position());
                found.push(RingSnapshot { index, tenant, remaining, position, error: segments.errors[index] });
            }
        }
    });
    found
}

/// Sets the counters to zero, in all databases.
pub fn reset() {
    let (Some(states), Some(rings)) = (RING_STATES.get(), RINGS.get()) else {
        return;
    };
    states.iter().zip(rings.iter()).for_each(|(state, ring)| state.reset(ring.position()));
    SEGMENTS.exclusive(|segments| segments.table.displaced = 0);
}
