//! The workers that fill the rings of a database: how sessions request values of them, how they begin and end, and how
//! they run transactions. The refill worker takes values from rows of this database, the supply worker from a
//! coordinator. A session starts them on demand.

use super::errors;
use super::state::{SEGMENTS, Segments, in_tenancy, ring_state};
use crate::pg::bgworker::{self, Worker};
use crate::pg::ereport::{self, Report};
use crate::pg::{latch, session, system_clock, xact};
use crate::settings;
use crate::shmem;
use idgen_core::segment::refillers::{Call, Duty};
use idgen_core::segment::{RingHandle, RingTenant};
use parking_lot::Mutex;
use pgrx::bgworkers::BackgroundWorker;
use pgrx::prelude::*;
use std::ffi::c_int;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, compiler_fence};

const REFILL: Worker = Worker { name: "idgen refill", function: "idgen_refill" };

const SUPPLY: Worker = Worker { name: "idgen supply", function: "idgen_supply" };

/// Requests values for a ring that runs low. A failure is ignored: values are left, and the ring that runs dry reports
/// it.
#[cold]
pub fn prefetch(index: usize) {
    let state = ring_state(index);
    // The supply worker reads for itself how many values are left. Its demand is that of waiting sessions only.
    if !state.is_attached.load(Relaxed) {
        state.demand.fetch_max(1, Relaxed);
    }
    let _ = summon(index, false);
}

/// Wakes the worker that serves a ring of this database, or starts one. Call it after storing the demand. A caller that asks
/// again while there is none may have to wait for the next start after a failure. The view and the check of segments
/// show that no worker could be started.
pub fn summon(index: usize, asks_again: bool) -> Result<(), Report> {
    let is_attached = ring_state(index).is_attached.load(Relaxed);
    let summoned = summon_worker(Duty { database: session::database(), is_attached }, asks_again);
    summoned.inspect_err(|_| SEGMENTS.exclusive(|segments| segments.errors[index].set(errors::NO_WORKER)))
}

