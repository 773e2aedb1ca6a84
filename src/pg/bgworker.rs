//! Background workers: starting them, and the signals they handle.

use pgrx::bgworkers::{BackgroundWorkerBuilder, BgWorkerStartTime};
#[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
use pgrx::pg_sys::pqsignal as set_signal_handler;
#[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17")))]
use pgrx::pg_sys::pqsignal_be as set_signal_handler;
use pgrx::prelude::*;
use std::ffi::{CStr, c_int};
use std::time::Duration;

unsafe extern "C-unwind" {
    /// PostgreSQL's handler of SIGTERM. Declared here, because pgrx's wrapper of it is no C function.
    fn die(signal: c_int, #[cfg(feature = "pg19")] sender: *const Sender);
    /// PostgreSQL's handler of SIGHUP, likewise.
    fn SignalHandlerForConfigReload(signal: c_int, #[cfg(feature = "pg19")] sender: *const Sender);
}

/// From PostgreSQL 19 on, a signal handler has a second argument: the process that sent the signal.
#[cfg(feature = "pg19")]
pub type Sender = pg_sys::pg_signal_info;
pub type SignalHandler = pg_sys::pqsigfunc;

/// A worker of this library, and the name of its C function.
pub struct Worker {
    /// In `pg_stat_activity.backend_type`.
    pub name: &'static str,
    pub function: &'static str,
}

impl Worker {
    fn builder(&self, name: &str) -> BackgroundWorkerBuilder {
        let builder = BackgroundWorkerBuilder::new(name).set_type(self.name);
        builder.set_library(env!("CARGO_PKG_NAME")).set_function(self.function)
    }

    /// Registers a worker without a database that runs from `start` on, and restarts this long after its end. Call this while
    /// the postmaster preloads libraries.
    pub fn register(&self, start: BgWorkerStartTime, restart: Duration) {
        self.builder(self.name).set_start_time(start).set_restart_time(Some(restart)).load();
    }

    /// Starts a worker for a database, once. False if PostgreSQL has no slot for it.
    pub fn start_for_database(&self, database: u32) -> bool {
        let builder = self.builder(&format!("{} {database}", self.name)).enable_spi_access();
        let argument = i32::from_ne_bytes(database.to_ne_bytes()).into_datum();
        builder.set_argument(argument).set_restart_time(None).load_dynamic().is_ok()
    }
}

/// The database of a worker that [`Worker::start_for_database`] started.
pub fn database_argument(argument: pg_sys::Datum) -> u32 {
    argument.value() as u32
}

/// Installs the handlers of SIGTERM (by default PostgreSQL's own), SIGHUP (PostgreSQL's own) and SIGINT (if given). A worker
/// calls this first.
pub fn handle_signals(terminate: SignalHandler, interrupt: SignalHandler) {
    // SAFETY: in the main function of a background worker, before it unblocks signals.
    unsafe {
        set_signal_handler(libc::SIGTERM, terminate.or(Some(die)));
        set_signal_handler(libc::SIGHUP, Some(SignalHandlerForConfigReload));
        if interrupt.is_some() {
            set_signal_handler(libc::SIGINT, interrupt);
        }
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// Sends SIGTERM to a worker of this server. One that has ended by now gets nothing, unless its id was given again.
pub fn terminate(process: i32) {
    // SAFETY: a signal to another process.
    unsafe { libc::kill(process, libc::SIGTERM) };
}

/// Connects to a database as the bootstrap superuser, once, also to one that allows no connections. 0: to the shared catalogs.
pub fn connect(database: u32) {
    let flags = pg_sys::BGWORKER_BYPASS_ALLOWCONN;
    // SAFETY: once, in a background worker.
    unsafe { pg_sys::BackgroundWorkerInitializeConnectionByOid(database.into(), pg_sys::InvalidOid, flags) };
}

/// Sets a variable of this process, whatever is configured for the database.
pub fn set_variable(name: &CStr, value: &CStr) {
    // SAFETY: the name of a setting of PostgreSQL and a value that it takes.
    unsafe {
        let (context, source) = (pg_sys::GucContext::PGC_SUSET, pg_sys::GucSource::PGC_S_OVERRIDE);
        pg_sys::SetConfigOption(name.as_ptr(), value.as_ptr(), context, source);
    }
}

/// The body of a signal handler: runs `note`, and sets the latch.
///
/// # Safety
/// In a signal handler of this process. `note` calls only what is safe there, such as storing an atomic.
pub unsafe fn in_signal_handler(note: impl FnOnce()) {
    // SAFETY: as in PostgreSQL's own handlers: SetLatch may be called in one, and errno is restored.
    unsafe {
        let errno = *libc::__errno_location();
        note();
        pg_sys::SetLatch(pg_sys::MyLatch);
        *libc::__errno_location() = errno;
    }
}
