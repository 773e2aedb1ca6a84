//! Worker ids from a pool. A worker id is a slot of a lease, with the rectangle of id times that its holder may use.
//!
//! On a coordinator, the SQL functions grant, renew, confirm and release worker ids. On every server, a background
//! worker, the keeper, leases the worker id of the server from the coordinator.

use crate::clock;
use crate::shmem;
use crate::snowflake::node;

mod acquire;
mod checks;
mod confirm;
mod correct;
mod errors;
mod history;
mod keeper;
mod lease_file;
mod move_pool;
mod preference;
mod release;
mod renew;
mod source;
mod state;
mod stats;
mod store;

pub use release::release;
pub use state::{SERVER_LEASE, reset_counters};
pub use stats::{WorkerStatus, status};
pub use store::rectangles::pool_that_grants;

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&state::STATE, &SERVER_LEASE]);
    shmem::at_startup(source::begin);
    node::lease_from(node::NodeSource { follow_settings: source::follow_settings, wait: source::wait_for_node });
    clock::on_lease_end_reached(source::wait_for_renewal);
    keeper::register();
}
