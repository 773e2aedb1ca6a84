//! Giving a worker id back.

use super::number;
use crate::lease::{own, required_token, term};
use crate::lock::checked_name;
use crate::pg::encoding::Text;
use crate::pg::timestamp;
use pgrx::prelude::*;

/// Gives a worker id back. With the last time in its ids, the next holder can begin right after it. That time counts only if
/// the end of the rectangle is still the one that the caller was told last, where the caller says it: another process with the
/// same token may have used later times.
#[pg_extern(sql = "CREATE FUNCTION worker_release(pool text, token bigint, last_time timestamptz DEFAULT NULL, \
           last_not_after timestamptz DEFAULT NULL) RETURNS boolean \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';")]
fn worker_release_compared(
    pool: Option<Text>,
    token: Option<i64>,
    last_time: Option<TimestampWithTimeZone>,
    last_not_after: Option<TimestampWithTimeZone>,
) -> bool {
    release(pool, token, last_time, last_not_after)
}

pub fn release(
    pool: Option<Text>,
    token: Option<i64>,
    last_time: Option<TimestampWithTimeZone>,
    last_not_after: Option<TimestampWithTimeZone>,
) -> bool {
    let (pool, token) = (checked_name(pool.as_deref()), required_token(token));
    term::refuse_where_nothing_can_be_written(c"worker_release()");
    let slot = own::slot_of(pool, token);
    let is_free = term::release(pool, token);
    if let Some(slot) = slot {
        // The row of the lease is locked: no renewal is under way.
        if let Some(last_not_after) = last_not_after {
            number::require_end(pool, slot, token, timestamp::to_us(last_not_after));
        }
        if let (true, Some(last_time)) = (is_free, last_time) {
            number::release(pool, slot, token, timestamp::to_us(last_time));
        }
    }
    is_free
}
