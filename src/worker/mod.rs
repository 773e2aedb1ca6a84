//! Worker ids from a pool: the SQL functions of those who make ids themselves, and the keeper, which has this server's own
//! worker id from another server's pool. A worker id is a slot of a lease, and with it goes the interval of id time that its
//! holder may use.

use crate::{error, timestamp};
use pgrx::prelude::*;
use std::ffi::CStr;

pub mod acquire;
pub mod confirm;
mod coordinator;
mod handle;
pub mod keeper;
mod leasing;
mod libpq;
pub mod memory;
pub mod local;
mod number;
mod place;
mod preference;
pub mod release;
pub mod renew;
pub mod state;
pub mod stats;

/// Acquires a number of a pool, the one that the owner had last if it is free and its times are over. Without a ttl it is
/// bound to the session. An error when all are taken: 53400.
#[pg_extern(sql = "CREATE FUNCTION worker_acquire(pool text, owner text DEFAULT NULL, ttl interval DEFAULT NULL, \
           OUT worker_id int, OUT token bigint, OUT not_before timestamptz, OUT not_after timestamptz, \
           OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn worker_acquire(
    pool: Option<Text>,
    owner: Option<Text>,
    ttl: Option<datum::Interval>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Record {
    let pool = checked_name(pool.as_deref());
    let ttl_us = ttl_us(ttl);
    term::refuse_where_nothing_can_be_written(c"worker_acquire()");
    let defined = row::look(pool);
    if defined.definer.is_none() {
        error::worker::unknown_pool(pool).raise();
    }
    let wish = Wish {
        name: pool,
        ttl_us,
        owner: owner.as_deref(),
        data: None,
        bind_session: ttl_us.is_none(),
        is_for_number: true,
        has_one_snapshot: transaction::has_one_snapshot(),
    };
    let Some(granted) = acquire::slot(&wish, Limit::by_lock_timeout()) else {
        error::worker::exhausted(pool, defined.definition.slots, &names::idle_holders(pool)).raise()
    };
    term::warn_in_block(pool);
    let ttl_us = ttl_us.unwrap_or(defined.definition.ttl_us);
    let interval = number::grant(pool, granted.slot, granted.token, ttl_us);
    number::tell_of_a_wait(pool, granted.slot, interval);
    let columns = [
        granted.slot.into_datum(),
        granted.token.into_datum(),
        number::time(interval.not_before_us).into_datum(),
        number::time(interval.not_after_us).into_datum(),
        term::expires_at(granted.session_key, granted.ends_us).into_datum(),
    ];
    // SAFETY: the call's own fcinfo; the types are those of the OUT parameters.
    unsafe { record::form(fcinfo, columns) }
}

/// Makes a number last, and moves on the end of the id time that it may be used for.
#[pg_extern(
    sql = "CREATE FUNCTION worker_renew(pool text, token bigint, ttl interval DEFAULT NULL, OUT not_after timestamptz, \
           OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn worker_renew(
    pool: Option<Text>,
    token: Option<i64>,
    ttl: Option<datum::Interval>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Record {
    let (pool, token) = (checked_name(pool.as_deref()), required_token(token));
    let ttl_us = ttl_us(ttl);
    term::refuse_where_nothing_can_be_written(c"worker_renew()");
    let renewed = term::renew(pool, token, ttl_us);
    let interval = number::renew(pool, renewed.slot, token, renewed.ttl_us);
    let expires_at = term::expires_at(renewed.session_key, renewed.ends_us);
    // SAFETY: as above.
    unsafe { record::form(fcinfo, [number::time(interval.not_after_us).into_datum(), expires_at.into_datum()]) }
}

/// Gives a number back. With the last time in its ids, the next holder can begin right after it.
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
