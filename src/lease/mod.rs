//! Leases: locks with a deadline and a fencing token.
//!
//! The SQL functions that write raise 22004 for a NULL without a meaning, 22023 for an invalid name or another invalid
//! value, 25006 on a standby and in a read-only transaction, 42P01 without the extension, 55P03 if
//! `lock_timeout` ends a wait, and 58030 if the boot of the machine cannot be identified. They add the errors that their
//! comments say.

use crate::pg::shared_objects;
use crate::shmem;

mod at_once;
mod attempt;
mod define;
mod definitions;
mod errors;
mod holder;
mod locks;
mod pending;
pub mod stats;
mod store;
mod sweep;
mod terms;
mod unseen;

pub use stats::checks;

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&locks::ENDED, &stats::COUNTERS, &locks::CONDITIONS, &sweep::SWEEPS]);
    shared_objects::follow_owners_of(shared_objects::OwnedRows {
        exist: || store::LEASE.find().is_some(),
        reassign: definitions::reassign,
        drop: define::drop_owned,
    });
}
