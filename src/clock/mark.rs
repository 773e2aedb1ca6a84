//! The high-water mark and its label, "mark" from here on: what `idgen_core::clock` decides, with this server's file, locks,
//! catalogs and processes.

use super::file::{self, FileError};
use super::state::{FILE, GENERATORS, STATE, State};
use crate::pg::bgworker::{self, Worker};
use crate::pg::latch::{ConditionVariable, WaitEvent};
use crate::pg::spi::{self, Query};
use crate::pg::{datum, recovery, session, shared_objects, system_clock, xact};
use crate::{place, settings};
use idgen_core::clock::label::{MarkLabel, NextLabel};
use idgen_core::clock::port::{Event, HighWater, Port, WaitFor, Written};
use idgen_core::clock::record::{Found, Record};
use idgen_core::clock::start::Evidence;
use idgen_core::clock::{labelling, moves};
use idgen_core::generator::GeneratorTable;
use pgrx::bgworkers::BackgroundWorker;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// As [`moves::begin`]. Raises what is wrong with the file.
pub fn ensure_begun() {
    let state = STATE.require();
    if !moves::is_ready(&state.high_water) {
        // Before the lock: this reads other files and a catalog, may run a query, and may raise.
        let evidence = evidence();
        or_raise(moves::begin(state, &evidence));
    }
}

/// Makes all ids begin at this time or later, durably before they do.
pub fn raise_to(floor_ms: i64) {
    or_raise(moves::raise_to(STATE.require(), floor_ms));
}

pub fn or_raise(outcome: Result<(), FileError>) {
    outcome.unwrap_or_else(|error| file::high_water(error).raise());
}

static IS_WAITING: AtomicBool = AtomicBool::new(false);

static MARK_WAIT: WaitEvent = WaitEvent::new(c"IdgenMark");
static LABEL_WAIT: WaitEvent = WaitEvent::new(c"IdgenLabel");

/// As a process of this server reaches it.
impl Port for State {
    type Error = FileError;

    fn high_water(&self) -> &HighWater {
        &self.high_water
    }

    fn drift_and_window_ms(&self) -> (i64, i64) {
        (settings::max_drift_ms(), settings::clock_window_ms())
    }

    fn layout(&self) -> String {
        settings::canonical_layout()
    }

    fn system_identifier(&self) -> u64 {
        recovery::system_identifier()
    }

    fn life(&self) -> String {
        place::number().to_owned()
    }

    fn boot_us(&self) -> i64 {
        system_clock::boot_us()
    }

    fn generators<R>(&self, work: impl FnOnce(&mut GeneratorTable) -> R) -> R {
        GENERATORS.exclusive(|table| work(table))
    }

    fn try_file<R>(&self, work: impl FnOnce(&mut Written) -> R) -> Option<R> {
        FILE.try_exclusive(work)
    }

    fn file<R>(&self, work: impl FnOnce(&mut Written) -> R) -> R {
        FILE.exclusive(work)
    }

    fn read(&self) -> Result<Option<Found>, FileError> {
        file::read(recovery::system_identifier())
    }

    fn write(&self, record: Record, written: &mut Written) -> Result<(), FileError> {
        let began = Instant::now();
        let outcome = file::write(&record, written);
        let errno = outcome.as_ref().err().map_or(0, |e| e.raw_os_error().unwrap_or(libc::EIO));
        self.last_error.store(errno, Relaxed);
        outcome?;
        crate::pg::crash_point!("mark: synced");
        self.writes.fetch_add(1, Relaxed);
        self.write_us.fetch_add(began.elapsed().as_micros() as u64, Relaxed);
        Ok(())
    }

    fn is_failing(&self) -> bool {
        self.last_error.load(Relaxed) != 0
    }

    fn check_interrupts(&self) {
        check_for_interrupts!();
    }

    fn prepare_to_wait(&self) {
        self.moved.prepare_to_sleep();
    }

    fn wait(&self, for_what: WaitFor, at_most: Duration) {
        let event = match for_what {
            WaitFor::File => &MARK_WAIT,
            WaitFor::Label => &LABEL_WAIT,
        };
        self.moved.sleep(at_most, event);
    }

    fn end_wait(&self) {
        ConditionVariable::cancel_sleep();
    }

    fn signal(&self) {
        self.moved.broadcast();
    }

    fn start_label_worker(&self) -> bool {
        LABEL_WORKER.start_for_database(session::database())
    }

    fn commit_label(&self, choose: impl FnOnce() -> NextLabel) -> NextLabel {
        commit_label(choose)
    }

    fn is_waiting(&self) -> &AtomicBool {
        &IS_WAITING
    }

    fn tell(&self, event: Event) {
        match event {
            Event::NoFile => log!(
                "there is no high-water file \"{}\" yet: ids begin past the label in WAL, or at the clock and the last checkpoint",
                file::PATH
            ),
            Event::LayoutChanged { before } => {
                self.is_layout_changed.store(true, Relaxed);
                let layout = settings::canonical_layout();
                log!("idgen.layout is \"{layout}\" and was \"{before}\" when ids were last issued by default");
            }
            Event::LabelPassed => {
                log!("could not write the high-water mark to WAL: a standby that is promoted now may issue ids again")
            }
            Event::LabelKnownAgain => log!("wrote the high-water mark to WAL again: standbys know it"),
        }
    }
}

