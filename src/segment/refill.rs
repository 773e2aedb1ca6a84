//! The refill worker: one for each database that draws, started on demand, gone when idle.
//!
//! It is the only one that takes values from a row for the ring. It does so in a transaction of its own, which has
//! committed durably before the values are in the ring.

use super::errors;
use super::row::Locked;
use super::slot::{SEGMENTS, Segments, ring, slot, slots};
use super::{attach, row};
use crate::pg::bgworker::{self, Worker};
use crate::pg::ereport::Report;
use crate::pg::latch::{self, LatchAddress};
use crate::pg::sync_commit;
use crate::pg::wait_event::WaitEvent;
use crate::pg::{session, xact};
use crate::{settings, shmem};
use idgen_core::segment::allocation::Range;
use idgen_core::segment::refillers::Call;
use idgen_core::segment::step;
use idgen_core::segment::table::{Key, Tenant};
use parking_lot::Mutex;
use pgrx::bgworkers::BackgroundWorker;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Long enough to be there for the next of a slow series, short enough for DROP DATABASE, which waits five seconds.
const IDLE: Duration = Duration::from_secs(2);
/// How soon a refill that failed is tried again.
const RETRY: Duration = Duration::from_millis(100);
const WORKER: Worker = Worker { name: "idgen refill", function: "idgen_refill", connects: true };

/// How long a refill may wait for a lock on the table.
const LOCK_TIMEOUT: &std::ffi::CStr = c"500ms";

/// Asks for a refill of a ring that runs low.
pub fn ask(index: usize) -> Result<(), Report> {
    slot(index).demand.fetch_max(1, Relaxed);
    summon()
}

/// Wakes this database's worker, or starts one. What is wanted has been written down before.
pub fn summon() -> Result<(), Report> {
    let database = row::database();
    let call = SEGMENTS.exclusive(|segments| segments.refillers.call(database, attach::now_us()));
    match call {
        // Should the process have ended, its successor wakes for nothing.
        Call::Wake { latch } => LatchAddress(latch).set(),
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

/// What the worker has taken upon itself and not done yet: the ring, and how many values are wanted.
static IN_WORK: Mutex<Option<(usize, u64)>> = Mutex::new(None);

/// A cancel has come. After one during the commit nobody knows whether a synchronous standby has it.
static CANCELLED: AtomicBool = AtomicBool::new(false);

unsafe extern "C-unwind" {
    /// PostgreSQL's handler of SIGINT. Declared here, because pgrx's wrapper of it is no C function.
    #[link_name = "StatementCancelHandler"]
    fn cancel_statement(signal: std::ffi::c_int);
}

unsafe extern "C-unwind" fn on_cancel(signal: std::ffi::c_int) {
    CANCELLED.store(true, Relaxed);
    // SAFETY: in a signal handler, as PostgreSQL calls it.
    unsafe { cancel_statement(signal) };
}

/// The worker.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_refill(argument: pg_sys::Datum) {
    // PostgreSQL's own handler of SIGTERM, so that a stop ends the wait for a standby, too.
    bgworker::handle_signals(None, Some(on_cancel));
    if !shmem::is_preloaded() {
        return;
    }
    let database = bgworker::database_argument(argument);
    let LatchAddress(latch) = LatchAddress::of_this_process();
    if !SEGMENTS.exclusive(|segments| segments.refillers.begin(database, latch)) {
        return;
    }
    // Runs however this process ends, except by a crash.
    xact::before_exit(before_exit);
    bgworker::connect(database, false);
    // A setting of the database must not stop a refill, and a lock held for long must not block the worker.
    bgworker::set_variable(c"default_transaction_read_only", c"off");
    bgworker::set_variable(c"default_transaction_isolation", c"read committed");
    bgworker::set_variable(c"lock_timeout", LOCK_TIMEOUT);
    work(database, latch);
}

/// The main loop: refills what is wanted, until nothing has been for a while. What goes on failing counts as nothing, so
/// that it does not keep a database from being dropped; whoever waits for it starts another worker.
fn work(database: u32, latch: usize) {
    let mut idle_since = Instant::now();
    let mut failing = false;
    loop {
        check_for_interrupts!();
        if session::is_reload_pending() {
            session::reload_configuration();
        }
        let mut refilled = false;
        for (index, tenant) in wanted(database) {
            let demand = slot(index).demand.swap(0, Relaxed);
            if demand > 0 {
                let went_well = serve(index, tenant, demand);
                if went_well || !failing {
                    idle_since = Instant::now();
                }
                failing = !went_well;
                refilled |= went_well;
            }
        }
        if refilled {
            // The commit may have waited on the latch, and taken the wake-up of somebody else's wish for its own.
            continue;
        }
        let pause = IDLE.saturating_sub(idle_since.elapsed());
        if pause.is_zero() {
            // Under the lock, which whoever wants a refill takes after writing it down: so either it is seen here, or
            // the worker is seen to be gone.
            let is_over = SEGMENTS.exclusive(|segments| {
                let is_over = failing || !has_wishes(segments, database);
                if is_over {
                    segments.refillers.end(database, latch);
                }
                is_over
            });
            if is_over {
                return;
            }
            idle_since = Instant::now();
            continue;
        }
        // The latch is reset before the requests are read.
        latch::wait(Some(if failing { pause.min(RETRY) } else { pause }), WaitEvent::EXTENSION);
    }
}

/// The database's tags for which values are wanted.
fn wanted(database: u32) -> Vec<(usize, Tenant)> {
    // Before the lock is taken: nothing may allocate under it.
    let mut found = Vec::with_capacity(slots().len());
    SEGMENTS.exclusive(|segments| found.extend(wishes(segments, database)));
    found
}

fn has_wishes(segments: &Segments, database: u32) -> bool {
    wishes(segments, database).next().is_some()
}

fn wishes<'a>(segments: &'a Segments, database: u32) -> impl Iterator<Item = (usize, Tenant)> + 'a {
    let slots = slots();
    let of_database = move |(index, tenant): (usize, &Option<Tenant>)| {
        let tenant = tenant.filter(|tenant| tenant.key.database == database)?;
        (slots[index].demand.load(Relaxed) > 0).then_some((index, tenant))
    };
    segments.table.tenants.iter().enumerate().filter_map(of_database)
}

