//! A stop of the server does not end the supply worker at once: the request that it makes would be cut half-way, and the
//! values that it holds would be lost. Any other SIGTERM ends it at once, as PostgreSQL's own handler does.

use crate::pg::bgworker::{self, SignalHandler, TerminationTimer};
use crate::pg::data_directory;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The longest time that a stop of the server waits for the worker, whatever it waits for: the coordinator, a lock, or a
/// synchronous standby.
const LONGEST: Duration = Duration::from_secs(5);

static IS_REQUESTED: AtomicBool = AtomicBool::new(false);

static LIMIT: OnceLock<TerminationTimer> = OnceLock::new();

/// The worker's handler of SIGTERM.
pub fn handler() -> SignalHandler {
    if let Some(timer) = TerminationTimer::new() {
        // This process installs its handler once.
        let _ = LIMIT.set(timer);
    }
    on_terminate
}

unsafe extern "C-unwind" fn on_terminate(signal: c_int) {
    let note = || {
        // The postmaster sends the signal twice, to the process and to its group.
        if is_requested() {
            return;
        }
        if data_directory::is_server_stopping() && LIMIT.get().is_some_and(|timer| timer.start(LONGEST)) {
            IS_REQUESTED.store(true, Relaxed);
        } else {
            // SAFETY: in a signal handler, as PostgreSQL calls it.
            unsafe { bgworker::die(signal) };
        }
    };
    // SAFETY: in a signal handler. What it calls allocates nothing and takes no lock.
    unsafe { bgworker::in_signal_handler(note) };
}

/// The server is stopping.
pub fn is_requested() -> bool {
    IS_REQUESTED.load(Relaxed)
}
