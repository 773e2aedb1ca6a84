//! The label: the mark as WAL carries it, so that a replica that has replayed an id has replayed how far ids may go.
//!
//! A background worker writes this security label, because a transaction that draws may roll back, or may be read-only.
//! The worker connects to the database of the session that draws, and ends, so it does not block DROP DATABASE.

use super::state::STATE;
use crate::pg::bgworker::{self, Worker};
use crate::pg::{recovery, shared_objects, xact};
use idgen_core::clock::label::{MarkLabel, NextLabel};
use idgen_core::clock::labelling;
use pgrx::bgworkers::BackgroundWorker;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The worker gives up a lock sooner than the mark gives up the worker, so that it can log the reason.
const LOCK_TIMEOUT: &CStr = c"4s";

const PROVIDER: &CStr = c"idgen";

pub const WORKER: Worker = Worker { name: "idgen label", function: "idgen_label" };

/// The label in the catalog. In a transaction.
pub fn read() -> Option<MarkLabel> {
    MarkLabel::parse(&shared_objects::read_label(PROVIDER)?)
}

pub fn commit(choose: impl FnOnce() -> NextLabel) -> NextLabel {
    let label = BackgroundWorker::transaction(AssertUnwindSafe(|| {
        // Otherwise two workers would update one row, in another order than they have chosen its time.
        shared_objects::lock_catalog();
        let label = choose();
        if label.is_lower {
            bgworker::set_variable(c"synchronous_commit", c"local");
        }
        let text = MarkLabel { timeline: recovery::timeline(), until_ms: label.until_ms }.to_string();
        shared_objects::write_label(PROVIDER, Some(&text));
        crate::pg::crash_point!("label: before the commit");
        label
    }));
    crate::pg::crash_point!("label: committed");
    label
}

static IS_DONE: AtomicBool = AtomicBool::new(false);

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
    IS_DONE.store(true, Relaxed);
}

fn before_exit(_code: i32) {
    if let Some(state) = STATE.get().filter(|_| !IS_DONE.load(Relaxed)) {
        labelling::fail_label(state);
    }
}
