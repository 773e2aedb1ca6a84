//! The keeper: the background worker that leases this server's worker id from the coordinator, and renews the lease
//! long before it ends. It runs from the start of the server, and sleeps while no pool is configured. It stores its
//! lease in shared memory. Sessions wait for the keeper only while there is no worker id yet.
//!
//! A keeper that starts again continues the lease in shared memory. A server that starts again, also after a crash of a
//! backend, ends its last lease, which the file `idgen_worker` names, and acquires another one.

use super::errors;
use super::state::{self, SERVER_LEASE, STATE, SharedLease};
use crate::clock;
use crate::coordinator::{self, COORDINATOR_WAIT, Client, Coordinator};
use crate::pg::bgworker::{self, Worker};
use crate::pg::latch::{self, WaitEvent};
use crate::pg::libpq::{Error, Timeout};
use crate::pg::{recovery, session, system_clock, xact};
use crate::place;
use crate::settings;
use crate::snowflake::node;
use idgen_core::coordinator::Place;
use idgen_core::worker::by_hand::WorkerSetting;
use idgen_core::worker::keeper::{Keeper, Next};
use idgen_core::worker::lease::ServerLease;
use idgen_core::worker::memory::{LastWorkerId, MemoryFile};
use idgen_core::worker::server::{ConfiguredPool, Event, Failure, Interrupt, Server};
use pgrx::bgworkers::BgWorkerStartTime;
use pgrx::prelude::*;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const WORKER: Worker = Worker { name: "idgen keeper", function: "idgen_keeper" };

/// While the postmaster preloads libraries. Always: a reload can configure a pool.
pub fn register() {
    // SAFETY: a flag that is set earlier. A server that is being upgraded issues no ids.
    if !unsafe { pg_sys::IsBinaryUpgrade } {
        WORKER.register(BgWorkerStartTime::RecoveryFinished, Duration::from_secs(1));
    }
}

#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_keeper(_arg: pg_sys::Datum) {
    // SIGTERM has a handler of its own: PostgreSQL's would end a request half-way.
    bgworker::handle_signals(Some(on_terminate), None);
    let Some(state) = STATE.get() else { return };
    state.keeper.enter();
    xact::before_exit(|_| STATE.require().keeper.leave());
    // A reload before the handler was installed would be missed.
    reload();
    run();
}

fn reload() {
    session::reload_configuration();
    place::record_unsynced_boot();
}

static MAIN_WAIT: WaitEvent = WaitEvent::new(c"IdgenKeeperMain");

fn run() -> ! {
    let shared = SERVER_LEASE.shared(|shared| *shared);
    // The coordinator of the lease is known if it is still that of the configured pool.
    let pool_of_lease = |name: String| {
        let configured = settings::worker_pool().filter(|pool| pool.name == name);
        configured.unwrap_or_else(|| ConfiguredPool { name, coordinator: c"".to_owned() })
    };
    let mut keeper = Keeper::new(shared.lease, shared.pool.text().map(pool_of_lease));
    let mut server = OwnServer(Client::new(c"idgen keeper", Duration::ZERO));
    loop {
        check_for_interrupts!();
        if is_stop_requested() {
            stop(&mut keeper, &mut server);
        }
        if session::is_reload_pending() {
            reload();
        }
        node::follow_settings();
        if server.0.follow(settings::coordinator()) {
            coordinator::tell_followers();
        }
        keeper.follow(&mut server, settings::worker_pool());
        match keeper.turn(&mut server) {
            // The waits of an attempt may reset the latch, so requests are read again before a sleep.
            Next::Turn => STATE.require().changed.broadcast(),
            Next::Sleep(_) if is_interrupted() => {}
            // Rounded up: the latch counts in milliseconds.
            Next::Sleep(pause) => latch::wait(pause.map(|pause| pause + Duration::from_millis(1)), &MAIN_WAIT),
        }
    }
}

/// SIGTERM: ends this process. If the server is stopping, gives the worker id back first.
fn stop(keeper: &mut Keeper, server: &mut OwnServer) {
    if recovery::is_server_stopping() {
        keeper.give_back(server, Interrupt::Never);
    }
    // SAFETY: flags of this process; PostgreSQL's own handler sets them.
    unsafe {
        pg_sys::ProcDiePending = 1;
        pg_sys::InterruptPending = 1;
    }
    check_for_interrupts!();
}

/// The server of the keeper, as the core reads and changes it: the settings, the file of the worker id, id times, the lease in
/// shared memory, and the link to the coordinator.
struct OwnServer(Client);

impl Server for OwnServer {
    type Error = Error;
    type Coordinator = Coordinator;

    fn boot_us(&self) -> i64 {
        system_clock::boot_us()
    }

    fn now_us(&self) -> i64 {
        system_clock::wall_us()
    }

    fn random_fraction(&mut self) -> f64 {
        session::random_fraction()
    }

    fn setting(&self) -> WorkerSetting {
        state::worker_setting()
    }

    fn read_memory(&self) -> MemoryFile {
        state::read_memory()
    }

    fn here(&self) -> Option<Place> {
        place::read().ok()
    }

    fn write_memory(&mut self, worker: LastWorkerId) -> Result<(), Error> {
        let unwritten = |error| Error::new(format!("could not write file \"{}\": {error}", state::MEMORY_FILE));
        state::write_memory(worker).map_err(unwritten)?;
        crate::pg::crash_point!("keeper: remembered");
        Ok(())
    }

    fn try_write_memory(&mut self, worker: LastWorkerId) {
        if let Err(error) = state::write_memory(worker) {
            errors::lease_file_not_written(&error).warn();
        }
    }

