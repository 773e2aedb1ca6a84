//! Demand for values: requests by sessions, and the start of the worker that serves a ring. The refill worker takes
//! values from rows of this database, the supply worker from a coordinator.

use super::errors;
use super::state::{SEGMENTS, Segments, ring_state, ring_states};
use crate::pg::bgworker::Worker;
use crate::pg::ereport::Report;
use crate::pg::latch;
use crate::pg::{session, system_clock};
use idgen_core::segment::refillers::{Call, Duty, Refillers};
use idgen_core::segment::{RingHandle, RingTenant};
use std::sync::atomic::Ordering::Relaxed;

const REFILL: Worker = Worker { name: "idgen refill", function: "idgen_refill", connects: true };

pub const SUPPLY: Worker = Worker { name: "idgen supply", function: "idgen_supply", connects: true };

/// Requests values for a ring that runs low. A failure is ignored: values are left, and the ring that runs dry reports
/// it.
#[cold]
pub fn prefetch(index: usize) {
    let state = ring_state(index);
    // The supply worker reads for itself how many values are left. Its demand is that of waiting sessions only.
    if !state.is_attached.load(Relaxed) {
        state.demand.fetch_max(1, Relaxed);
    }
    if summon_for(duty_of(index)).is_err() {
        keep_missing(index);
    }
}

/// Wakes the worker that serves a ring of this database, or starts one. Call it after storing the demand, and again while there
/// is none: after a failure, the next start has to wait.
pub fn summon(index: usize) -> Result<(), Report> {
    summon_by(duty_of(index), Refillers::call).inspect_err(|_| keep_missing(index))
}

/// For the view and the check of segments: no worker could be started for this ring.
fn keep_missing(index: usize) {
    SEGMENTS.exclusive(|segments| segments.errors[index].set(errors::NO_WORKER));
}

fn duty_of(index: usize) -> Duty {
    let is_attached = ring_state(index).is_attached.load(Relaxed);
    Duty { database: session::database(), is_attached }
}

/// Wakes the worker of a duty, or starts one, also after a failure. For callers that do not ask again.
pub fn summon_for(duty: Duty) -> Result<(), Report> {
    summon_by(duty, Refillers::call_once)
}

fn summon_by(duty: Duty, call: fn(&mut Refillers<'static>, Duty, i64) -> Call) -> Result<(), Report> {
    let call = SEGMENTS.exclusive(|segments| call(&mut segments.refillers, duty, system_clock::boot_us()));
    match call {
        // SAFETY: the worker has stored the address.
        Call::Wake { latch } => unsafe { latch::set_at(latch) },
        Call::Start => {
            let worker = if duty.is_attached { SUPPLY } else { REFILL };
            if !worker.start_for_database(duty.database) {
                SEGMENTS.exclusive(|segments| segments.refillers.give_up(duty));
                return Err(if duty.is_attached { errors::no_supply_worker() } else { errors::no_refill_worker() });
            }
        }
        Call::Wait => {}
    }
    Ok(())
}

/// Tells the supply worker of a database, if one runs, that tags were attached or detached. The commit calls this, so it
/// starts none.
pub fn announce_links(database: u32) {
    let latch = SEGMENTS.exclusive(|segments| {
        segments.link_changes += 1;
        segments.refillers.latch_of(Duty { database, is_attached: true })
    });
    if let Some(latch) = latch {
        // SAFETY: the worker has stored the address.
        unsafe { latch::set_at(latch) }
    }
}

/// How often [`announce_links`] was called.
pub fn link_changes() -> u64 {
    SEGMENTS.exclusive(|segments| segments.link_changes)
}

/// Takes the demand for a ring. `None` if the ring has become another tag's: then the demand is for that tag.
pub fn take(index: usize, handle: RingHandle) -> Option<u64> {
    // A tenancy begins under this lock, without demand.
    SEGMENTS.exclusive(|segments| {
        segments.table.has_tenancy(index, handle).then(|| ring_state(index).demand.swap(0, Relaxed))
    })
}

/// The rings of a duty with demand.
pub fn wanted(duty: Duty) -> Vec<(usize, RingTenant)> {
    // Allocated before the lock is acquired.
    let mut found = Vec::with_capacity(ring_states().len());
    SEGMENTS.exclusive(|segments| found.extend(with_demand(segments, duty)));
    found
}

/// The rings of a duty with demand. For the holder of the segments lock.
pub fn with_demand(segments: &Segments, duty: Duty) -> impl Iterator<Item = (usize, RingTenant)> + '_ {
    rings_of(segments, duty).filter(|(index, _)| ring_state(*index).demand.load(Relaxed) > 0)
}

/// The rings of a duty. For the holder of the segments lock.
pub fn rings_of(segments: &Segments, duty: Duty) -> impl Iterator<Item = (usize, RingTenant)> + '_ {
    let states = ring_states();
    let of_duty = move |(index, tenant): (usize, &Option<RingTenant>)| {
        let tenant = tenant.filter(|tenant| tenant.key.database == duty.database)?;
        (states[index].is_attached.load(Relaxed) == duty.is_attached).then_some((index, tenant))
    };
    segments.table.tenants.iter().enumerate().filter_map(of_duty)
}
