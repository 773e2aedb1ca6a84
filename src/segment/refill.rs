//! The refill worker: one for each database that draws, started on demand, gone when idle.
//!
//! It is the only one that takes values from a row for the ring. It does so in a transaction of its own, which has
//! committed durably before the values are in the ring.

use super::row::Locked;
use super::slot::Slot;
use super::{attach, row};
use crate::error::Failure;
use crate::shmem::{Segments, Shared};
use crate::{durable, error, pg_compat, settings, shmem};
use idgen_core::segment::allocation::Range;
use idgen_core::segment::refillers::Call;
use idgen_core::segment::step;
use idgen_core::segment::table::{Key, Tenant};
use parking_lot::Mutex;
use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder, BgWorkerStartTime, SignalWakeFlags};
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Long enough to be there for the next of a slow series, short enough for DROP DATABASE, which waits five seconds.
const IDLE: Duration = Duration::from_secs(2);
/// How soon a refill that failed is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// How long a refill may wait for a lock on the table.
const LOCK_TIMEOUT: &std::ffi::CStr = c"500ms";

/// Asks for a refill of a ring that runs low.
pub fn ask(shared: &Shared, index: usize) -> Result<(), Failure> {
    shared.slots[index].demand.fetch_max(1, Relaxed);
    summon(shared)
}

