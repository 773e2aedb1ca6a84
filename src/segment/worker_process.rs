//! How the refill worker and the supply worker of a database begin and end. A session starts them on demand.

use super::demand::{wanted, with_demand};
use super::refill;
use super::state::{SEGMENTS, ring_state};
use crate::pg::{bgworker, ereport, latch, system_clock, xact};
use crate::shmem;
use idgen_core::segment::refillers::Duty;
use parking_lot::Mutex;
use pgrx::prelude::*;
use std::ffi::{CStr, c_int};
use std::sync::atomic::Ordering::Relaxed;

/// How long a worker may wait for a lock on the table.
const LOCK_TIMEOUT: &CStr = c"500ms";

unsafe extern "C-unwind" {
    /// PostgreSQL's handler of SIGINT. Declared here, because pgrx's wrapper of it is no C function.
    #[link_name = "StatementCancelHandler"]
    fn cancel_statement(
        signal: c_int,
        #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17", feature = "pg18")))]
        sender: *const bgworker::Sender,
    );
}

unsafe extern "C-unwind" fn on_cancel(
    signal: c_int,
    #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17", feature = "pg18")))]
    sender: *const bgworker::Sender,
) {
    refill::CANCELLED.store(true, Relaxed);
    // Otherwise the next check for interrupts would raise an error that ends the process.
    if refill::IN_TRANSACTION.load(Relaxed) {
        // SAFETY: in a signal handler, as PostgreSQL calls it.
        unsafe {
            #[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17", feature = "pg18"))]
            cancel_statement(signal);
            #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17", feature = "pg18")))]
            cancel_statement(signal, sender);
        }
    }
}

/// The duty of this process. One that could not connect has no database by PostgreSQL's own account.
static DUTY: Mutex<Option<Duty>> = Mutex::new(None);

/// Registers this process and connects it. `None` if the database has such a worker already, or without preload. The
/// main function of a worker calls this first. SIGTERM has PostgreSQL's own handler, which also ends the wait for a
/// synchronous standby.
pub fn begin(argument: pg_sys::Datum, is_attached: bool) -> Option<Duty> {
    bgworker::handle_signals(None, Some(on_cancel));
    if !shmem::is_preloaded() {
        return None;
    }
    let duty = Duty { database: bgworker::database_argument(argument), is_attached };
    if !SEGMENTS.exclusive(|segments| segments.refillers.begin(duty, latch::address())) {
        return None;
    }
    *DUTY.lock() = Some(duty);
    // Runs whenever this process exits, except by a crash.
    xact::before_exit(before_exit);
    ereport::keep_fatal();
    bgworker::connect(duty.database, true);
    // Settings of the database must not make transactions fail, and a lock held for long must not block the worker.
    bgworker::set_variable(c"default_transaction_read_only", c"off");
    bgworker::set_variable(c"default_transaction_isolation", c"read committed");
    bgworker::set_variable(c"lock_timeout", LOCK_TIMEOUT);
    Some(duty)
}

/// Ends the worker's registration, unless there is demand that it can serve. A session acquires the lock after storing
/// demand. So either the demand is seen here, or the session sees that the worker is gone.
pub fn end(duty: Duty, failing: bool) -> bool {
    SEGMENTS.exclusive(|segments| {
        let ends = failing || with_demand(segments, duty).next().is_none();
        if ends {
            segments.refillers.end(duty, latch::address());
        }
        ends
    })
}

/// The demand of an unfinished refill stays, and its waiters start another worker. Calls of an unfinished turn join another
/// one. Waiters hear why this worker has failed.
fn before_exit(_code: i32) {
    refill::restore_demand();
    let Some(duty) = *DUTY.lock() else { return };
    SEGMENTS.exclusive(|segments| {
        segments.refillers.fail(duty, latch::address(), system_clock::boot_us());
        let tenants = segments.table.tenants.iter().zip(segments.turns.iter_mut());
        let served = tenants.filter(|(tenant, _)| tenant.is_some_and(|tenant| tenant.key.database == duty.database));
        served.filter(|_| duty.is_attached).for_each(|(_, turns)| turns.give_up());
    });
    let reason = ereport::fatal();
    for (index, tenant) in wanted(duty) {
        if let Some(reason) = &reason {
            refill::keep_end(index, tenant, reason);
        }
        ring_state(index).refilled.broadcast();
    }
}