/// In the postmaster as it gives up shared memory. After a clean shutdown no process is left that could issue, so the mark
/// is written exactly, without the window, and the next start begins there.
pub fn at_exit(code: i32) {
    let Some(state) = STATE.get() else {
        return;
    };
    // An immediate stop exits with code 0, too; only a shutdown checkpoint proves a clean one. And this server must not
    // lower a mark that it never read.
    if code != 0 || state.high_water.mark.known_ms().is_none() || !recovery::is_shut_down() {
        return;
    }
    // SAFETY: the postmaster gives up shared memory when its children have ended.
    let exact_ms = unsafe { GENERATORS.without_other_processes(|table| table.unused_from_ms()) };
    let write = |written: &mut Written| moves::write(state, written, exact_ms);
    crate::pg::crash_point!("stop: before the exact mark");
    // SAFETY: as above.
    if let Err(FileError::Io(error)) = unsafe { FILE.without_other_processes(write) } {
        log!("could not write \"{}\" at shutdown; the next start uses the last record: {error}", file::PATH);
    }
}

/// The commit of a prepared transaction can still bring ids that no one here has seen.
static LAST_PREPARED: Query = Query::of_statistics("SELECT pg_catalog.max(prepared) FROM pg_catalog.pg_prepared_xacts");

/// The evidence about the time before this start. In a transaction; without a label this runs a query.
fn evidence() -> Evidence<'static> {
    let label = read_label();
    let read_prepared = || LAST_PREPARED.read_latest(&[], |row| spi::optional(row, 1)).pop().flatten();
    let prepared: Option<TimestampWithTimeZone> = if label.is_none() { read_prepared() } else { None };
    Evidence {
        wall_ms: system_clock::wall_ms(),
        life: place::number(),
        is_promoted: label.is_some_and(|label| label.timeline != recovery::timeline()),
        label_ms: label.map(|label| label.until_ms),
        checkpoint_ms: recovery::checkpoint_ms(),
        replayed_ms: replayed_ms(),
        prepared_ms: prepared.map(datum::to_ms),
        drift_ms: settings::max_drift_ms(),
        window_ms: settings::clock_window_ms(),
    }
}

/// The time of the last commit that was replayed since the server started, on its primary's clock.
fn replayed_ms() -> Option<i64> {
    // SAFETY: reads shared memory, under PostgreSQL's own lock.
    match unsafe { pg_sys::GetLatestXTime() } {
        0 => None,
        us => TimestampWithTimeZone::try_from(us).ok().map(datum::to_ms),
    }
}

// The label is the mark as WAL carries it, so that a replica that has replayed an id has replayed how far ids may go. A
// background worker writes this security label, because a transaction that draws may roll back, or may be read-only. The
// worker connects to the database of the session that draws, and ends, so it does not block DROP DATABASE.

/// The worker gives up a lock sooner than the mark gives up the worker, so that it can log the reason.
const LOCK_TIMEOUT: &CStr = c"4s";

const LABEL_PROVIDER: &CStr = c"idgen";
/// The part of the label's object that writers lock. Not the catalog: VACUUM locks that while it waits for readers.
const LABEL_PART: u16 = 2;

const LABEL_WORKER: Worker = Worker { name: "idgen label", function: "idgen_label" };

/// The label in the catalog. In a transaction.
fn read_label() -> Option<MarkLabel> {
    MarkLabel::parse(&shared_objects::read_label(LABEL_PROVIDER)?)
}

fn commit_label(choose: impl FnOnce() -> NextLabel) -> NextLabel {
    let label = BackgroundWorker::transaction(AssertUnwindSafe(|| {
        // Otherwise two workers would update one row, in another order than they have chosen its time.
        shared_objects::lock_part(LABEL_PART);
        let label = choose();
        if label.is_lower {
            bgworker::set_variable(c"synchronous_commit", c"local");
        }
        let text = MarkLabel { timeline: recovery::timeline(), until_ms: label.until_ms }.to_string();
        shared_objects::write_label(LABEL_PROVIDER, Some(&text));
        crate::pg::crash_point!("label: before the commit");
        label
    }));
    crate::pg::crash_point!("label: committed");
    label
}

static IS_LABEL_DONE: AtomicBool = AtomicBool::new(false);

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_label(argument: pg_sys::Datum) {
    bgworker::handle_signals(None, None);
    let Some(state) = STATE.get() else {
        return;
    };
    xact::before_exit(before_exit);
    bgworker::set_variable(c"synchronous_commit", c"off");
    bgworker::set_variable(c"lock_timeout", LOCK_TIMEOUT);
    // A deferrable serializable transaction would wait for others to end.
    bgworker::set_variable(c"default_transaction_isolation", c"read committed");
    bgworker::connect(bgworker::database_argument(argument));
    labelling::write_label(state);
    IS_LABEL_DONE.store(true, Relaxed);
}

fn before_exit(_code: i32) {
    if let Some(state) = STATE.get().filter(|_| !IS_LABEL_DONE.load(Relaxed)) {
        labelling::fail_label(state);
    }
}
