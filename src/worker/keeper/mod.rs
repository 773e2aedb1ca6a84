//! The keeper: the background worker that leases this server's worker id from the coordinator, and renews the lease
//! long before it ends. It runs from the start of the server, and sleeps while no pool is configured. It stores its
//! lease in shared memory. Sessions wait for the keeper only while there is no worker id yet.
//!
//! A keeper that starts again continues the lease in shared memory. A server that starts again, also after a crash of a
//! backend, ends its last lease, which the file `idgen_worker` names, and acquires another one.

use super::state::STATE;
use crate::pg::bgworker::Worker;
use crate::pg::{session, xact};
use pgrx::bgworkers::BgWorkerStartTime;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::time::Duration;

mod attempt;
mod give_back;
mod requests;
mod run;

/// The name of its sessions at the coordinator.
const APPLICATION: &CStr = c"idgen keeper";

const WORKER: Worker = Worker { name: "idgen keeper", function: "idgen_keeper", connects: false };

/// While the postmaster preloads libraries. Always, because a reload can configure a pool.
pub fn register() {
    // SAFETY: a flag that is set earlier. A server that is being upgraded issues no ids.
    if !unsafe { pg_sys::IsBinaryUpgrade } {
        WORKER.register(BgWorkerStartTime::RecoveryFinished, Duration::from_secs(1));
    }
}

/// The main function of the keeper.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_keeper(_arg: pg_sys::Datum) {
    run::install_signal_handlers();
    let Some(state) = STATE.get() else {
        return;
    };
    state.keeper.enter();
    xact::before_exit(|_| STATE.require().keeper.leave());
    // A reload before the handler was installed would be missed.
    session::reload_configuration();
    run::Keeper::new().run();
}
