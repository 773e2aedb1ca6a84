//! Worker ids from a pool: the SQL functions of those who make ids themselves, and the keeper, which has this server's own
//! worker id from another server's pool. A worker id is a slot of a lease, and with it goes the interval of id time that its
//! holder may use.

use crate::encoding::Text;
use crate::lease::{own, required_token, term};
use crate::lock::checked_name;
use crate::{error, timestamp};
use pgrx::prelude::*;
use std::ffi::CStr;

pub mod acquire;
pub mod confirm;
mod coordinator;
pub mod correct;
mod handle;
pub mod history;
pub mod keeper;
mod libpq;
pub mod moving;
mod number;
mod place;
mod preference;
pub mod renew;
pub mod state;
pub mod stats;

/// Gives a worker id back. With the last time in its ids, the next holder can begin right after it.
#[pg_extern(
    sql = "CREATE FUNCTION worker_release(pool text, token bigint, last_time timestamptz DEFAULT NULL) RETURNS boolean \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn worker_release(pool: Option<Text>, token: Option<i64>, last_time: Option<TimestampWithTimeZone>) -> bool {
    let (pool, token) = (checked_name(pool.as_deref()), required_token(token));
    term::refuse_where_nothing_can_be_written(c"worker_release()");
    let slot = own::slot_of(pool, token);
    let is_free = term::release(pool, token);
    if let (true, Some(slot), Some(last_time)) = (is_free, slot, last_time) {
        number::release(pool, slot, token, timestamp::to_us(last_time));
    }
    is_free
}

/// A rectangle must not be told before it is committed: the caller would use id times that a rollback gives to the next holder.
/// So it is refused in a block, and in a pipeline behind another statement, and committed at once before a later one.
fn refuse_in_block(function: &CStr) {
    // SAFETY: reads and writes this process's own state. PostgreSQL's own commands that must be alone in their transaction
    // set the flag likewise.
    unsafe {
        let is_behind_another = pg_sys::MyXactFlags & pg_sys::XACT_FLAGS_PIPELINING as i32 != 0;
        if pg_sys::IsTransactionBlock() || pg_sys::IsSubTransaction() || is_behind_another {
            error::worker::in_transaction_block(function).raise();
        }
        pg_sys::MyXactFlags |= pg_sys::XACT_FLAGS_NEEDIMMEDIATECOMMIT as i32;
    }
}

/// The time that a caller's ids and clock have come to, in microseconds since 1970.
fn finite_us(name: &str, time: TimestampWithTimeZone) -> i64 {
    match timestamp::to_us(time) {
        i64::MIN | i64::MAX => error::worker::not_finite(name).raise(),
        us => us,
    }
}
