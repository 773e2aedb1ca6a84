//! The label: the mark as WAL carries it, so that a replica that has replayed an id has replayed how far ids may go.
//!
//! A background worker writes this security label, because a transaction that draws may roll back, or may be read-only.
//! The worker starts when the mark comes near the label, connects to the database of the session that draws, and ends, so
//! it does not block DROP DATABASE.
//!
//! The mark waits for the label. If no worker can write it, the mark passes it: generation never stops. The check "mark"
//! of `idgen.status()` reports that.

use super::mark;
use super::state::{FILE, LabelState, STATE, State};
use crate::pg::bgworker::{self, Worker};
use crate::pg::latch::{ConditionVariable, WaitEvent};
use crate::pg::{recovery, session, shared_objects, system_clock, xact};
use crate::settings;
use idgen_core::clock::label::{MarkLabel, NextLabel, PATIENCE, RETRY};
use pgrx::bgworkers::BackgroundWorker;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Instant;

/// The worker gives up a lock sooner, so that it can log the reason.
const LOCK_TIMEOUT: &CStr = c"4s";
/// The wait of the mark for the worker.
static LABEL_WAIT: WaitEvent = WaitEvent::new(c"IdgenLabel");

const PROVIDER: &CStr = c"idgen";

const WORKER: Worker = Worker { name: "idgen label", function: "idgen_label", connects: true };

impl LabelState {
    /// Requests a worker that writes a label past this time, unless one is pending. `allow` runs before it starts. Not under
    /// an LWLock: starting a process takes one.
    pub fn request(&self, mark_ms: i64, allow: impl FnOnce()) {
        if !self.worker.request(system_clock::boot_us()) {
            self.wanted_ms.fetch_max(mark_ms, Release);
            return;
        }
        // Not the maximum: what was wanted earlier may be given up. Other sessions ask again when they wake.
        self.wanted_ms.store(mark_ms, Release);
        allow();
        if !WORKER.start_for_database(session::database()) {
            self.worker.fail(system_clock::boot_us());
        }
    }
}

/// This process waits for ids that need a label, or has the label and not moved the mark yet.
static IS_WAITING: AtomicBool = AtomicBool::new(false);

/// True if the mark may pass the label, because no worker can write one.
pub fn is_given_up(clock: &State) -> bool {
    clock.label.worker.is_given_up(system_clock::boot_us(), false)
}

/// Waits until a label lets the mark move to this time, or no worker can write one: true if the mark may pass the label.
/// `allow` makes the file allow it. The wait can be cancelled. Not under an LWLock. Call [`keep_ahead`] when the mark has moved.
pub fn wait_for(clock: &State, mark_ms: i64, allow: impl Fn()) -> bool {
    let state = &clock.label;
    let began = Instant::now();
    while !state.reach.reaches(mark_ms) {
        // In each turn, also in one that does not sleep: the caller asks again.
        check_for_interrupts!();
        IS_WAITING.store(true, Relaxed);
        allow();
        clock.moved.prepare_to_sleep();
        state.request(mark_ms, || ());
        if began.elapsed() >= PATIENCE {
            state.worker.time_out();
        }
        let is_late = !state.reach.reaches(mark_ms);
        // The failure may be an old one: the worker that was requested now gets a moment.
        let is_given_up = state.worker.is_given_up(system_clock::boot_us(), began.elapsed() >= RETRY);
        if is_late && !is_given_up {
            clock.moved.sleep(RETRY, &LABEL_WAIT);
        }
        ConditionVariable::cancel_sleep();
        if is_late && is_given_up {
            return true;
        }
    }
    false
}

/// At the end of each transaction. Where it waited for a label, and ended in an error, no id needs that label: it may be as
/// far ahead as a wrong clock, and a standby that is promoted would begin past it.
pub fn at_xact_event() {
    if IS_WAITING.swap(false, Relaxed)
        && let Some(clock) = STATE.get()
    {
        // Also what other sessions want: they ask again when they wake.
        clock.label.wanted_ms.store(i64::MIN, Release);
        request_if_due(clock);
    }
}

/// After the mark has moved: requests the next label in time, and logs when the mark has passed the label.
pub fn keep_ahead(clock: &State) {
    IS_WAITING.store(false, Relaxed);
    request_if_due(clock);
    if clock.label.reach.follow(clock.mark.mark_ms()) {
        log!("could not write the high-water mark to WAL: a standby that is promoted now may issue ids again");
    }
}

/// Requests a label if the one in WAL does not cover the next move of the mark, or reaches further than ids need it.
fn request_if_due(clock: &State) {
    let state = &clock.label;
    // The same as what the worker goes by: otherwise its label could be due again as soon as it is written.
    let needed_ms = mark::known_mark_ms(clock).max(state.wanted_ms.load(Acquire));
    let (until_ms, allowed_ms) = (state.reach.until_ms(), state.allowed_ms.load(Acquire));
    if MarkLabel::is_due(until_ms, needed_ms, allowed_ms, settings::max_drift_ms(), settings::clock_window_ms()) {
        state.request(needed_ms, || ());
    }
}

/// The label in the catalog. In a transaction.
pub fn read() -> Option<MarkLabel> {
    MarkLabel::parse(&shared_objects::read_label(PROVIDER)?)
}

/// Writes the label, which is valid once the transaction has committed. It may be before that of an earlier start: the mark
/// that was read then covers the difference.
fn write(clock: &State) -> NextLabel {
    // Otherwise two workers would update one row, in another order than they have chosen its time.
    shared_objects::lock_catalog();
    let next = mark::choose_label(clock);
    if next.is_lower {
        // The next record says that no label is later. A crash must not bring the later one back.
        bgworker::set_variable(c"synchronous_commit", c"local");
    }
    let label = MarkLabel { timeline: recovery::timeline(), until_ms: next.until_ms };
    shared_objects::write_label(PROVIDER, Some(&label.to_string()));
    next
}

/// This process has written the label.
static IS_DONE: AtomicBool = AtomicBool::new(false);

/// The worker.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_label(argument: pg_sys::Datum) {
    bgworker::handle_signals(None, None);
    let Some(clock) = STATE.get() else {
        return;
    };
    xact::before_exit(before_exit);
    // Only the order in WAL matters, and no standby is waited for: what WAL loses is lost with the ids after it.
    bgworker::set_variable(c"synchronous_commit", c"off");
    bgworker::set_variable(c"lock_timeout", LOCK_TIMEOUT);
    // A deferrable serializable transaction would wait for others to end.
    bgworker::set_variable(c"default_transaction_isolation", c"read committed");
    bgworker::connect(bgworker::database_argument(argument), true);
    let label = BackgroundWorker::transaction(AssertUnwindSafe(|| write(clock)));
    let is_known_again = FILE.exclusive(|written| written.labels.commit(&clock.label.reach, &label));
    clock.label.worker.succeed();
    IS_DONE.store(true, Relaxed);
    clock.moved.broadcast();
    // While this process wrote the label, the mark may have passed it, or the ids that wanted it may have been given up.
    request_if_due(clock);
    if is_known_again {
        log!("wrote the high-water mark to WAL again: standbys know it");
    }
}

fn before_exit(_code: i32) {
    if let Some(clock) = STATE.get().filter(|_| !IS_DONE.load(Relaxed)) {
        clock.label.worker.fail(system_clock::boot_us());
        clock.moved.broadcast();
    }
}