/// Wakes the worker of a duty, or starts one.
pub fn summon_worker(duty: Duty, asks_again: bool) -> Result<(), Report> {
    let call = |segments: &mut Segments| segments.refillers.call(duty, asks_again, system_clock::boot_us());
    match SEGMENTS.exclusive(call) {
        // SAFETY: the worker has stored the address.
        Call::Wake { latch } => unsafe { latch::set_at(latch) },
        Call::Start => {
            let worker = if duty.is_attached { SUPPLY } else { REFILL };
            if !worker.start_for_database(duty.database) {
                SEGMENTS.exclusive(|segments| segments.refillers.give_up(duty));
                return Err(errors::no_worker(if duty.is_attached { "supply" } else { "refill" }));
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
    // SAFETY: the worker has stored the address.
    latch.into_iter().for_each(|latch| unsafe { latch::set_at(latch) });
}

pub fn link_changes() -> u64 {
    SEGMENTS.exclusive(|segments| segments.link_changes)
}

/// The demand that this process has taken and not served yet, and its ring.
static TAKEN: Mutex<Option<(usize, u64)>> = Mutex::new(None);

/// True once the process has taken demand.
static HAS_SERVED: AtomicBool = AtomicBool::new(false);

/// Takes the demand for a ring, until it is restored or forgotten. `None` if the ring has become another tag's: then the demand
/// is for that tag.
pub fn take_demand(index: usize, handle: RingHandle) -> Option<u64> {
    // A tenancy begins under this lock, without demand.
    // Acquire: see `RefillWait`.
    let demand = in_tenancy(index, handle, |_| ring_state(index).demand.swap(0, Acquire))?;
    *TAKEN.lock() = Some((index, demand));
    HAS_SERVED.store(true, Relaxed);
    Some(demand)
}

/// Restores the demand that was taken: the refill brings nothing, or the worker exits.
pub fn restore_demand() {
    if let Some((index, demand)) = TAKEN.lock().take() {
        ring_state(index).demand.fetch_max(demand, Relaxed);
    }
}

pub fn forget_demand() {
    *TAKEN.lock() = None;
}

pub fn wanted(duty: Duty) -> Vec<(usize, RingTenant)> {
    // Allocated before the lock is acquired.
    let mut found = Vec::with_capacity(settings::max_segments());
    SEGMENTS.exclusive(|segments| found.extend(with_demand(segments, duty)));
    found
}

/// The rings of a duty with demand. For the holder of the segments lock.
fn with_demand(segments: &Segments, duty: Duty) -> impl Iterator<Item = (usize, RingTenant)> + '_ {
    let tenants = segments.table.tenants.iter().enumerate().filter_map(|(index, tenant)| Some((index, (*tenant)?)));
    tenants.filter(move |(index, tenant)| serves(duty, *index, tenant) && ring_state(*index).demand.load(Relaxed) > 0)
}

pub fn serves(duty: Duty, index: usize, tenant: &RingTenant) -> bool {
    tenant.key.database == duty.database && ring_state(index).is_attached.load(Relaxed) == duty.is_attached
}

unsafe extern "C-unwind" {
    /// PostgreSQL's handler of SIGINT. Declared here, because pgrx's wrapper of it is no C function.
    #[link_name = "StatementCancelHandler"]
    fn cancel_statement(signal: c_int, #[cfg(feature = "pg19")] sender: *const bgworker::Sender);
}

unsafe extern "C-unwind" fn on_cancel(signal: c_int, #[cfg(feature = "pg19")] sender: *const bgworker::Sender) {
    CANCELLED.store(true, Relaxed);
    // Otherwise the next check for interrupts would raise an error that ends the process.
    if IN_TRANSACTION.load(Relaxed) {
        // SAFETY: in a signal handler, as PostgreSQL calls it.
        unsafe {
            #[cfg(not(feature = "pg19"))]
            cancel_statement(signal);
            #[cfg(feature = "pg19")]
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
    bgworker::connect(duty.database);
    // Settings of the database must not make transactions fail, and a lock held for long must not block the worker.
    bgworker::set_variable(c"default_transaction_read_only", c"off");
    bgworker::set_variable(c"default_transaction_isolation", c"read committed");
    bgworker::set_variable(c"lock_timeout", c"500ms");
    Some(duty)
}

/// Ends the worker's registration, unless there is demand that it can serve. If its last refill has failed, this is none
/// of rings with an error.
pub fn end(duty: Duty, failing: bool) -> bool {
    SEGMENTS.exclusive(|segments| {
        let has_demand =
            with_demand(segments, duty).any(|(index, _)| !failing || segments.errors[index].text.is_clear());
        segments.refillers.end(duty, latch::address(), has_demand)
    })
}

/// The demand of an unfinished refill stays, and its waiters start another worker. Calls of an unfinished turn join another
/// one. Waiters hear why this worker has failed.
fn before_exit(_code: i32) {
    restore_demand();
    let Some(duty) = *DUTY.lock() else { return };
    SEGMENTS.exclusive(|segments| {
        segments.refillers.fail(duty, latch::address(), system_clock::boot_us());
        let tenants = segments.table.tenants.iter().zip(segments.turns.iter_mut());
        let served = tenants.filter(|(tenant, _)| tenant.is_some_and(|tenant| tenant.key.database == duty.database));
        served.filter(|_| duty.is_attached).for_each(|(_, turns)| turns.give_up());
    });
    let reason = ereport::fatal();
    for (index, tenant) in wanted(duty) {
        in_tenancy(index, tenant.handle, |segments| {
            let error = &mut segments.errors[index];
            // Unless the ring has a reason that this process has found in a refill.
            if let Some(reason) = &reason
                && (error.text.is_clear() || !HAS_SERVED.load(Relaxed))
            {
                error.set(reason);
            }
        });
        ring_state(index).refilled.broadcast();
    }
}

/// Keeps the error for waiters and the view, and restores the demand. True for the first error in a row. Does nothing if
/// the ring has become another tag's.
pub fn keep_error(index: usize, tenant: RingTenant, reason: &str) -> bool {
    let is_new = in_tenancy(index, tenant.handle, |segments| {
        let error = &mut segments.errors[index];
        let is_new = error.text.is_clear();
        error.set(reason);
        restore_demand();
        is_new
    });
    is_new.unwrap_or_default()
}

/// A cancel has arrived. One that arrives during the commit leaves open whether a synchronous standby has the commit.
static CANCELLED: AtomicBool = AtomicBool::new(false);

/// A transaction of this worker is running. A cancel ends that, and nothing else.
static IN_TRANSACTION: AtomicBool = AtomicBool::new(false);

/// Works in a transaction and commits it. An error rolls it back; its message is returned.
pub fn in_transaction<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    CANCELLED.store(false, Relaxed);
    IN_TRANSACTION.store(true, Relaxed);
    let work = AssertUnwindSafe(work);
    let outcome =
        PgTryBuilder::new(AssertUnwindSafe(|| Ok(BackgroundWorker::transaction(AssertUnwindSafe(|| (work.0)())))))
            .catch_others(|cause| {
                let message = ereport::known_to_pgrx(&cause).message().to_owned();
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
    // SAFETY: a flag of this process: a cancel that came too late would end the process at its next check. Outside of a
    // transaction, at most once a second: otherwise autovacuum would learn of the updates at the end of the process only.
    unsafe {
        pg_sys::QueryCancelPending = 0;
        pg_sys::pgstat_report_stat(false);
    }
    outcome
}

/// True if a cancel, a stop or the end of the postmaster may have ended the wait for the synchronous standby early.
pub fn was_cancelled() -> bool {
    // SAFETY: reads a variable of this process.
    CANCELLED.load(Relaxed) || unsafe { pg_sys::ProcDiePending } != 0
}
