//! The refill worker: a background worker for each database that draws. A session starts it on demand, and it exits
//! when idle.
//!
//! Only the refill worker takes values from rows; the supply worker takes values from a coordinator.

use super::fleet::servers::Rows;
use super::port::Port;
use super::state::{evict, exhaust, ring, ring_state};
use super::store;
use super::workers::{self, keep_error, wanted, while_running};
use crate::pg::latch::{self, WaitEvent};
use crate::pg::session;
use crate::settings;
use idgen_core::segment::RingTenant;
use idgen_core::segment::refill::{Refilling, refill};
use idgen_core::segment::refillers::Duty;
use idgen_core::segment::tag::TagRow;
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

struct RefilledRing {
    index: usize,
    tenant: RingTenant,
    rows: Rows<'static>,
}

impl Refilling for Port<RefilledRing> {
    type Rows = Rows<'static>;

    fn rows(&mut self) -> &mut Rows<'static> {
        &mut self.0.rows
    }

    fn has_room(&mut self) -> bool {
        ring(self.0.index).has_room()
    }

    fn low_water(&mut self, count: u64) -> u64 {
        settings::segment_low_water(count)
    }

    fn raise(&mut self, row: &TagRow) {
        store::raise_max_id(row.key.creation, row.definition.max_id, Some(row.definition.step));
        crate::pg::crash_point!("segment: max_id raised");
    }

    fn exhaust(&mut self, version: i64) {
        exhaust(self.0.index, self.0.tenant.key, version);
    }

    fn evict(&mut self) {
        evict(self.0.index, self.0.tenant);
    }
}

/// Refills one ring, and wakes its waiters. False if it failed.
fn serve(index: usize, tenant: RingTenant, demand: u64) -> bool {
    let mut port = Port(RefilledRing { index, tenant, rows: Rows::default() });
    let failure = while_running(index, demand, || refill(&mut port, &tenant, demand)).err();
    if let Some(reason) = &failure
        && keep_error(index, tenant, demand, reason)
    {
        log!("could not refill a segment: {reason}");
    }
    ring_state(index).refilled.broadcast();
    failure.is_none()
}
