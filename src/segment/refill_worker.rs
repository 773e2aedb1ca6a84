//! The refill worker: a background worker for each database that draws. A session starts it on demand, and it exits
//! when idle.

use super::demand::{self, wanted};
use super::{refill, worker_process};
use crate::pg::latch::{self, WaitEvent};
use crate::pg::session;
use idgen_core::segment::refillers::Duty;
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
    if let Some(duty) = worker_process::begin(argument, false) {
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
            let Some(demand) = demand::take(index, tenant.handle).filter(|demand| *demand > 0) else { continue };
            let succeeded = refill::serve(index, tenant, demand);
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
            if worker_process::end(duty, failing) {
                return;
            }
            idle_since = Instant::now();
            continue;
        }
        // Resets the latch before demand is read.
        latch::wait(Some(if failing { pause.min(RETRY) } else { pause }), &MAIN_WAIT);
    }
}