/// Refills one ring, and tells those who wait how it went. Did it go well?
fn serve(index: usize, tenant: Tenant, demand: u64) -> bool {
    *IN_WORK.lock() = Some((index, demand));
    let failure = match in_transaction(|| take(index, tenant, demand)) {
        Ok(Taken::Range(taken)) if was_cancelled() => Some(format!(
            "The wait for the synchronous standby was cancelled, so the values {} to {} are not used.",
            taken.range.first, taken.range.last
        )),
        Ok(Taken::Range(taken)) => {
            install(tenant.key, taken);
            None
        }
        Ok(Taken::Exhausted { version }) => {
            exhaust(index, tenant.key, version);
            None
        }
        Ok(Taken::NoRoom) => None,
        Ok(Taken::Gone) => {
            evict(index, tenant);
            None
        }
        Ok(Taken::Busy) => {
            Some("The row of the tag in idgen.segment is locked by a transaction that has not ended.".to_owned())
        }
        Err(message) => Some(message),
    };
    if let Some(text) = &failure {
        report(index, tenant, demand, text);
    }
    *IN_WORK.lock() = None;
    slot(index).refilled.broadcast();
    failure.is_none()
}

/// Keeps what went wrong for those who wait, and for the view; the first time in a row the server's log has it too. What
/// was wanted is wanted still. Not if the ring has become another tag's meanwhile.
fn report(index: usize, tenant: Tenant, demand: u64, text: &str) {
    let is_new = SEGMENTS.exclusive(|segments| {
        if !segments.table.tenants[index].is_some_and(|now| now.handle == tenant.handle) {
            return false;
        }
        let error = &mut segments.errors[index];
        let is_new = error.is_clear();
        error.set(text);
        slot(index).demand.fetch_max(demand, Relaxed);
        is_new
    });
    if is_new {
        log!("could not refill a segment: {text}");
    }
}

/// What a transaction has taken from a row.
enum Taken {
    Range(Grant),
    Exhausted {
        version: i64,
    },
    /// Two ranges are there already, with values skipped between them.
    NoRoom,
    /// Somebody else holds the row.
    Busy,
    /// There is no such row, or no such table, or the row is not the one that the ring is for.
    Gone,
}

/// Values that are the ring's once the transaction has committed.
struct Grant {
    range: Range,
    version: i64,
    stride: i64,
    began: Instant,
}

