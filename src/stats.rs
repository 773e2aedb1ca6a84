//! What the views read.
//!
//! An issue counts in this process only. The sums go to shared memory at the end of the transaction, every so many
//! calls, and when the process turns to another generator: an atomic add on a shared line for each id would cost as
//! much as the id.

use crate::{clock, segment, shmem, timestamp};
use idgen_core::snowflake::Run;
use idgen_core::table::Tenant;
use pgrx::prelude::*;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Calls after which a long statement's sums are seen by others.
const FLUSH_EVERY: u64 = 4096;

/// What this process has issued from one generator and not yet told. One thread, so loads and stores suffice; atomics
/// only because a static has to be one.
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
pub fn count(index: usize, run: Run, batch: bool) {
    if PENDING.index.load(Relaxed) != index || PENDING.calls.load(Relaxed) >= FLUSH_EVERY {
        flush();
        PENDING.index.store(index, Relaxed);
    }
    add(&PENDING.calls, 1);
    add(&PENDING.issued, run.count);
    add(&PENDING.borrowed, run.borrowed);
    add(&PENDING.batches, u64::from(batch));
}

/// Tells what is pending. A generator that has changed hands meanwhile gets the sums of its former tenant: a few calls
/// of statistics, not worth a look at each id.
#[cold]
fn flush() {
    let Some(shared) = shmem::shared() else {
        return;
    };
    let counters = &shared.counters[PENDING.index.load(Relaxed)];
    counters.issued.fetch_add(PENDING.issued.swap(0, Relaxed), Relaxed);
    counters.batches.fetch_add(PENDING.batches.swap(0, Relaxed), Relaxed);
    counters.borrowed.fetch_add(PENDING.borrowed.swap(0, Relaxed), Relaxed);
    PENDING.calls.store(0, Relaxed);
}

/// Makes every later end of a transaction tell what is pending.
pub fn flush_at_transaction_end() {
    static REGISTERED: Once = Once::new();
    // SAFETY: the callback has the signature of one, and lives as long as the library, which is never unloaded.
    REGISTERED.call_once(|| unsafe { pg_sys::RegisterXactCallback(Some(at_transaction_end), std::ptr::null_mut()) });
}

#[pg_guard]
unsafe extern "C-unwind" fn at_transaction_end(_event: pg_sys::XactEvent::Type, _arg: *mut std::ffi::c_void) {
    if PENDING.calls.load(Relaxed) > 0 {
        flush();
    }
}

pub fn count_wait(index: usize) {
    if let Some(shared) = shmem::shared() {
        shared.counters[index].waits.fetch_add(1, Relaxed);
    }
}

pub fn count_wait_time(index: usize, time: Duration) {
    if let Some(shared) = shmem::shared() {
        shared.counters[index].wait_us.fetch_add(time.as_micros() as u64, Relaxed);
    }
}

/// One row for each id space that has a generator: what `idgen.stat_snowflake` shows.
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
        let counters = shmem::shared().map(|shared| &shared.counters[index]);
        let of = |counter: fn(&shmem::Counters) -> &AtomicU64| {
            counters.map_or(0, |counters| counter(counters).load(Relaxed) as i64)
        };
        (
            tenant.layout.to_string(),
            tenant.node.datacenter as i32,
            tenant.node.worker as i32,
            last.map(|slot| tenant.space.id(slot)),
            last.and_then(|slot| timestamp::from_ms(tenant.space.time_ms(slot))),
            of(|c| &c.issued),
            of(|c| &c.batches),
            of(|c| &c.borrowed),
            of(|c| &c.waits),
            of(|c| &c.wait_us),
            timestamp::from_ms_or_infinity(tenant.layout.ends_at_ms()),
        )
    });
    TableIterator::new(rows)
}

/// Every tenant, with its generator and the last slot it issued. Nothing without preload.
pub fn tenants() -> Vec<(usize, Tenant, Option<u64>)> {
    let Some(shared) = shmem::shared() else {
        return Vec::new();
    };
    // Before the lock is taken: nothing may allocate under it.
    let mut found = Vec::with_capacity(shared.generators.len());
    shared.with_tenants(|tenants| {
        for (index, tenant) in tenants.iter().enumerate() {
            if let Some(tenant) = tenant {
                let free = shared.generators[index].free_slot(tenant.handle);
                found.push((index, *tenant, tenant.last_issued(free)));
            }
        }
    });
    found
}

/// Sets the counters of the views to zero.
#[pg_extern(sql = "CREATE FUNCTION idgen.reset_stats() RETURNS void VOLATILE PARALLEL UNSAFE \
           LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn reset_stats() {
    flush();
    if let Some(shared) = shmem::shared() {
        shared.counters.iter().for_each(shmem::Counters::reset);
        clock::stats::reset(shared.clock);
        segment::stats::reset(shared);
        shared.lease_counters.reset();
        shared.worker.reset();
    }
}
