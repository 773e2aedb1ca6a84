//! The view `idgen.stat_snowflake`.

use super::next::{COUNTERS, GeneratorCounters, flush};
use crate::clock::GENERATORS;
use crate::pg::datum;
use idgen_core::generator::GeneratorTenant;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One row of `idgen.stat_snowflake` for each id space that has a generator.
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity, reason = "the columns of a view")]
fn stat_get_snowflake() -> TableIterator<
    'static,
    (
        name!(layout, String),
        name!(datacenter, i32),
        name!(worker, i32),
        name!(last_id, Option<i64>),
        name!(last_time, Option<TimestampWithTimeZone>),
        name!(issued, i64),
        name!(batches, i64),
        name!(borrowed, i64),
        name!(waits, i64),
        name!(wait_us, i64),
        name!(ends_at, TimestampWithTimeZone),
    ),
> {
    flush();
    let rows = tenants().into_iter().map(|(index, tenant, last)| {
        let counters = &COUNTERS.require()[index];
        let count = |counter: &AtomicU64| counter.load(Relaxed) as i64;
        (
            tenant.layout.to_string(),
            tenant.node.datacenter as i32,
            tenant.node.worker as i32,
            last.map(|slot| tenant.space.id(slot)),
            last.and_then(|slot| datum::from_ms(tenant.space.time_ms(slot))),
            count(&counters.issued),
            count(&counters.batches),
            count(&counters.borrowed),
            count(&counters.waits),
            count(&counters.wait_us),
            datum::from_ms_or_infinity(tenant.layout.ends_at_ms()),
        )
    });
    TableIterator::new(rows)
}

/// Every tenant, with the index of its generator and the last slot that it issued. Empty without preload.
pub fn tenants() -> Vec<(usize, GeneratorTenant, Option<u64>)> {
    let Some(counters) = COUNTERS.get() else {
        return Vec::new();
    };
    // Allocated before the lock is acquired.
    let mut found = Vec::with_capacity(counters.len());
    GENERATORS.shared(|table| {
        found.extend(table.in_use().map(|(index, tenant, free)| (index, *tenant, tenant.last_issued(free))));
    });
    found
}

/// Sets the counters to zero.
pub fn reset() {
    flush();
    COUNTERS.get().into_iter().flat_map(|counters| counters.iter()).for_each(GeneratorCounters::reset);
}
