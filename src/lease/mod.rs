//! Leases: locks with a deadline and a fencing token. This file is what other rooms use of them.
//!
//! The SQL functions that write raise 22004 for a NULL without a meaning, 22023 for an invalid name or another invalid
//! value, 25006 on a standby and in a read-only transaction, 42P01 without the tables of the extension, 55P03 if
//! `lock_timeout` ends a wait, and 58030 if the boot of the machine cannot be identified. They add the errors that their
//! comments say.

use crate::pg::process_utility;
use crate::shmem;

mod acquire;
mod attempt;
mod bound;
mod candidates;
mod define;
mod errors;
mod guard;
mod holder;
mod known_definition;
mod notify;
pub mod pending;
mod queue;
mod session_lock;
pub mod stats;
mod status;
mod store;
mod sweep;

pub use acquire::{acquire, checked_ttl_us};
pub use attempt::{AcquireRequest, SlotPreference};
pub use candidates::{Candidates, Unused};
pub use define::{at_definition, define, lock_definition, lock_slots, rename, require_definer};
pub use holder::{raise_stale, release, renew};
pub use queue::Queue;
pub use status::checks;
pub use store::definitions::{Holder, idle_holders};
pub use store::slots::{Defined, defined};
pub use store::terms::slot_of;
pub use store::{Granted, LEASE, LEASE_DEFINITION, LeaseState, NewHolder, lock_slot_waiting, next_token};

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&session_lock::ENDED, &stats::COUNTERS, &queue::CONDITIONS, &sweep::SWEEPS]);
    process_utility::follow_owners_of(process_utility::OwnedRows {
        exist: || LEASE.find().is_some(),
        reassign: store::definitions::reassign,
        drop: define::drop_owned,
    });
}
