//! The view `idgen.stat_snowflake`, and the checks of snowflake ids: layouts that end, and transactions that hold back
//! settled ids.

use super::next::{COUNTERS, GeneratorCounters, flush};
use super::settled::DRAWS;
use super::{errors, layouts};
use crate::clock::GENERATORS;
use crate::error::Check;
use crate::pg::datum::Composite;
use crate::pg::{datum, system_clock};
use idgen_core::generator::GeneratorTenant;
use idgen_core::layout::time_text;
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One row of `idgen.stat_snowflake` for each id space that has a generator.
#[pg_extern(sql = false)]
fn stat_get_snowflake() -> SetOfIterator<'static, Composite<11>> {
    flush();
    let rows = tenants().into_iter().map(|(index, tenant, last)| {
        let counters = &COUNTERS.require()[index];
        let count = |counter: &AtomicU64| DatumWithOid::from(counter.load(Relaxed) as i64);
        let (datacenter, worker) = tenant.layout.pair(tenant.node);
        Composite([
            tenant.layout.to_string().into(),
            (datacenter as i32).into(),
            (worker as i32).into(),
            last.map(|slot| tenant.space.id(slot)).into(),
            last.and_then(|slot| datum::from_ms(tenant.space.time_ms(slot))).into(),
            count(&counters.issued),
            count(&counters.batches),
            count(&counters.borrowed),
            count(&counters.waits),
            count(&counters.wait_us),
            datum::from_ms_or_infinity(tenant.layout.ends_at_ms()).into(),
        ])
    });
    SetOfIterator::new(rows)
}

/// Every tenant, with the index of its generator and the last slot that it issued. Empty without preload.
fn tenants() -> Vec<(usize, GeneratorTenant, Option<u64>)> {
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

pub fn reset() {
    flush();
    COUNTERS.get().into_iter().flat_map(|counters| counters.iter()).for_each(GeneratorCounters::reset);
}

pub fn checks() -> Vec<Check> {
    vec![layouts(), DRAWS.check("settled")]
}

/// Fails if the default layout or another one in use has no ids yet, or ends within a year.
fn layouts() -> Check {
    const NAME: &str = "layouts";
    let now_ms = system_clock::wall_ms();
    if layouts::default().epoch_ms() > now_ms {
        return Check::raising(NAME, errors::before_epoch(&layouts::default(), now_ms)).affects("idgen.layout");
    }
    let in_use = tenants().into_iter().map(|(_, tenant, _)| tenant.layout);
    let ending = in_use.chain([layouts::default()]).filter(|layout| layout.ends_within_a_year(now_ms));
    let Some(layout) = ending.min_by_key(|layout| layout.ends_at_ms()) else {
        return Check::ok(NAME, "no layout in use ends within a year");
    };
    let ends_at = time_text(layout.ends_at_ms());
    let action = "For new columns, use a layout with more time bits, a longer unit or a later epoch. Its ids can equal \
                  those of this one.";
    match layout.ends_at_ms() <= now_ms {
        true => Check::error(NAME, format!("draws in layout \"{layout}\" have failed since {ends_at}"), action)
            .since_ms(Some(layout.ends_at_ms())),
        false => Check::warning(NAME, format!("draws in layout \"{layout}\" fail from {ends_at} on"), action),
    }
    .affects(layout.to_string())
}
