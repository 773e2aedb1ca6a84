//! Leases: locks with a deadline and a fencing token.
//!
//! The SQL functions that write raise 22004 for a NULL without a meaning, 22023 for an invalid name or another invalid
//! value, 25006 on a standby and in a read-only transaction, 42P01 without the extension, 55P03 if
//! `lock_timeout` ends a wait, and 58030 if the boot of the machine cannot be identified. They add the errors that their
//! comments say.

use crate::pg::shared_objects;
use crate::shmem;

mod acquire;
mod define;
mod definitions;
mod errors;
mod holder;
mod locks;
mod many;
mod pending;
mod rows;
pub mod status;
mod sweep;
mod terms;

pub use status::checks;

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&terms::SLOTS, &locks::ENDED, &status::COUNTERS, &locks::CONDITIONS, &sweep::SWEEPS]);
    shared_objects::follow_owners_of(shared_objects::OwnedRows {
        exist: || rows::LEASE.find().is_some(),
        reassign: definitions::reassign,
        drop: define::drop_owned,
    });
}
