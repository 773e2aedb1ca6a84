//! One refill, by the refill worker: takes values from a row, commits durably, and installs them in the ring.
//!
//! Only the refill worker does that; the supply worker, which takes values from a coordinator, uses parts of it. A
//! transaction commits before the values are in the ring.

use super::fleet;
use super::state::{RingRow, SEGMENTS, attach_ring, ring, ring_state};
use super::store::{self, LockedRow};
use crate::pg::system_clock;
use crate::pg::xact::{self, Durability};
use crate::settings;
use idgen_core::segment::tag::next_step;
use idgen_core::segment::{RingTenant, TagKey, ValueRun};
use parking_lot::Mutex;
use pgrx::bgworkers::BackgroundWorker;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, compiler_fence};
use std::time::{Duration, Instant};

/// The refill that is running: its ring, and how many values are wanted.
static RUNNING: Mutex<Option<(usize, u64)>> = Mutex::new(None);

/// A refill has begun in this process.
static HAS_SERVED: AtomicBool = AtomicBool::new(false);

/// A cancel has arrived. One that arrives during the commit leaves open whether a synchronous standby has the commit.
pub static CANCELLED: AtomicBool = AtomicBool::new(false);

/// A transaction of this worker is running. A cancel ends that, and nothing else.
pub static IN_TRANSACTION: AtomicBool = AtomicBool::new(false);

/// Refills one ring, and wakes its waiters. False if it failed.
pub fn serve(index: usize, tenant: RingTenant, demand: u64) -> bool {
    let failure = while_running(index, demand, || refill(index, tenant, demand)).err();
    if let Some(reason) = &failure
        && keep_error(index, tenant, demand, reason)
    {
        log!("could not refill a segment: {reason}");
    }
    ring_state(index).refilled.broadcast();
    failure.is_none()
}

/// Works for a ring. If the process exits before the end, the demand is restored.
pub fn while_running<R>(index: usize, demand: u64, work: impl FnOnce() -> R) -> R {
    *RUNNING.lock() = Some((index, demand));
    HAS_SERVED.store(true, Relaxed);
    let result = work();
    *RUNNING.lock() = None;
    result
}

/// Restores the demand of the refill that is running: it brings nothing, or the worker exits.
pub fn restore_demand() {
    if let Some((index, demand)) = RUNNING.lock().take() {
        ring_state(index).demand.fetch_max(demand, Relaxed);
    }
}

fn refill(index: usize, tenant: RingTenant, demand: u64) -> Result<(), String> {
    match in_transaction(|| take(index, tenant, demand))? {
        Taken::Range(Grant { range, .. }) if was_cancelled() => return Err(skipped(&range)),
        Taken::Range(grant) => install(tenant.key, grant),
        Taken::Exhausted { version } => exhaust(index, tenant.key, version),
        Taken::NoRoom => {}
        Taken::Refused(reason) => return Err(reason),
        Taken::Gone => evict(index, tenant),
        Taken::Busy => return Err(BUSY.to_owned()),
    }
    Ok(())
}

pub const BUSY: &str = "A transaction that has not ended holds a lock on the segment's row in idgen.segment.";

pub fn skipped(range: &ValueRun) -> String {
    format!(
        "The wait for the synchronous standby was canceled, so the values {} to {} are skipped.",
        range.first,
        range.last()
    )
}

/// Keeps the error for waiters and the view, and restores the demand. True for the first error in a row. Does nothing if
/// the ring has become another tag's.
pub fn keep_error(index: usize, tenant: RingTenant, demand: u64, reason: &str) -> bool {
    SEGMENTS.exclusive(|segments| {
        if !segments.table.has_tenancy(index, tenant.handle) {
            return false;
        }
        let error = &mut segments.errors[index];
        let is_new = error.is_clear();
        error.set(reason);
        ring_state(index).demand.fetch_max(demand, Relaxed);
        is_new
    })
}

/// Keeps why the worker ends, unless the ring has a reason that this process has found in a refill.
pub fn keep_end(index: usize, tenant: RingTenant, reason: &str) {
    SEGMENTS.exclusive(|segments| {
        let is_unknown = segments.errors[index].is_clear() || !HAS_SERVED.load(Relaxed);
        if is_unknown && segments.table.has_tenancy(index, tenant.handle) {
            segments.errors[index].set(reason);
        }
    });
}

/// The values that a transaction has taken from a row.
enum Taken {
    Range(Grant),
    Exhausted {
        version: i64,
    },
    /// The ring holds two ranges, with values skipped between them.
    NoRoom,
    /// Another transaction has locked the row.
    Busy,
    /// Servers that are attached to the tag may have received these values.
    Refused(String),
    /// There is no such row or table, or the row is older than the ring, or its values come from a coordinator.
    Gone,
}

/// Values for the ring, once the transaction has committed.
pub struct Grant {
    pub range: ValueRun,
    pub version: i64,
    pub is_attached: bool,
    /// The ring requests values when this many are left; never if `None`.
    pub low_water: Option<u64>,
    /// The turn that brings them. Its calls draw them; the values that the ring has are discarded.
    pub turn: Option<u64>,
    pub began: Instant,
}

