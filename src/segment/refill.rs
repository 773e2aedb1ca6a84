//! The refill worker: a background worker for each database that draws. A session starts it on demand, and it exits
//! when idle.
//!
//! A refill takes values from a row, commits durably, and installs them in the ring. Only the refill worker takes
//! values from rows; the supply worker takes values from a coordinator. A transaction commits before the values are in
//! the ring.

use super::fleet::servers;
use super::state::{NewRange, evict, exhaust, install, ring, ring_state};
use super::store::{self, NotLocked, StoredTag};
use super::workers::{self, in_transaction, keep_error, wanted, was_cancelled, while_running};
use crate::pg::latch::{self, WaitEvent};
use crate::pg::xact::{self, Durability};
use crate::pg::{session, system_clock};
use crate::settings;
use idgen_core::segment::refillers::Duty;
use idgen_core::segment::tag::next_step;
use idgen_core::segment::{RingTenant, ValueRun};
use pgrx::prelude::*;
use std::time::{Duration, Instant};

/// Long enough to serve slow series without another start, short enough for DROP DATABASE, which waits five seconds.
const IDLE: Duration = Duration::from_secs(2);

/// After a failed refill.
const RETRY: Duration = Duration::from_millis(100);

static MAIN_WAIT: WaitEvent = WaitEvent::new(c"IdgenRefillMain");

/// The main function of the worker.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_refill(argument: pg_sys::Datum) {
    if let Some(duty) = workers::begin(argument, false) {
        run(duty);
    }
}

/// The main loop: serves demand until there was none for a while. A refill that fails repeatedly counts as none, so
/// that it does not keep the database from being dropped. A session that waits for it starts another worker.
fn run(duty: Duty) {
    let mut idle_since = Instant::now();
    let mut failing = false;
    loop {
        check_for_interrupts!();
        if session::is_reload_pending() {
            session::reload_configuration();
        }
        let mut refilled = false;
        for (index, tenant) in wanted(duty) {
            let Some(demand) = workers::take_demand(index, tenant.handle).filter(|demand| *demand > 0) else {
                continue;
            };
            let succeeded = serve(index, tenant, demand);
            if succeeded || !failing {
                idle_since = Instant::now();
            }
            failing = !succeeded;
            refilled |= succeeded;
        }
        if refilled {
            // The commit may have waited on the latch, and reset it after a session stored demand and set it.
            continue;
        }
        let pause = IDLE.saturating_sub(idle_since.elapsed());
        if pause.is_zero() {
            if workers::end(duty, failing) {
                return;
            }
            idle_since = Instant::now();
            continue;
        }
        // Resets the latch before demand is read.
        latch::wait(Some(if failing { pause.min(RETRY) } else { pause }), &MAIN_WAIT);
    }
}

/// Refills one ring, and wakes its waiters. False if it failed.
fn serve(index: usize, tenant: RingTenant, demand: u64) -> bool {
    let failure = while_running(index, demand, || refill(index, tenant, demand)).err();
    if let Some(reason) = &failure
        && keep_error(index, tenant, demand, reason)
    {
        log!("could not refill a segment: {reason}");
    }
    ring_state(index).refilled.broadcast();
    failure.is_none()
}

fn refill(index: usize, tenant: RingTenant, demand: u64) -> Result<(), String> {
    match in_transaction(|| take(index, tenant, demand))?? {
        Taken::Range(NewRange { range, .. }) if was_cancelled() => return Err(skipped(&range)),
        Taken::Range(grant) => install(tenant.key, grant),
        Taken::Exhausted { version } => exhaust(index, tenant.key, version),
        Taken::NoRoom => {}
        Taken::Gone => evict(index, tenant),
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

/// The values that a transaction has taken from a row.
enum Taken {
    Range(NewRange),
    Exhausted {
        version: i64,
    },
    /// The ring holds two ranges, with values skipped between them.
    NoRoom,
    /// There is no such row or table, or the row is older than the ring, or its values come from a coordinator.
    Gone,
}

/// Takes values from the row, in the running transaction. The error says why it may not.
fn take(index: usize, tenant: RingTenant, demand: u64) -> Result<Taken, String> {
    let began = Instant::now();
    if store::SEGMENT.find().is_none() {
        return Ok(Taken::Gone);
    }
    if !ring(index).has_room() {
        return Ok(Taken::NoRoom);
    }
    xact::require_durability(Durability::Failover);
    let StoredTag { tag, version, definition, link, .. } = match store::lock(tenant.key.creation) {
        Ok(row) => row,
        Err(NotLocked::Busy) => return Err(BUSY.to_owned()),
        Err(NotLocked::Gone) => return Ok(Taken::Gone),
    };
    // The trigger of idgen.segment has announced a change that another trigger prevented.
    if version < tenant.version {
        return Ok(Taken::Gone);
    }
    // Whatever the ring says: other servers draw from the values above `max_id`. Sessions attach again, by this row.
    if link.is_attached() {
        return Ok(Taken::Gone);
    }
    let allocation = servers::own_allocation(&tag, tenant.key.creation, &definition, &link)?;
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
        return Ok(Taken::Exhausted { version });
    };
    store::raise_max_id(tenant.key.creation, range.last(), Some(step));
    let low_water = Some(settings::segment_low_water(range.count));
    Ok(Taken::Range(NewRange { range, version, is_attached: false, low_water, turn: None, began }))
}
