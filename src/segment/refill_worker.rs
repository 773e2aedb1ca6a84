//! The refill worker: a background worker for each database that draws. A session starts it on demand, and it exits
//! when idle.

use super::demand::{wanted, with_demand};
use super::refill;
use super::state::{SEGMENTS, ring_state};
use crate::pg::bgworker;
use crate::pg::latch;
use crate::pg::wait_event::WaitEvent;
use crate::pg::{session, xact};
use crate::shmem;
use pgrx::prelude::*;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Long enough to serve slow series without another start, short enough for DROP DATABASE, which waits five seconds.
const IDLE: Duration = Duration::from_secs(2);

/// After a failed refill.
const RETRY: Duration = Duration::from_millis(100);

static MAIN_WAIT: WaitEvent = WaitEvent::new(c"IdgenRefillMain");

/// How long a refill may wait for a lock on the table.
const LOCK_TIMEOUT: &CStr = c"500ms";

unsafe extern "C-unwind" {
    /// PostgreSQL's handler of SIGINT. Declared here, because pgrx's wrapper of it is no C function.
    #[link_name = "StatementCancelHandler"]
    fn cancel_statement(signal: c_int);
}

unsafe extern "C-unwind" fn on_cancel(signal: c_int) {
    refill::CANCELLED.store(true, Relaxed);
    // SAFETY: in a signal handler, as PostgreSQL calls it.
    unsafe { cancel_statement(signal) };
}

/// The main function of the worker.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_refill(argument: pg_sys::Datum) {
    // PostgreSQL's own handler of SIGTERM: it also ends the wait for a synchronous standby.
    bgworker::handle_signals(None, Some(on_cancel));
    if !shmem::is_preloaded() {
        return;
    }
    let database = bgworker::database_argument(argument);
    if !SEGMENTS.exclusive(|segments| segments.refillers.begin(database, latch::address())) {
        return;
    }
    DATABASE.store(database, Relaxed);
    // Runs whenever this process exits, except by a crash.
    xact::before_exit(before_exit);
    bgworker::connect(database, false);
    // Settings of the database must not make refills fail, and a lock held for long must not block the worker.
    bgworker::set_variable(c"default_transaction_read_only", c"off");
    bgworker::set_variable(c"default_transaction_isolation", c"read committed");
    bgworker::set_variable(c"lock_timeout", LOCK_TIMEOUT);
    run(database, latch::address());
}

/// The database of this worker. A process that could not connect has none by PostgreSQL's own account.
static DATABASE: AtomicU32 = AtomicU32::new(0);

/// The main loop: serves demand until there was none for a while. A refill that fails repeatedly counts as none, so
/// that it does not keep the database from being dropped. A session that waits for it starts another worker.
fn run(database: u32, latch: usize) {
    let mut idle_since = Instant::now();
    let mut failing = false;
    loop {
        check_for_interrupts!();
        if session::is_reload_pending() {
            session::reload_configuration();
        }
        let mut refilled = false;
        for (index, tenant) in wanted(database) {
            let demand = ring_state(index).demand.swap(0, Relaxed);
            if demand > 0 {
                let succeeded = refill::serve(index, tenant, demand);
                if succeeded || !failing {
                    idle_since = Instant::now();
                }
                failing = !succeeded;
                refilled |= succeeded;
            }
        }
        if refilled {
            // The commit may have waited on the latch, and reset it after a session stored demand and set it.
            continue;
        }
        let pause = IDLE.saturating_sub(idle_since.elapsed());
        if pause.is_zero() {
            if end(database, latch, failing) {
                return;
            }
            idle_since = Instant::now();
            continue;
        }
        // Resets the latch before demand is read.
        latch::wait(Some(if failing { pause.min(RETRY) } else { pause }), &MAIN_WAIT);
    }
}

/// Ends the worker's registration, unless there is demand. A session acquires the lock after storing demand. So either
/// the demand is seen here, or the session sees that the worker is gone.
fn end(database: u32, latch: usize, failing: bool) -> bool {
    SEGMENTS.exclusive(|segments| {
        let ends = failing || with_demand(segments, database).next().is_none();
        if ends {
            segments.refillers.end(database, latch);
        }
        ends
    })
}

/// The demand of an unfinished refill stays, and its waiters start another worker.
fn before_exit(_code: i32) {
    refill::restore_demand();
    let database = DATABASE.load(Relaxed);
    SEGMENTS.exclusive(|segments| segments.refillers.end(database, latch::address()));
    for (index, _) in wanted(database) {
        ring_state(index).refilled.broadcast();
    }
}
