//! Leases: locks with a deadline and a fencing token. This file is what other rooms use of them.

use crate::pg::process_utility;
use crate::shmem;

mod acquire;
mod boot_clock;
mod define;
mod errors;
mod grant;
mod guard;
mod holder;
pub mod pending;
mod queue;
mod session_lock;
pub mod stats;
mod store;

pub use acquire::acquire;
pub use define::{define, lock_definition, lock_slots, require_definer};
pub use grant::{AcquireRequest, SlotPreference, checked_ttl_us};
pub use holder::{raise_stale, release, renew};
pub use queue::Queue;
pub use store::definitions::{Holder, idle_holders, rename};
pub use store::slots::{Granted, LEASE, LeaseState, NewHolder, lock_slot_waiting, next_token};
pub use store::terms::slot_of;

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&session_lock::ENDED, &stats::COUNTERS, &queue::CONDITIONS]);
    process_utility::follow_owners_of(process_utility::OwnedRows {
        exist: || LEASE.find().is_some(),
        reassign: store::definitions::reassign,
        drop: define::drop_owned,
    });
}