/// Wakes this database's worker, or starts one. What is wanted has been written down before.
pub fn summon(shared: &Shared) -> Result<(), Failure> {
    let database = row::database();
    let call = shared.with_segments(|segments| segments.refillers.call(database, attach::now_us()));
    match call {
        // SAFETY: the latch of a process slot in shared memory. Should its process have ended meanwhile, the next one
        // wakes for nothing.
        Call::Wake { latch } => unsafe { pg_sys::SetLatch(latch as *mut pg_sys::Latch) },
        Call::Start => {
            let started = BackgroundWorkerBuilder::new(&format!("idgen refill {database}"))
                .set_type("idgen refill")
                .set_library("idgen")
                .set_function("idgen_refill")
                .set_argument(i32::from_ne_bytes(database.to_ne_bytes()).into_datum())
                .enable_spi_access()
                .set_start_time(BgWorkerStartTime::RecoveryFinished)
                .set_restart_time(None)
                .load_dynamic();
            if started.is_err() {
                shared.with_segments(|segments| segments.refillers.give_up(database));
                return Err(error::segment::no_worker());
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
    /// PostgreSQL's handlers. Declared here, because pgrx's wrappers of them are no C functions.
    fn die(signal: std::ffi::c_int);
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
pub extern "C-unwind" fn idgen_refill(arg: pg_sys::Datum) {
    // SAFETY: as the first thing of a background worker. PostgreSQL's own handler, so that a stop ends it at once, also
    // while it waits for a standby.
    unsafe {
        pg_compat::set_signal_handler(libc::SIGTERM, Some(die));
        pg_compat::set_signal_handler(libc::SIGINT, Some(on_cancel));
    }
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP);
    let Some(shared) = shmem::shared() else {
        return;
    };
    let database = arg.value() as u32;
    // SAFETY: every process has its latch.
    let latch = unsafe { pg_sys::MyLatch } as usize;
    if !shared.with_segments(|segments| segments.refillers.begin(database, latch)) {
        return;
    }
    // SAFETY: the callback has the signature of one. Called however this process ends, but by a crash.
    unsafe { pg_sys::before_shmem_exit(Some(at_exit), arg) };
    connect(database);
    work(shared, database, latch);
}

fn connect(database: u32) {
    // SAFETY: once, in a background worker. What somebody has set for the database must not keep a refill from being
    // made, or from being durable; a lock held for long must not keep the worker.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnectionByOid(pg_sys::Oid::from(database), pg_sys::InvalidOid, 0);
        for (name, value) in [
            (c"default_transaction_read_only", c"off"),
            (c"default_transaction_isolation", c"read committed"),
            (c"lock_timeout", LOCK_TIMEOUT),
        ] {
            let (context, source) = (pg_sys::GucContext::PGC_SUSET, pg_sys::GucSource::PGC_S_SESSION);
            pg_sys::SetConfigOption(name.as_ptr(), value.as_ptr(), context, source);
        }
    }
}

/// The main loop: refills what is wanted, until nothing has been for a while. What goes on failing counts as nothing, so
/// that it does not keep a database from being dropped; whoever waits for it starts another worker.
fn work(shared: &'static Shared, database: u32, latch: usize) {
    let mut idle_since = Instant::now();
    let mut failing = false;
    loop {
        check_for_interrupts!();
        if BackgroundWorker::sighup_received() {
            // SAFETY: in the main loop of a process, as PostgreSQL's own do it.
            unsafe { pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP) };
        }
        let mut refilled = false;
        for (index, tenant) in wanted(shared, database) {
            let demand = shared.slots[index].demand.swap(0, Relaxed);
            if demand > 0 {
                let went_well = serve(shared, index, tenant, demand);
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
            let is_over = shared.with_segments(|segments| {
                let is_over = failing || !has_wishes(shared, segments, database);
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
        sleep(if failing { pause.min(RETRY) } else { pause });
    }
}

fn sleep(time: Duration) {
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: every process has its latch, and waits on it alone. It is reset before the wishes are looked at.
    unsafe {
        pg_sys::WaitLatch(pg_sys::MyLatch, events as i32, time.as_millis() as i64, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
}

/// The database's tags for which values are wanted.
fn wanted(shared: &Shared, database: u32) -> Vec<(usize, Tenant)> {
    // Before the lock is taken: nothing may allocate under it.
    let mut found = Vec::with_capacity(shared.rings.len());
    shared.with_segments(|segments| found.extend(wishes(shared, segments, database)));
    found
}

fn has_wishes(shared: &Shared, segments: &Segments, database: u32) -> bool {
    wishes(shared, segments, database).next().is_some()
}

fn wishes<'a>(shared: &Shared, segments: &'a Segments, database: u32) -> impl Iterator<Item = (usize, Tenant)> + 'a {
    let slots: &'static [Slot] = shared.slots;
    let of_database = move |(index, tenant): (usize, &Option<Tenant>)| {
        let tenant = tenant.filter(|tenant| tenant.key.database == database)?;
        (slots[index].demand.load(Relaxed) > 0).then_some((index, tenant))
    };
    segments.table.tenants.iter().enumerate().filter_map(of_database)
}

/// Refills one ring, and tells those who wait how it went. Did it go well?
fn serve(shared: &'static Shared, index: usize, tenant: Tenant, demand: u64) -> bool {
    *IN_WORK.lock() = Some((index, demand));
    let failure = match in_transaction(|| take(shared, index, tenant, demand)) {
        Ok(Taken::Range(taken)) if was_cancelled() => Some(format!(
            "The wait for the synchronous standby was cancelled, so the values {} to {} are not used.",
            taken.range.first, taken.range.last
        )),
        Ok(Taken::Range(taken)) => {
            install(shared, tenant.key, taken);
            None
        }
        Ok(Taken::Exhausted { version }) => {
            exhaust(shared, index, tenant.key, version);
            None
        }
        Ok(Taken::NoRoom) => None,
        Ok(Taken::Gone) => {
            evict(shared, index, tenant);
            None
        }
        Ok(Taken::Busy) => {
            Some("The row of the tag in idgen.segment is locked by a transaction that has not ended.".to_owned())
        }
        Err(message) => Some(message),
    };
    if let Some(text) = &failure {
        report(shared, index, tenant, demand, text);
    }
    *IN_WORK.lock() = None;
    shared.slots[index].refilled.ring();
    failure.is_none()
}

/// Keeps what went wrong for those who wait, and for the view; the first time in a row the server's log has it too. What
/// was wanted is wanted still. Not if the ring has become another tag's meanwhile.
fn report(shared: &Shared, index: usize, tenant: Tenant, demand: u64, text: &str) {
    let is_new = shared.with_segments(|segments| {
        if !segments.table.tenants[index].is_some_and(|now| now.handle == tenant.handle) {
            return false;
        }
        let error = &mut segments.errors[index];
        let is_new = error.is_clear();
        error.set(text);
        shared.slots[index].demand.fetch_max(demand, Relaxed);
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
fn take(shared: &Shared, index: usize, tenant: Tenant, demand: u64) -> Taken {
    let began = Instant::now();
    if row::SEGMENT.find().is_none() {
        return Taken::Gone;
    }
    if !shared.rings[index].has_room() {
        return Taken::NoRoom;
    }
    durable::make_commit_durable();
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
fn install(shared: &Shared, key: Key, grant: Grant) {
    let Grant { range, version, stride, began } = grant;
    let place = attach::attach(shared, key, version, stride, &[]);
    let slot = &shared.slots[place.index];
    shared.with_segments(|segments| {
        let lives_there = |tenant: &&mut Tenant| tenant.key == key && tenant.version == version;
        let ring = &shared.rings[place.index];
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
fn exhaust(shared: &Shared, index: usize, key: Key, version: i64) {
    shared.with_segments(|segments| {
        let waits_for_it = |tenant: &Tenant| tenant.key == key && tenant.version <= version;
        if segments.table.tenants[index].as_ref().is_some_and(waits_for_it) {
            shared.slots[index].exhausted.store(true, Relaxed);
        }
    });
}

/// The tag is gone: so is its ring, and whoever draws from it looks for the tag again.
fn evict(shared: &Shared, index: usize, tenant: Tenant) {
    shared.with_segments(|segments| {
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
#[pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: i32, arg: pg_sys::Datum) {
    let Some(shared) = shmem::shared() else {
        return;
    };
    if let Some((index, demand)) = IN_WORK.lock().take() {
        shared.slots[index].demand.fetch_max(demand, Relaxed);
    }
    let database = arg.value() as u32;
    // SAFETY: every process has its latch.
    let latch = unsafe { pg_sys::MyLatch } as usize;
    shared.with_segments(|segments| segments.refillers.end(database, latch));
    for (index, _) in wanted(shared, database) {
        shared.slots[index].refilled.ring();
    }
}
