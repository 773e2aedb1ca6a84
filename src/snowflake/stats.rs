//! Counters of generators, and the view `idgen.stat_snowflake`.
//!
//! An issue counts in this process only. The sums go to shared memory at the end of the transaction, after some thousand
//! calls, and when the process changes to another generator. An atomic add on a shared cache line for each id would cost
//! as much as the id.

use crate::clock::GENERATORS;
use crate::pg::{timestamp, xact};
use crate::settings;
use crate::shmem::Part;
use idgen_core::generator::GeneratorTenant;
use idgen_core::snowflake::SlotRun;
use pgrx::prelude::*;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Counters of one generator, in cache lines of their own. No code depends on their order, so every access is relaxed.
#[repr(align(128))]
#[derive(Default)]
pub struct Counters {
    issued: AtomicU64,
    batches: AtomicU64,
    borrowed: AtomicU64,
    waits: AtomicU64,
    wait_us: AtomicU64,
}

pub static COUNTERS: Part<&'static [Counters]> =
    Part::new(c"idgen snowflake counters", |block| block.array(settings::max_generators(), Counters::default));

impl Counters {
    pub fn reset(&self) {
        for counter in [&self.issued, &self.batches, &self.borrowed, &self.waits, &self.wait_us] {
            counter.store(0, Relaxed);
        }
    }
}

/// A long statement flushes after this many calls.
const FLUSH_EVERY: u64 = 4096;

/// Counts of this process for one generator since the last flush. A process has one thread, so loads and stores suffice;
/// the fields are atomics only because this is a static.
struct Pending {
    index: AtomicUsize,
    calls: AtomicU64,
    issued: AtomicU64,
    batches: AtomicU64,
    borrowed: AtomicU64,
}

static PENDING: Pending = Pending {
    index: AtomicUsize::new(0),
    calls: AtomicU64::new(0),
    issued: AtomicU64::new(0),
    batches: AtomicU64::new(0),
    borrowed: AtomicU64::new(0),
};

#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed) + n, Relaxed);
}

/// Counts a run that was issued from the generator at `index`.
#[inline]
pub fn count(index: usize, run: SlotRun, batch: bool) {
    if PENDING.index.load(Relaxed) != index || PENDING.calls.load(Relaxed) >= FLUSH_EVERY {
        flush();
        PENDING.index.store(index, Relaxed);
    }
    add(&PENDING.calls, 1);
    add(&PENDING.issued, run.count);
    add(&PENDING.borrowed, run.borrowed);
    add(&PENDING.batches, u64::from(batch));
}

/// Adds the pending counts to shared memory. If the generator was given to another space, the new space gets a few calls of
/// the old one. A check at each id would cost more than that is worth.
#[cold]
fn flush() {
    let Some(counters) = of(PENDING.index.load(Relaxed)) else {
        return;
    };
    counters.issued.fetch_add(PENDING.issued.swap(0, Relaxed), Relaxed);
    counters.batches.fetch_add(PENDING.batches.swap(0, Relaxed), Relaxed);
    counters.borrowed.fetch_add(PENDING.borrowed.swap(0, Relaxed), Relaxed);
    PENDING.calls.store(0, Relaxed);
}

/// Flushes at the end of each transaction from now on.
pub fn flush_at_transaction_end() {
    static REGISTERED: Once = Once::new();
    let flush_pending = |_| {
        if PENDING.calls.load(Relaxed) > 0 {
            flush();
        }
    };
    REGISTERED.call_once(|| xact::on_xact_event(flush_pending));
}

fn of(index: usize) -> Option<&'static Counters> {
    COUNTERS.get().map(|counters| &counters[index])
}

pub fn count_wait(index: usize) {
    if let Some(counters) = of(index) {
        counters.waits.fetch_add(1, Relaxed);
    }
}

pub fn count_wait_time(index: usize, time: Duration) {
    if let Some(counters) = of(index) {
        counters.wait_us.fetch_add(time.as_micros() as u64, Relaxed);
    }
}

extension_sql_file!("views.sql", name = "snowflake_views", requires = [stat_get_snowflake]);

/// One row of `idgen.stat_snowflake` for each id space that has a generator.
#[pg_extern(sql = "CREATE FUNCTION idgen.stat_get_snowflake(OUT layout text, OUT datacenter int, OUT worker int, \
           OUT last_id bigint, OUT last_time timestamptz, OUT issued bigint, OUT batches bigint, OUT borrowed bigint, \
           OUT waits bigint, OUT wait_us bigint, OUT ends_at timestamptz) RETURNS SETOF record \
           VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
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
        let count = |counter: fn(&Counters) -> &AtomicU64| {
            of(index).map_or(0, |counters| counter(counters).load(Relaxed) as i64)
        };
        (
            tenant.layout.to_string(),
            tenant.node.datacenter as i32,
            tenant.node.worker as i32,
            last.map(|slot| tenant.space.id(slot)),
            last.and_then(|slot| timestamp::from_ms(tenant.space.time_ms(slot))),
            count(|c| &c.issued),
            count(|c| &c.batches),
            count(|c| &c.borrowed),
            count(|c| &c.waits),
            count(|c| &c.wait_us),
            timestamp::from_ms_or_infinity(tenant.layout.ends_at_ms()),
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
        for (index, tenant) in table.tenants.iter().enumerate() {
            if let Some(tenant) = tenant {
                let free = table.generators[index].free_slot(tenant.handle);
                found.push((index, *tenant, tenant.last_issued(free)));
            }
        }
    });
    found
}

/// Sets the counters to zero.
pub fn reset() {
    flush();
    COUNTERS.get().into_iter().flat_map(|counters| counters.iter()).for_each(Counters::reset);
}
