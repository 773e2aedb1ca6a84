//! Leases: locks with a deadline and a fencing token. This file is what other rooms use of them.
//!
//! The SQL functions that write raise 22004 for a NULL without a meaning, 22023 for an invalid name or another invalid
//! value, 25006 on a standby and in a read-only transaction, 42P01 without the tables of the extension, 55P03 if
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
pub mod pending;
pub mod stats;
mod store;
mod sweep;
mod terms;
mod unseen;

pub use attempt::{AcquireRequest, Candidates, SlotPreference, Unused};
pub use define::{at_definition, define, lock_definition, lock_slots, rename, require_definer};
pub use definitions::{Defined, Holder, defined, idle_holders};
pub use holder::{acquire, checked_ttl_us, raise_stale, release, renew};
pub use locks::Queue;
pub use stats::checks;
pub use store::{LEASE, LEASE_DEFINITION, LeaseState, lock_slot_waiting};
pub use terms::slot_of;
pub use terms::{HeldTerm, NewHolder, next_token};

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&locks::ENDED, &stats::COUNTERS, &locks::CONDITIONS, &sweep::SWEEPS]);
    shared_objects::follow_owners_of(shared_objects::OwnedRows {
        exist: || LEASE.find().is_some(),
        reassign: definitions::reassign,
        drop: define::drop_owned,
    });
}
