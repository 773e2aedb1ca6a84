//! The label: the mark as WAL carries it, so that whoever has replayed an id has replayed how far ids may go.
//!
//! It is one row of the shared catalog pg_shseclabel, under a database that does not exist: no dump takes it along, and a
//! replica needs no code to follow it. A background worker writes it, because a transaction that draws may roll back, and may
//! not be allowed to write. The worker is started when the mark comes near the label, works in the database that the session
//! draws in, and ends: so it keeps nobody from dropping a database.
//!
//! The mark does not pass the label until the label has been written. Where no worker gets that done, it passes it all the
//! same: generation never stops. The check "mark" of `idgen.status()` says so.

use super::boot_us;
use super::recovery::die;
use crate::pg_compat::set_signal_handler;
use crate::shmem::{self, Shared};
use crate::{bell, settings};
use idgen_core::clock::label::Label;
use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder, SignalWakeFlags};
use pgrx::prelude::*;
use std::ffi::{CStr, CString};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::*};
use std::time::{Duration, Instant};

/// In shared memory.
pub struct State {
    /// How far the label reaches that was written since the server started.
    until_ms: AtomicI64,
    /// The same before it is committed. Holder of the catalog's lock.
    planned_ms: AtomicI64,
    /// How far the mark wants to move.
    wanted_ms: AtomicI64,
    /// When the worker was asked for, by CLOCK_BOOTTIME in microseconds; less than zero once that has failed; 0: none is
    /// under way.
    asked_us: AtomicI64,
    /// The last worker has not written the label, and none has since.
    is_failing: AtomicBool,
    /// The mark has passed the label, and it is in the log.
    is_passed: AtomicBool,
}

/// How long the mark waits for the worker, which takes some milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// The worker waits less long for a lock, so that it can say what it was waiting for.
const LOCK_TIMEOUT: &CStr = c"4s";
/// How long after a failure the worker is asked for again.
const RETRY: Duration = Duration::from_secs(1);

impl State {
    pub fn new() -> Self {
        Self {
            until_ms: AtomicI64::new(i64::MIN),
            planned_ms: AtomicI64::new(i64::MIN),
            wanted_ms: AtomicI64::new(i64::MIN),
            asked_us: AtomicI64::new(0),
            is_failing: AtomicBool::new(false),
            is_passed: AtomicBool::new(false),
        }
    }

    /// No id with this time or a later one is in WAL, if the mark has not passed it.
    pub fn until_ms(&self) -> i64 {
        // Acquire: whoever sees a label sees that WAL has it.
        self.until_ms.load(Acquire)
    }

    /// Has the worker write a label past this time, if none is under way. Not for the holder of an LWLock: asking PostgreSQL
    /// for a process takes one.
    fn ask(&self, mark_ms: i64) {
        let (asked_us, now_us) = (self.asked_us.load(Acquire), boot_us());
        let pause = if asked_us < 0 { RETRY } else { PATIENCE };
        let is_early = asked_us != 0 && now_us - asked_us.abs() < pause.as_micros() as i64;
        if is_early || self.asked_us.compare_exchange(asked_us, now_us, AcqRel, Relaxed).is_err() {
            self.wanted_ms.fetch_max(mark_ms, Release);
            return;
        }
        // Not what an earlier session wanted: it may have been cancelled, and no id has come of it.
        self.wanted_ms.store(mark_ms, Release);
        if !start_worker() {
            self.fail();
        }
    }

    fn is_under_way(&self) -> bool {
        let asked_us = self.asked_us.load(Acquire);
        asked_us > 0 && boot_us() - asked_us < PATIENCE.as_micros() as i64
    }

    fn fail(&self) {
        self.asked_us.store(-boot_us(), Release);
        self.is_failing.store(true, Release);
    }
}

/// May the mark be moved to this time without waiting? If not, has a label past it written. For a mark that is in nobody's
/// way.
pub fn allows(shared: &Shared, mark_ms: i64) -> bool {
    let state = &shared.clock.label;
    if state.until_ms() >= mark_ms {
        return true;
    }
    state.ask(mark_ms);
    state.is_failing.load(Acquire) && !state.is_under_way()
}

/// How far the mark may be moved, if it is to be moved to this time: at least there. Waits until the worker has written a
/// label past it, or cannot. The wait can be cancelled. Not for the holder of an LWLock.
pub fn bound(shared: &Shared, mark_ms: i64) -> i64 {
    let state = &shared.clock.label;
    let began = Instant::now();
    while state.until_ms() < mark_ms {
        // Before looking again, so that a ring in between is not lost.
        shared.clock.moved.listen();
        state.ask(mark_ms);
        if began.elapsed() >= PATIENCE {
            state.is_failing.store(true, Release);
        }
        let is_late = state.until_ms() < mark_ms;
        // A failure may be past: the worker that was asked for now has a moment.
        let is_given_up = !state.is_under_way() || began.elapsed() >= RETRY;
        let is_failing = state.is_failing.load(Acquire) && is_given_up;
        if is_late && !is_failing {
            shared.clock.moved.sleep(RETRY, pg_sys::PG_WAIT_EXTENSION);
        }
        bell::stop_listening();
        if is_late && is_failing {
            return i64::MAX;
        }
    }
    state.until_ms()
}

/// Has the next label written in time, after the mark was moved; and logs when the mark is past the label.
pub fn keep_ahead(shared: &Shared) {
    let (state, mark_ms) = (&shared.clock.label, shared.clock.mark.mark_ms());
    if Label::is_due(state.until_ms(), mark_ms, settings::max_drift_ms(), settings::clock_window_ms()) {
        state.ask(mark_ms);
    }
    if mark_ms > state.until_ms() && !state.is_passed.swap(true, AcqRel) {
        log!("could not write how far ids may go: a standby that is promoted now may issue ids again");
    }
    // The worker may have written the label in between, and found nothing to take back.
    if mark_ms <= state.until_ms() {
        state.is_passed.store(false, Release);
    }
}

