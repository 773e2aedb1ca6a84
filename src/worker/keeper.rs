//! The keeper: the background worker that leases this server's worker id from the coordinator, and renews the lease
//! long before it ends. It runs from the start of the server, and sleeps while no pool is configured. It stores its
//! lease in shared memory. Sessions wait for the keeper only while there is no worker id yet.
//!
//! A keeper that starts again continues the lease in shared memory. A server that starts again, also after a crash of a
//! backend, ends its last lease, which the file `idgen_worker` names, and acquires another one.

use super::server::{OwnServer, is_interrupted, is_stop_requested, on_terminate};
use super::state::{SERVER_LEASE, STATE};
use crate::coordinator::{self, Client};
use crate::pg::bgworker::{self, Worker};
use crate::pg::latch::{self, WaitEvent};
use crate::pg::{recovery, session, xact};
use crate::settings;
use crate::snowflake::node;
use idgen_core::worker::keeper::{Keeper, Next};
use idgen_core::worker::server::{ConfiguredPool, Interrupt};
use pgrx::bgworkers::BgWorkerStartTime;
use pgrx::prelude::*;
use std::time::Duration;

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
    session::reload_configuration();
    run();
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
            session::reload_configuration();
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
