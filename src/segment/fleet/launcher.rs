//! The supply launcher: a background worker that starts the supply worker of each database once, after the server has
//! started or was promoted. So an attached server reports to its coordinator, although no session draws.

use crate::pg::bgworker::{self, Worker};
use crate::pg::latch::{self, WaitEvent};
use crate::pg::shared_objects;
use crate::segment::demand;
use crate::settings;
use crate::shmem;
use idgen_core::segment::refillers::Duty;
use pgrx::prelude::*;
use std::time::{Duration, Instant};

const LAUNCHER: Worker = Worker { name: "idgen supply launcher", function: "idgen_supply_launcher", connects: true };

/// How long the launcher waits for a slot. Sessions may need the one that it has itself for another worker.
const PATIENCE: Duration = Duration::from_secs(5);

const RETRY: Duration = Duration::from_millis(100);

static LAUNCHER_WAIT: WaitEvent = WaitEvent::new(c"IdgenSupplyLauncher");

/// Starts the launcher if there is a coordinator. Without a slot for it, servers report once they draw.
pub fn start() {
    if !settings::coordinator().is_empty() && !LAUNCHER.start_for_database(0) {
        log!("could not start the supply launcher: raise max_worker_processes");
    }
}

/// The main function of the launcher. A worker whose database has no attached segment ends at once, and the next one has
/// its slot.
#[pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn idgen_supply_launcher(_argument: pg_sys::Datum) {
    bgworker::handle_signals(None, None);
    if !shmem::is_preloaded() {
        return;
    }
    bgworker::connect(0, false);
    if !shared_objects::databases_in_use().into_iter().all(start_worker) {
        log!("could not start all supply workers: raise max_worker_processes");
    }
}

/// False if no slot became free in time.
fn start_worker(database: u32) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while demand::summon_for(Duty { database, is_attached: true }).is_err() {
        if Instant::now() >= deadline {
            return false;
        }
        latch::wait(Some(RETRY), &LAUNCHER_WAIT);
    }
    true
}