/// Has the mark passed the label, so that a replica does not know how far ids may go?
pub fn is_passed(shared: &Shared) -> bool {
    shared.clock.label.is_passed.load(Acquire)
}

/// The timeline that this server writes.
pub fn timeline() -> u32 {
    // SAFETY: reads shared memory; recovery has ended.
    unsafe { pg_sys::GetWALInsertionTimeLine() }
}

/// pg_shseclabel, which pgrx does not name.
const CATALOG: pg_sys::Oid = pg_sys::Oid::from_u32(3592);
const PROVIDER: &CStr = c"idgen";

/// What the label is written on: a database without a number.
fn object() -> pg_sys::ObjectAddress {
    pg_sys::ObjectAddress { classId: pg_sys::DatabaseRelationId, objectId: pg_sys::InvalidOid, objectSubId: 0 }
}

/// The label as it stands in the catalog. In a transaction.
pub fn read() -> Option<Label> {
    // SAFETY: the object is a local; the result is null or a C string in this transaction's memory, copied at once.
    let text = unsafe {
        let text = pg_sys::GetSecurityLabel(&object(), PROVIDER.as_ptr());
        if text.is_null() {
            return None;
        }
        CStr::from_ptr(text).to_owned()
    };
    Label::parse(text.to_str().ok()?)
}

/// Writes the label, and returns how far it reaches once the transaction has committed. It may reach less far than one of
/// an earlier start: the mark that was read then knows better.
fn write(shared: &Shared) -> i64 {
    // SAFETY: a lock that the end of the transaction releases. It conflicts with itself: two workers would update one row.
    unsafe { pg_sys::LockRelationOid(CATALOG, pg_sys::ShareUpdateExclusiveLock as pg_sys::LOCKMODE) };
    let state = &shared.clock.label;
    let mark_ms = shared.clock.mark.mark_ms().max(state.wanted_ms.load(Acquire));
    let reach_ms = Label::reach_ms(mark_ms, settings::max_drift_ms(), settings::clock_window_ms());
    let until_ms = reach_ms.max(state.planned_ms.fetch_max(reach_ms, AcqRel));
    let text = CString::new(Label { timeline: timeline(), until_ms }.to_string()).expect("a label has no NUL");
    // SAFETY: the object is a local, and both texts are C strings. The provider needs no registration to be written here.
    unsafe { pg_sys::SetSecurityLabel(&object(), PROVIDER.as_ptr(), text.as_ptr()) };
    until_ms
}

/// False if PostgreSQL has no place for a background worker.
fn start_worker() -> bool {
    // SAFETY: a variable of this process.
    let database = unsafe { pg_sys::MyDatabaseId };
    BackgroundWorkerBuilder::new("idgen label")
        .set_library("idgen")
        .set_function("idgen_label")
        .set_argument(database.into_datum())
        .enable_spi_access()
        .load_dynamic()
        .is_ok()
}

/// This process has written the label.
static IS_DONE: AtomicBool = AtomicBool::new(false);

/// The worker.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_label(database: pg_sys::Datum) {
    // SAFETY: as the first thing of a background worker.
    unsafe { set_signal_handler(libc::SIGTERM, Some(die)) };
    BackgroundWorker::attach_signal_handlers(SignalWakeFlags::SIGHUP);
    let Some(shared) = shmem::shared() else {
        return;
    };
    // SAFETY: the callback has the signature of one.
    unsafe { pg_sys::before_shmem_exit(Some(at_exit), pg_sys::Datum::null()) };
    // Only the order in WAL matters, and no standby is waited for: what is lost of WAL is lost with the ids after it.
    set(c"synchronous_commit", c"off");
    set(c"lock_timeout", LOCK_TIMEOUT);
    // A serializable transaction that is deferrable waits for others to end.
    set(c"default_transaction_isolation", c"read committed");
    // SAFETY: once, in a background worker. A session of that database has asked for it.
    unsafe {
        let database = pg_sys::Oid::from(database.value() as u32);
        let flags = pg_sys::BGWORKER_BYPASS_ALLOWCONN;
        pg_sys::BackgroundWorkerInitializeConnectionByOid(database, pg_sys::InvalidOid, flags);
    }
    let until_ms = BackgroundWorker::transaction(AssertUnwindSafe(|| write(shared)));
    let state = &shared.clock.label;
    state.until_ms.fetch_max(until_ms, AcqRel);
    state.is_failing.store(false, Release);
    state.asked_us.store(0, Release);
    IS_DONE.store(true, Relaxed);
    shared.clock.moved.ring();
    let mark_ms = shared.clock.mark.mark_ms();
    if mark_ms > state.until_ms() {
        // It was moved while this process was at work, and passed the label.
        state.ask(mark_ms);
    } else if state.is_passed.swap(false, AcqRel) {
        log!("standbys know again how far ids may go");
    }
}

/// Sets a variable of this process, whatever is configured for it.
fn set(name: &CStr, value: &CStr) {
    // SAFETY: the name of a setting of PostgreSQL and a value that it takes.
    unsafe {
        let (context, source) = (pg_sys::GucContext::PGC_USERSET, pg_sys::GucSource::PGC_S_OVERRIDE);
        pg_sys::SetConfigOption(name.as_ptr(), value.as_ptr(), context, source);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn at_exit(_code: i32, _arg: pg_sys::Datum) {
    if let Some(shared) = shmem::shared().filter(|_| !IS_DONE.load(Relaxed)) {
        shared.clock.label.fail();
        shared.clock.moved.ring();
    }
}
