//! The view `idgen.stat_snowflake`, and the checks of snowflake ids: layouts that end, and transactions that hold back
//! settled ids.

use super::next::{COUNTERS, GeneratorCounters, flush};
use super::settled::{self, EARLIEST_DRAWS, prepared_draws};
use super::{errors, layouts};
use crate::clock::GENERATORS;
use crate::error::{Check, listed};
use crate::pg::datum::Composite;
use crate::pg::spi::{Query, value};
use crate::pg::{datum, recovery, session, system_clock};
use idgen_core::generator::GeneratorTenant;
use idgen_core::layout::time_text;
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use std::collections::HashMap;
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

/// Sets the counters to zero.
pub fn reset() {
    flush();
    COUNTERS.get().into_iter().flat_map(|counters| counters.iter()).for_each(GeneratorCounters::reset);
}

pub fn checks() -> Vec<Check> {
    vec![layouts(), settled()]
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
    let action =
        "Move its tables to a layout with more time bits, a longer unit or a later epoch, and observe their ids.";
    match layout.ends_at_ms() <= now_ms {
        true => Check::error(NAME, format!("draws in layout \"{layout}\" have failed since {ends_at}"), action)
            .since_ms(Some(layout.ends_at_ms())),
        false => Check::warning(NAME, format!("draws in layout \"{layout}\" fail from {ends_at} on"), action),
    }
    .affects(layout.to_string())
}

/// A transaction that has drawn an id fails the check if it is open for this long: consumers wait for it. The time of the id
/// does not say that, because ids can be ahead of the clock.
const LATE_MS: i64 = 300_000;

/// Since when the transactions of processes are open.
static OPEN: Query = Query::of_statistics(
    "SELECT pid, xact_start FROM pg_catalog.pg_stat_get_activity(NULL) WHERE xact_start IS NOT NULL",
);

/// Fails if settled reads do, or if they lag.
fn settled() -> Check {
    const NAME: &str = "settled";
    let Some(draws) = EARLIEST_DRAWS.get().filter(|_| !recovery::is_in_progress()) else {
        return Check::ok(NAME, "no id is drawn here");
    };
    let late_ms = system_clock::wall_ms() - LATE_MS;
    let mut late: Vec<(i64, String)> = Vec::new();
    let open: HashMap<i32, i64> =
        OPEN.read_latest(&[], |row| (value(row, 1), datum::to_us(value(row, 2)) / 1000)).into_iter().collect();
    for (index, _) in draws.iter().enumerate().filter(|(_, draw)| draw.get().is_some()) {
        let pid = session::process_at(index);
        late.extend(open.get(&pid).map(|since_ms| (*since_ms, format!("process {pid}"))));
    }
    match prepared_draws() {
        Err(unknown) => {
            return Check::raising(NAME, errors::prepared_without_lock(unknown)).affects("snowflake_settled()");
        }
        Ok(prepared) => {
            let drew = |xid: u32| prepared.iter().any(|draw| draw.xid == xid && draw.earliest_ms.is_some());
            let drawn = settled::prepared().into_iter().filter(|(xid, _)| drew(*xid));
            late.extend(drawn.map(|(xid, since_ms)| (since_ms, format!("prepared transaction {xid}"))));
        }
    }
    late.retain(|(since_ms, _)| *since_ms < late_ms);
    late.sort_unstable();
    let Some(&(since_ms, _)) = late.first() else {
        return Check::ok(NAME, "no transaction holds settled ids back");
    };
    let holders: Vec<String> = late.into_iter().map(|(_, holder)| holder).collect();
    Check::warning(
        NAME,
        format!(
            "settled ids wait for {}, which has drawn an id, and whose transaction is open since {}",
            holders[0],
            time_text(since_ms)
        ),
        "End it: COMMIT or ROLLBACK PREPARED by its gid in pg_prepared_xacts, or SELECT pg_terminate_backend(pid).",
    )
    .since_ms(Some(since_ms))
    .affects(listed(&holders))
}
