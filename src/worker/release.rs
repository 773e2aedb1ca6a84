//! Releasing a worker id.

use super::store::rectangles::HeldWorkerId;
use crate::args;
use crate::lease;
use crate::pg::encoding::Text;
use crate::pg::{timestamp, xact};
use idgen_core::worker::Rectangle;
use pgrx::prelude::*;

/// Releases a worker id. True if it is free now. `last_time` is the last time in the caller's ids: the next holder
/// begins after it; NULL: after the end of the rectangle. `last_not_after` is the end that the caller was last told;
/// NULL compares nothing. Raises 22004 for a NULL pool or token, 42501 if the lease is another role's, 55000 for a
/// stale token or another end: another process with the token may have used later times.
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
    let (pool, token) = (args::name(pool.as_deref(), "pool"), args::required(token, "token"));
    xact::require_read_write(c"worker_release()");
    let slot = lease::slot_of(pool, token);
    let is_free = lease::release(pool, token);
    let last_time = last_time.filter(|_| is_free);
    if let Some(worker_id) = slot.filter(|_| last_time.is_some() || last_not_after.is_some()) {
        // The row of the lease is locked, so no renewal is running.
        let holder = HeldWorkerId { pool, worker_id, token };
        let held = holder.rectangle();
        if let Some(last_not_after) = last_not_after {
            holder.require_end(held, timestamp::to_us(last_not_after));
        }
        if let Some(last_time) = last_time {
            let not_after_us = held.used_until_us(Some(timestamp::to_us(last_time)));
            holder.save(Rectangle { not_after_us, ..held });
        }
    }
    is_free
}
