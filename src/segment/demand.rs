//! Demand for refills: requests by sessions, and the start of the refill worker.

use super::errors;
use super::state::{SEGMENTS, Segments, ring_state, ring_states};
use crate::pg::bgworker::Worker;
use crate::pg::ereport::Report;
use crate::pg::latch;
use crate::pg::{session, system_clock};
use idgen_core::segment::RingTenant;
use idgen_core::segment::refillers::Call;
use std::sync::atomic::Ordering::Relaxed;

const WORKER: Worker = Worker { name: "idgen refill", function: "idgen_refill", connects: true };

/// Requests a refill of a ring that runs low. A failure is ignored: values are left, and the ring that runs dry reports
/// it.
#[cold]
pub fn prefetch(index: usize) {
    ring_state(index).demand.fetch_max(1, Relaxed);
    let _ = summon();
}

/// Wakes the refill worker of this database, or starts one. Call it after storing the demand.
pub fn summon() -> Result<(), Report> {
    let database = session::database();
    let call = SEGMENTS.exclusive(|segments| segments.refillers.call(database, system_clock::boot_us()));
    match call {
        // SAFETY: the refill worker has stored the address.
        Call::Wake { latch } => unsafe { latch::set_at(latch) },
        Call::Start => {
            if !WORKER.start_for_database(database) {
                SEGMENTS.exclusive(|segments| segments.refillers.give_up(database));
                return Err(errors::no_worker());
            }
        }
        Call::Wait => {}
    }
    Ok(())
}

/// The rings of a database with demand.
pub fn wanted(database: u32) -> Vec<(usize, RingTenant)> {
    // Allocated before the lock is acquired.
    let mut found = Vec::with_capacity(ring_states().len());
    SEGMENTS.exclusive(|segments| found.extend(with_demand(segments, database)));
    found
}

/// The rings of a database with demand. For the holder of the segments lock.
pub fn with_demand<'a>(segments: &'a Segments, database: u32) -> impl Iterator<Item = (usize, RingTenant)> + 'a {
    let states = ring_states();
    let of_database = move |(index, tenant): (usize, &Option<RingTenant>)| {
        let tenant = tenant.filter(|tenant| tenant.key.database == database)?;
        (states[index].demand.load(Relaxed) > 0).then_some((index, tenant))
    };
    segments.table.tenants.iter().enumerate().filter_map(of_database)
}
