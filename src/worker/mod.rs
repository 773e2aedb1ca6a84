//! Worker ids from a pool. A worker id is a slot of a lease, with the rectangle of id times that its holder may use.
//!
//! On a coordinator, the SQL functions grant, renew, confirm and release worker ids. On every server, a background
//! worker, the keeper, leases the worker id of the server from the coordinator.
//!
//! The SQL functions that write raise what those of leases raise, 55000 for a token that is older than an interruption of
//! the coordinator's history or in a copy of the coordinator, and 58030 if the data directory cannot be read. They add the
//! errors that their comments say.

use crate::clock;
use crate::lease;
use crate::settings;
use crate::shmem;
use crate::snowflake::node;

mod acquire;
mod checks;
mod confirm;
mod errors;
mod history;
mod keeper;
mod lease_file;
mod manage;
mod preference;
mod renew;
mod server;
mod state;
mod stats;
mod status;
mod store;

pub use state::{SERVER_LEASE, reset_counters};
pub use stats::status;
pub use status::{TABLES, checks, current_node};

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&state::STATE, &SERVER_LEASE]);
    shmem::at_startup(server::begin);
    node::lease_from(node::NodeSource { follow_settings: server::follow_settings, wait: server::wait_for_node });
    clock::on_lease_end_reached(server::wait_for_renewal);
    settings::on_worker_pool(server::note_pool);
    lease::at_definition(history::begin);
    keeper::register();
}
