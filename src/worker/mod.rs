//! Worker ids from a pool: each with the rectangle of id times that its holder may use.
//!
//! On a coordinator, the SQL functions grant, renew, confirm and release worker ids. On every server, a background
//! worker, the keeper, leases the worker id of the server from the coordinator.
//!
//! The SQL functions that write raise 22004 for a NULL without a meaning, 25006 on a standby and in a read-only
//! transaction, 55000 in a copy of the coordinator, 55P03 if `lock_timeout` ends a wait, and 58030 if the data directory
//! cannot be read. They add the errors that their comments say.

use crate::clock;
use crate::pg::latch::{ConditionVariable, WaitEvent};
use crate::pg::shared_objects::{self, OwnedRows};
use crate::pg::{system_clock, xact};
use crate::place;
use crate::settings;
use crate::shmem;
use crate::snowflake::node;
use idgen_core::layout::Node;
use idgen_core::worker::by_hand;
use idgen_core::worker::memory::MemoryFile;
use pgrx::pg_sys;
use state::{STATE, WorkerState};
use std::ffi::CStr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

mod acquire;
mod errors;
mod history;
mod keeper;
mod pool;
mod renew;
mod requests;
mod state;
mod status;

pub use state::{SERVER_LEASE, reset_counters};
pub use status::{TABLES, checks, current_node, status};

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&STATE, &SERVER_LEASE]);
    shmem::at_startup(begin);
    node::lease_from(node::NodeSource { follow_settings, wait: wait_for_node });
    clock::on_lease_end_reached(wait_for_renewal);
    // In the postmaster, when it has read the settings, before any process is told of the change.
    settings::on_worker_pool(|is_set| STATE.get().into_iter().for_each(|state| state.has_pool.store(is_set, Release)));
    shared_objects::follow_owners_of(OwnedRows {
        exist: || pool::WORKER_POOL.find().is_some(),
        reassign: pool::reassign,
        drop: pool::drop_owned,
    });
    keeper::register();
}

/// In the postmaster at the start.
fn begin() {
    let (state, file) = (STATE.require(), state::read_memory());
    if let MemoryFile::Unreadable(reason) = &file {
        state.is_file_unreadable.store(true, Relaxed);
        errors::lease_file_unreadable(reason).warn();
    }
    let set = (!settings::worker_undecided()).then(|| settings::node().worker);
    let (has_issued, is_in_use) =
        by_hand::at_start(&file, place::read().ok().as_ref(), set, settings::has_worker_pool());
    state.has_issued_by_hand.store(has_issued, Relaxed);
    if !is_in_use {
        node::CURRENT.require().set_none();
        clock::restrict_to_nothing_at_start();
    }
}

/// For functions that grant id times. A rectangle must be committed before the caller learns of it: a rollback would
/// give its id times to the next holder. So this raises 25006 where nothing can be written, and 25001 if the call is not of
/// a statement that is the whole of its transaction.
///
/// In SERIALIZABLE, grants of different pools would fail because of each other: their rows share pages of indexes. A statement
/// that reads something else too has to bear that.
///
/// # Safety
/// `fcinfo` is that of the running call.
unsafe fn require_own_transaction(function: &CStr, fcinfo: pg_sys::FunctionCallInfo) {
    xact::require_read_write(function);
    // SAFETY: by the above.
    if !unsafe { xact::is_own_statement(fcinfo) } {
        errors::not_own_statement(function).raise();
    }
    xact::commit_with_statement();
    // SAFETY: by the above.
    if unsafe { xact::is_alone_in_statement(fcinfo) } {
        xact::leave_serializable();
    }
}

/// Once a pool is configured, ends a worker id that is not set, or under which no id was issued. No process relies on the
/// keeper for that: sessions can draw before it.
fn follow_settings() {
    let (state, node) = (STATE.require(), node::CURRENT.require());
    let is_of_the_pool = || state.has_pool.load(Acquire) && state::worker_setting().yields_to_pool();
    if is_of_the_pool() {
        // Tested again under the lock: the keeper may have leased one.
        clock::restrict_times(is_of_the_pool, i64::MIN, i64::MIN, || node.set_none());
    }
}

/// How long to wait for the first answer of a coordinator, which takes milliseconds.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
/// The longest sleep: a lease ends without a signal.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

static LEASE_WAIT: WaitEvent = WaitEvent::new(c"IdgenWorkerLease");

/// This server's worker id. Waits for the keeper's first attempt to lease one; raises 55000 if that fails.
fn wait_for_node() -> Node {
    let (state, current) = (STATE.require(), node::CURRENT.require());
    if current.is_setting() && !state.has_pool.load(Acquire) {
        state.has_issued_by_hand.store(true, Release);
    }
    let began = Instant::now();
    wait_for_keeper(state, || {
        let node = current.get();
        let is_failing = SERVER_LEASE.shared(|shared| shared.lease.failing_since_ms.is_some());
        let is_pending = state.has_pool.load(Relaxed) && !is_failing && began.elapsed() < FIRST_ANSWER;
        (node.is_some() || !is_pending).then_some(node)
    })
}

/// For a session whose next id has this time, at or past the end of the lease: requests a renewal, and waits for it.
/// Raises 55000 if the clock is past the end too and the coordinator does not answer, if the keeper does not renew, or
/// if the coordinator allows no more.
fn wait_for_renewal(time_ms: i64) {
    let (state, clock) = (STATE.require(), clock::STATE.require());
    if !SERVER_LEASE.shared(|shared| shared.lease.falls_short) {
        state.keeper.request_beyond(time_ms);
    }
    // After the request: the keeper reads the clock before it takes requests.
    let requested_us = system_clock::boot_us();
    wait_for_keeper(state, || {
        let (lease, end_ms) = (SERVER_LEASE.shared(|shared| shared.lease), clock.lease_end_ms());
        let is_failing = lease.failing_since_ms.is_some() && system_clock::wall_ms() >= end_ms;
        let is_overdue = lease.is_overdue(system_clock::boot_us());
        // A later renewal has included this request.
        let is_refused = lease.falls_short || lease.renewed_us > requested_us || is_overdue || is_failing;
        // Without a worker id the lease was released: the session waits for the next one when it attaches again.
        let is_done = end_ms > time_ms || node::CURRENT.require().get().is_none();
        (is_done || is_refused).then_some(is_done.then_some(()))
    })
}

/// Waits until there is an outcome. Raises 55000 if that is `None`.
fn wait_for_keeper<R>(state: &WorkerState, outcome: impl Fn() -> Option<Option<R>>) -> R {
    loop {
        state.changed.prepare_to_sleep();
        if let Some(outcome) = outcome() {
            ConditionVariable::cancel_sleep();
            return outcome.unwrap_or_else(|| errors::not_leased(&SERVER_LEASE.shared(|lease| *lease)).raise());
        }
        state.changed.sleep(LONGEST_SLEEP, &LEASE_WAIT);
    }
}