/// Takes values from the row, in the running transaction.
fn take(index: usize, tenant: RingTenant, demand: u64) -> Taken {
    let began = Instant::now();
    if store::SEGMENT.find().is_none() {
        return Taken::Gone;
    }
    if !ring(index).has_room() {
        return Taken::NoRoom;
    }
    xact::require_durability(Durability::Failover);
    let (tag, version, definition, link) = match store::lock(tenant.key.creation) {
        LockedRow::Found { tag, version, definition, link } => (tag, version, definition, link),
        LockedRow::Busy => return Taken::Busy,
        LockedRow::Gone => return Taken::Gone,
    };
    // The trigger of idgen.segment has announced a change that another trigger prevented.
    if version < tenant.version {
        return Taken::Gone;
    }
    // Whatever the ring says: other servers draw from the values above `max_id`. Sessions attach again, by this row.
    if link.is_attached() {
        return Taken::Gone;
    }
    let allocation = match fleet::grant::own_allocation(&tag, tenant.key.creation, &definition, &link) {
        Ok(allocation) => allocation,
        Err(reason) => return Taken::Refused(reason),
    };
    let step = match tenant.refilled_us {
        Some(refilled_us) if version == tenant.version => {
            let lifetime = Duration::from_micros((system_clock::boot_us() - refilled_us).max(0) as u64);
            let target = Duration::from_micros(definition.target_us as u64);
            next_step(definition.step, lifetime, target, definition.min_step..=definition.max_step)
        }
        // No range was used up yet.
        _ => definition.step,
    };
    let Some(range) = allocation.next(demand.max(step as u64)) else {
        return Taken::Exhausted { version };
    };
    store::raise_max_id(tenant.key.creation, range.last(), Some(step));
    let low_water = Some(settings::segment_low_water(range.count));
    Taken::Range(Grant { range, version, is_attached: false, low_water, turn: None, began })
}

/// True if a cancel, a stop or the end of the postmaster may have ended the wait for the synchronous standby early.
pub fn was_cancelled() -> bool {
    // SAFETY: reads a variable of this process.
    CANCELLED.load(Relaxed) || unsafe { pg_sys::ProcDiePending } != 0
}

/// Installs values in the ring of their row. If the row has changed since, the values are skipped: the change applies
/// from the next value on.
pub fn install(key: TagKey, grant: Grant) {
    let Grant { range, version, is_attached, low_water, turn, began } = grant;
    let index = attach_ring(RingRow { key, version, stride: range.stride, is_attached }).index;
    let state = ring_state(index);
    SEGMENTS.exclusive(|segments| {
        let is_same = |tenant: &&mut RingTenant| tenant.key == key && tenant.version == version;
        let Some(tenant) = segments.table.tenants[index].as_mut().filter(is_same) else {
            return;
        };
        match turn {
            Some(turn) => {
                ring(index).pass(range.count);
                segments.turns[index].bring(turn, range);
            }
            None => ring(index).install(tenant.handle, range.first, range.count, low_water),
        }
        tenant.refilled_us = Some(system_clock::boot_us());
        segments.errors[index].clear();
    });
    state.refill_us.store(began.elapsed().as_micros() as u64, Relaxed);
    state.exhausted.store(false, Relaxed);
    state.dry_since_ms.store(0, Relaxed);
    state.refills.fetch_add(1, Relaxed);
}

/// The row of this version has no more values. This concerns sessions that attached by this version or a lower one.
/// Those that attached by a higher one have yet to request values.
pub fn exhaust(index: usize, key: TagKey, version: i64) {
    SEGMENTS.exclusive(|segments| {
        let is_concerned = |tenant: &RingTenant| tenant.key == key && tenant.version <= version;
        if segments.table.tenants[index].as_ref().is_some_and(is_concerned) {
            ring_state(index).exhausted.store(true, Relaxed);
        }
    });
}

/// Ends the ring of a tag that is gone. Sessions that draw from it look the tag up again.
pub fn evict(index: usize, tenant: RingTenant) {
    SEGMENTS.exclusive(|segments| {
        if segments.table.has_tenancy(index, tenant.handle) {
            segments.table.evict(index);
        }
    });
}

/// Works in a transaction and commits it. An error rolls it back; its message is returned.
pub fn in_transaction<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    CANCELLED.store(false, Relaxed);
    IN_TRANSACTION.store(true, Relaxed);
    let work = AssertUnwindSafe(work);
    let outcome =
        PgTryBuilder::new(AssertUnwindSafe(|| Ok(BackgroundWorker::transaction(AssertUnwindSafe(|| (work.0)())))))
            .catch_others(|cause| {
                let message = match &cause {
                    CaughtError::PostgresError(report)
                    | CaughtError::ErrorReport(report)
                    | CaughtError::RustPanic { ereport: report, .. } => report.message().to_owned(),
                };
                // SAFETY: as PostgreSQL's own main loops do after an error.
                unsafe {
                    pg_sys::AbortCurrentTransaction();
                    pg_sys::FlushErrorState();
                }
                Err(message)
            })
            .execute();
    IN_TRANSACTION.store(false, Relaxed);
    // The handler of the signal runs in this thread: first it must see that there is no transaction.
    compiler_fence(SeqCst);
    // SAFETY: a flag of this process. A cancel that came too late would end the process at its next check.
    unsafe { pg_sys::QueryCancelPending = 0 };
    outcome
}
