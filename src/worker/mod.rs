//! Worker ids from a pool: the SQL functions of those who make ids themselves, and the keeper, which has this server's own
//! worker id from another server's pool. A worker id is a slot of a lease, and with it goes the interval of id time that its
//! holder may use.

use crate::clock;
use crate::pg::timestamp;
use crate::shmem;
use crate::snowflake::node;
use pgrx::prelude::*;
use std::ffi::CStr;

pub mod acquire;
pub mod confirm;
mod coordinator;
pub mod correct;
mod errors;
mod handle;
pub mod history;
pub mod keeper;
mod leasing;
pub mod local;
pub mod memory;
pub mod moving;
mod number;
pub mod place;
mod preference;
pub mod release;
pub mod renew;
pub mod state;
pub mod stats;

/// A rectangle must not be told before it is committed: the caller would use id times that a rollback gives to the next holder.
/// So it is refused in a block, and in a pipeline behind another statement, and committed at once before a later one.
fn refuse_in_block(function: &CStr) {
    // SAFETY: reads and writes this process's own state. PostgreSQL's own commands that must be alone in their transaction
    // set the flag likewise.
    unsafe {
        let is_behind_another = pg_sys::MyXactFlags & pg_sys::XACT_FLAGS_PIPELINING as i32 != 0;
        if pg_sys::IsTransactionBlock() || pg_sys::IsSubTransaction() || is_behind_another {
            errors::in_transaction_block(function).raise();
        }
        pg_sys::MyXactFlags |= pg_sys::XACT_FLAGS_NEEDIMMEDIATECOMMIT as i32;
    }
}

/// The time that a caller's ids and clock have come to, in microseconds since 1970.
fn finite_us(name: &str, time: TimestampWithTimeZone) -> i64 {
    match timestamp::to_us(time) {
        i64::MIN | i64::MAX => errors::not_finite(name).raise(),
        us => us,
    }
}

/// While the postmaster preloads libraries.
pub fn init() {
    shmem::register(&[&state::STATE, &state::LEASE]);
    shmem::at_startup(state::begin);
    node::lease_from(node::Source { follow_settings: state::follow_settings, wait: state::wait_for_node });
    clock::on_end_reached(state::wait_for_renewal);
    keeper::register();
}