/// Takes values from the row, in the transaction that runs.
fn take(index: usize, tenant: Tenant, demand: u64) -> Taken {
    let began = Instant::now();
    if row::SEGMENT.find().is_none() {
        return Taken::Gone;
    }
    if !ring(index).has_room() {
        return Taken::NoRoom;
    }
    sync_commit::require_failover();
    let found = match row::lock(tenant.key.creation) {
        Locked::Row(found) => found,
        Locked::Busy => return Taken::Busy,
        Locked::Gone => return Taken::Gone,
    };
    // The trigger has announced a change, and another trigger has kept it from being made.
    if found.version < tenant.version {
        return Taken::Gone;
    }
    let step = match tenant.refilled_us {
        Some(refilled_us) if found.version == tenant.version => {
            let lifetime = Duration::from_micros((attach::now_us() - refilled_us).max(0) as u64);
            step::next(found.step, lifetime, found.target, found.min_step..=found.max_step)
        }
        // Nothing was used up yet.
        _ => found.step,
    };
    let Some(range) = found.allocation.next(demand.max(step as u64)) else {
        return Taken::Exhausted { version: found.version };
    };
    row::raise_max_id(tenant.key.creation, range.last, Some(step));
    Taken::Range(Grant { range, version: found.version, stride: found.allocation.stride, began })
}

/// Did something end the wait for the synchronous standby early? A cancel does, a stop, and the end of the postmaster.
fn was_cancelled() -> bool {
    // SAFETY: reads a variable of this process.
    CANCELLED.load(Relaxed) || unsafe { pg_sys::ProcDiePending } != 0
}

/// Puts values into the ring of the row they were taken from, unless the row has been changed since: then they are not
/// used, and the change holds from the next value on.
fn install(key: Key, grant: Grant) {
    let Grant { range, version, stride, began } = grant;
    let place = attach::attach(key, version, stride, &[]);
    let slot = slot(place.index);
    SEGMENTS.exclusive(|segments| {
        let lives_there = |tenant: &&mut Tenant| tenant.key == key && tenant.version == version;
        let ring = ring(place.index);
        let Some(tenant) = segments.table.tenants[place.index].as_mut().filter(lives_there) else {
            return;
        };
        ring.install(tenant.handle, range.first, range.count, settings::segment_low_water(range.count));
        tenant.refilled_us = Some(attach::now_us());
        segments.errors[place.index].clear();
    });
    slot.refill_us.store(began.elapsed().as_micros() as u64, Relaxed);
    slot.exhausted.store(false, Relaxed);
    slot.refills.fetch_add(1, Relaxed);
}

/// Nothing is left in the row, as it was in this state. Sessions that attached by an older state wait for values of this one
/// too; those that attached by a newer state have yet to ask.
fn exhaust(index: usize, key: Key, version: i64) {
    SEGMENTS.exclusive(|segments| {
        let waits_for_it = |tenant: &Tenant| tenant.key == key && tenant.version <= version;
        if segments.table.tenants[index].as_ref().is_some_and(waits_for_it) {
            slot(index).exhausted.store(true, Relaxed);
        }
    });
}

/// The tag is gone: so is its ring, and whoever draws from it looks for the tag again.
fn evict(index: usize, tenant: Tenant) {
    SEGMENTS.exclusive(|segments| {
        if segments.table.tenants[index].is_some_and(|now| now.handle == tenant.handle) {
            segments.table.evict(index);
        }
    });
}

/// Works in a transaction of its own, and commits it. An error is undone, and comes back as its message.
fn in_transaction<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    CANCELLED.store(false, Relaxed);
    let work = AssertUnwindSafe(work);
    PgTryBuilder::new(AssertUnwindSafe(|| Ok(BackgroundWorker::transaction(AssertUnwindSafe(|| (work.0)())))))
        .catch_others(|cause| {
            let message = match &cause {
                CaughtError::PostgresError(report)
                | CaughtError::ErrorReport(report)
                | CaughtError::RustPanic { ereport: report, .. } => report.message().to_owned(),
            };
            row::clear_allocation();
            // SAFETY: what PostgreSQL's own loops do after an error, before they go on.
            unsafe {
                pg_sys::AbortCurrentTransaction();
                pg_sys::FlushErrorState();
            }
            Err(message)
        })
        .execute()
}

/// However the worker ends: what it has not done is wanted still, and those who wait look for another.
fn before_exit(_code: i32) {
    if let Some((index, demand)) = IN_WORK.lock().take() {
        slot(index).demand.fetch_max(demand, Relaxed);
    }
    let database = session::database();
    let LatchAddress(latch) = LatchAddress::of_this_process();
    SEGMENTS.exclusive(|segments| segments.refillers.end(database, latch));
    for (index, _) in wanted(database) {
        slot(index).refilled.broadcast();
    }
}
