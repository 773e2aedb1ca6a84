//! The signals of the keeper. It handles SIGTERM itself: PostgreSQL's handler would end a request half-way.

use crate::pg::{bgworker, session};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IS_STOP_REQUESTED: AtomicBool = AtomicBool::new(false);

/// The first thing that the keeper does.
pub fn install() {
    bgworker::handle_signals(Some(on_terminate), None);
}

unsafe extern "C-unwind" fn on_terminate(_signal: c_int) {
    // SAFETY: in a signal handler.
    unsafe { bgworker::in_signal_handler(|| IS_STOP_REQUESTED.store(true, Relaxed)) };
}

/// SIGTERM has arrived.
pub fn is_stop_requested() -> bool {
    IS_STOP_REQUESTED.load(Relaxed)
}

/// True if a wait for the coordinator has to end: a reload may have removed the pool.
pub fn is_interrupted() -> bool {
    is_stop_requested() || session::is_reload_pending()
}