    fn take_request(&mut self) -> i64 {
        STATE.require().keeper.take_request()
    }

    fn next_ms(&self) -> i64 {
        clock::GENERATORS.shared(|table| table.next_ms())
    }

    fn unused_from_ms(&self) -> i64 {
        clock::GENERATORS.shared(|table| table.unused_from_ms())
    }

    fn store(&mut self, lease: &ServerLease) {
        SERVER_LEASE.exclusive(|shared| {
            shared.lease = *lease;
            if lease.failing_since_ms.is_none() {
                shared.last_error.clear();
            }
        });
    }

    fn publish(&mut self, pool: &str, lease: &ServerLease) {
        SERVER_LEASE.exclusive(|shared| {
            shared.lease = *lease;
            shared.pool.set(pool);
        });
    }

    fn issue_leased(&mut self, pool: &str, lease: &ServerLease) {
        let Some(current) = lease.current else { return };
        let publish = || {
            node::CURRENT.require().set_leased(current.worker_id);
            STATE.require().has_issued_by_hand.store(false, Relaxed);
            self.publish(pool, lease);
        };
        clock::restrict_times(|| true, current.rectangle.first_ms(), current.rectangle.end_ms(), publish);
        crate::pg::crash_point!("keeper: published");
    }

    fn issue_by_setting(&mut self) {
        let publish = || {
            STATE.require().has_issued_by_hand.store(false, Relaxed);
            node::CURRENT.require().set_to_setting();
        };
        clock::restrict_times(|| true, i64::MIN, i64::MAX, publish);
    }

    fn issue_nothing(&mut self) {
        clock::restrict_times(|| true, i64::MIN, i64::MIN, || node::CURRENT.require().set_none());
    }

    fn extend_to(&mut self, end_ms: i64) {
        clock::extend_to(end_ms);
        crate::pg::crash_point!("keeper: extended");
    }

    fn clear(&mut self) {
        SERVER_LEASE.exclusive(|shared| *shared = SharedLease::default());
        STATE.require().changed.broadcast();
    }

    fn failures(&self) -> u32 {
        self.0.link.failures
    }

    fn connected_in(&self) -> Duration {
        self.0.connected_in
    }

    fn is_interrupted(&self) -> bool {
        is_interrupted()
    }

    fn open(&mut self, limit: Duration) -> Result<Coordinator, Error> {
        self.0.open(Timeout { duration: limit, event: &COORDINATOR_WAIT, is_interrupted })
    }

    fn answered(&mut self, coordinator: Coordinator, pause: Duration) {
        let host = coordinator.connection.host();
        SERVER_LEASE.exclusive(|shared| shared.coordinator.set(&host));
        self.0.answered(coordinator);
        self.0.link.pause(Instant::now() + pause);
    }

    fn failed(&mut self, pool: &str, error: &Error, is_first: bool, lease: &ServerLease, pause: Duration) {
        SERVER_LEASE.exclusive(|shared| {
            shared.lease = *lease;
            shared.last_error.set(&error.message);
        });
        STATE.require().failures.fetch_add(1, Relaxed);
        if is_first {
            log!("could not lease a worker id from pool \"{pool}\": {}", error.message);
        }
        self.0.link.failed(Instant::now(), pause);
    }

    fn reset(&mut self) {
        self.0.link.reset();
    }

    fn once<R>(
        &mut self,
        coordinator: &CStr,
        limit: Duration,
        until: Interrupt,
        calls: impl FnOnce(&mut Coordinator) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let is_interrupted = match until {
            Interrupt::Stop => is_stop_requested,
            Interrupt::Never => || false,
        };
        self.0.link.close();
        self.0.once(coordinator, Timeout { duration: limit, event: &COORDINATOR_WAIT, is_interrupted }, calls)
    }

    fn tell(&mut self, pool: &str, event: Event<Error>) {
        let state = STATE.require();
        match event {
            Event::Renewed => {
                state.renewals.fetch_add(1, Relaxed);
            }
            Event::Changed(worker_id) => {
                state.changes.fetch_add(1, Relaxed);
                log!("this server now has worker id {worker_id} of pool \"{pool}\"");
            }
            Event::NotFree(set) => errors::not_free(set, pool).warn(),
            Event::Lost(worker_id, error) => {
                log!("worker id {worker_id} of pool \"{pool}\" is lost: {}", error.message)
            }
            Event::NotReleased(worker_id, error) => {
                log!("could not release worker id {worker_id} of pool \"{pool}\": {}", error.message);
            }
            Event::Recovered => log!("the coordinator of worker pool \"{pool}\" answers again"),
        }
    }
}

impl Failure for Error {
    fn is_refusal(&self) -> bool {
        self.sqlstate.is_some()
    }

    fn another_coordinator() -> Self {
        Error::new("another coordinator has granted it")
    }
}

static IS_STOP_REQUESTED: AtomicBool = AtomicBool::new(false);

/// The handler of SIGTERM.
unsafe extern "C-unwind" fn on_terminate(
    _signal: c_int,
    #[cfg(not(any(feature = "pg15", feature = "pg16", feature = "pg17", feature = "pg18")))]
    _sender: *const bgworker::Sender,
) {
    // SAFETY: in a signal handler.
    unsafe { bgworker::in_signal_handler(|| IS_STOP_REQUESTED.store(true, Relaxed)) };
}

pub fn is_stop_requested() -> bool {
    IS_STOP_REQUESTED.load(Relaxed)
}

/// True if a wait for the coordinator has to end: a reload may have removed the pool.
fn is_interrupted() -> bool {
    is_stop_requested() || session::is_reload_pending()
}
