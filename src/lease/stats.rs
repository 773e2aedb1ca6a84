//! What `idgen.stat_lease` counts, over all databases. Statistics: nothing depends on their order, so every access is relaxed.

use crate::pg::timestamp;
use crate::shmem::Part;
use pgrx::datum::Interval;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub static COUNTERS: Part<Counters> = Part::new(c"idgen lease counters", |_| Counters::default());

#[repr(align(64))]
#[derive(Default)]
pub struct Counters {
    /// Slots taken that were free.
    pub grants: AtomicU64,
    /// Slots taken whose last holder had not released them.
    pub take_overs: AtomicU64,
    pub renewals: AtomicU64,
    pub releases: AtomicU64,
    pub fences: AtomicU64,
    /// Tokens that stood for no term any more.
    pub refused: AtomicU64,
    /// Looks at the rows by those at the head of a queue.
    pub probes: AtomicU64,
    pub wait_us: AtomicU64,
}

impl Counters {
    fn reset(&self) {
        let Self { grants, take_overs, renewals, releases, fences, refused, probes, wait_us } = self;
        for counter in [grants, take_overs, renewals, releases, fences, refused, probes, wait_us] {
            counter.store(0, Relaxed);
        }
    }
}

pub fn count(counter: impl FnOnce(&Counters) -> &AtomicU64) {
    if let Some(counters) = COUNTERS.get() {
        counter(counters).fetch_add(1, Relaxed);
    }
}

/// Time from the wish to its answer.
pub fn waited(time: Duration) {
    if let Some(counters) = COUNTERS.get() {
        counters.wait_us.fetch_add(time.as_micros() as u64, Relaxed);
    }
}

/// One row when the library is preloaded, else none.
#[pg_extern(
    sql = "CREATE FUNCTION idgen.stat_get_lease(OUT grants bigint, OUT take_overs bigint, OUT renewals bigint, \
           OUT releases bigint, OUT fences bigint, OUT refused bigint, OUT probes bigint, OUT wait_time interval) \
           RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity, reason = "the columns of a view")]
fn stat_get_lease() -> TableIterator<
    'static,
    (
        name!(grants, i64),
        name!(take_overs, i64),
        name!(renewals, i64),
        name!(releases, i64),
        name!(fences, i64),
        name!(refused, i64),
        name!(probes, i64),
        name!(wait_time, Option<Interval>),
    ),
> {
    let row = COUNTERS.get().map(|counters| {
        let of = |counter: fn(&Counters) -> &AtomicU64| counter(counters).load(Relaxed) as i64;
        (
            of(|c| &c.grants),
            of(|c| &c.take_overs),
            of(|c| &c.renewals),
            of(|c| &c.releases),
            of(|c| &c.fences),
            of(|c| &c.refused),
            of(|c| &c.probes),
            timestamp::interval_of_us(of(|c| &c.wait_us)),
        )
    });
    TableIterator::new(row)
}

/// Sets the counters to zero.
pub fn reset() {
    COUNTERS.get().into_iter().for_each(Counters::reset);
}
