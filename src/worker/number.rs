//! The rows of `idgen.worker_number`: which id times the last holder of each number was allowed.

use super::errors;
use super::history::Known;
use crate::pg::owner::ExtensionTable;
use crate::pg::spi::{Query, value};
use crate::pg::timestamp;
use crate::settings;
use idgen_core::worker::{Bounds, Interval};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::time::Duration;

/// One row for each worker id of a pool that was ever granted.
pub static WORKER_NUMBER: ExtensionTable = ExtensionTable::new(c"idgen", c"worker_number");

/// What the last holder was allowed, and by which token he is known.
struct Last {
    interval: Interval,
    token: i64,
}

static FIND: Query = Query::new(&WORKER_NUMBER, || {
    "SELECT not_before, not_after, token FROM idgen.worker_number \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND number OPERATOR(pg_catalog.=) $2"
        .to_owned()
});

/// As it is now. Whoever asks has the number's lease, so nobody changes it meanwhile.
fn find(pool: &str, number: i32) -> Option<Last> {
    let read = |row: &SpiHeapTupleData| Last {
        interval: Interval {
            not_before_us: timestamp::to_us(value(row, 1)),
            not_after_us: timestamp::to_us(value(row, 2)),
        },
        token: value(row, 3),
    };
    FIND.read_latest(&[pool.into(), number.into()], read).pop()
}

/// Of this holder. Whoever acquired the slot as a bare lease was allowed no times: what stands there was another's.
fn own(pool: &str, number: i32, token: i64) -> Interval {
    let last = find(pool, number).filter(|last| last.token == token);
    last.unwrap_or_else(|| errors::bare_lease(pool, number).raise()).interval
}

static SET: Query = Query::new(&WORKER_NUMBER, || {
    "INSERT INTO idgen.worker_number AS known (pool, number, token, not_before, not_after) VALUES ($1, $2, $3, $4, $5) \
     ON CONFLICT (pool, number) DO UPDATE \
     SET token = excluded.token, not_before = excluded.not_before, not_after = excluded.not_after"
        .to_owned()
});

fn set(pool: &str, number: i32, token: i64, interval: Interval) -> Interval {
    let (not_before, not_after) = (time(interval.not_before_us), time(interval.not_after_us));
    SET.write_latest(&[pool.into(), number.into(), token.into(), not_before.into(), not_after.into()], |_| ());
    interval
}

/// What bounds the rectangles of a pool whose holders have at most this ttl.
pub fn bounds(ttl_us: i64, known: Known) -> Bounds {
    Bounds {
        now_us: now_us(),
        ttl_us,
        max_lead_us: settings::worker_max_lead_us(ttl_us),
        since_us: known.since_us,
        longest_forgotten_us: known.longest_us,
    }
}

/// Up to where id times of a worker id were allowed; `None` if it was never granted.
pub fn used_until_us(pool: &str, number: i32) -> Option<i64> {
    find(pool, number).map(|last| last.interval.not_after_us)
}

/// A worker id that has become the caller's.
pub struct Grant<'a> {
    pub pool: &'a str,
    pub number: i32,
    pub token: i64,
    /// The time that its ids and clock have come to.
    pub reached_us: i64,
    pub ttl_us: i64,
}

/// For a new holder.
pub fn grant(grant: &Grant, bounds: &Bounds) -> Interval {
    let used_until_us = used_until_us(grant.pool, grant.number);
    let granted = Interval::grant(used_until_us, grant.reached_us, grant.ttl_us, bounds);
    let too_far = |not_before_us| errors::begins_too_far(grant.pool, grant.number, not_before_us, bounds).raise();
    set(grant.pool, grant.number, grant.token, granted.unwrap_or_else(too_far))
}

/// Tells a caller that has to wait before its first id for how long.
pub fn tell_of_a_wait(grant: &Grant, interval: Interval) {
    let wait_us = interval.not_before_us.saturating_sub(grant.reached_us.max(now_us()));
    if wait_us > 0 {
        errors::not_yet(grant.pool, grant.number, Duration::from_micros(wait_us as u64)).notice();
    }
}

/// What a holder asks for.
pub struct Renewal<'a> {
    pub pool: &'a str,
    pub number: i32,
    pub token: i64,
    /// The end that the holder was told last; `None` to compare nothing.
    pub last_not_after_us: Option<i64>,
    pub reached_us: i64,
    pub ttl_us: i64,
}

/// For the same holder. The caller has locked the row of its lease, so no other renewal under its token is under way.
pub fn renew(renewal: &Renewal, bounds: &Bounds) -> Interval {
    let Renewal { pool, number, token, .. } = *renewal;
    if let Some(last_us) = renewal.last_not_after_us {
        require_end(pool, number, token, last_us);
    }
    set(pool, number, token, own(pool, number, token).renewed(renewal.reached_us, renewal.ttl_us, bounds))
}

/// An error if another process with the token has moved the end of the rectangle since the caller was told of it.
pub fn require_end(pool: &str, number: i32, token: i64, last_us: i64) {
    let not_after_us = own(pool, number, token).not_after_us;
    if not_after_us != last_us {
        errors::renewed_by_another(pool, number, last_us, not_after_us).raise();
    }
}

/// The holder says the last time that it has used.
pub fn release(pool: &str, number: i32, token: i64, last_us: i64) {
    let held = own(pool, number, token);
    set(pool, number, token, Interval { not_after_us: held.used_until_us(Some(last_us)), ..held });
}

/// What a timestamp cannot say is as good as for ever.
pub fn time(us: i64) -> TimestampWithTimeZone {
    timestamp::from_us(us).unwrap_or_else(TimestampWithTimeZone::positive_infinity)
}

pub fn now_us() -> i64 {
    // SAFETY: reads the clock.
    timestamp::to_us(TimestampWithTimeZone::try_from(unsafe { pg_sys::GetCurrentTimestamp() }).expect("a time of now"))
}
