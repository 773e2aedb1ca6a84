//! The rows of `idgen.worker_number`: which id times the last holder of each number was allowed.

use crate::owner::Table;
use crate::query::{Query, value};
use crate::{error, timestamp};
use idgen_core::worker::Interval;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::time::Duration;

/// One row for each worker id of a pool that was ever granted.
static WORKER_NUMBER: Table = Table::new(c"worker_number");

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
    FIND.look(&[pool.into(), number.into()], read).pop()
}

/// Of this holder. Whoever acquired the slot as a bare lease was allowed no times: what stands there was another's.
fn own(pool: &str, number: i32, token: i64) -> Interval {
    let last = find(pool, number).filter(|last| last.token == token);
    last.unwrap_or_else(|| error::worker::bare_lease(pool, number).raise()).interval
}

static SET: Query = Query::new(&WORKER_NUMBER, || {
    "INSERT INTO idgen.worker_number AS known (pool, number, token, not_before, not_after) VALUES ($1, $2, $3, $4, $5) \
     ON CONFLICT (pool, number) DO UPDATE \
     SET token = excluded.token, not_before = excluded.not_before, not_after = excluded.not_after"
        .to_owned()
});

fn set(pool: &str, number: i32, token: i64, interval: Interval) -> Interval {
    let (not_before, not_after) = (time(interval.not_before_us), time(interval.not_after_us));
    SET.write(&[pool.into(), number.into(), token.into(), not_before.into(), not_after.into()], |_| ());
    interval
}

/// For a new holder.
pub fn grant(pool: &str, number: i32, token: i64, ttl_us: i64) -> Interval {
    let used_until_us = find(pool, number).map(|last| last.interval.not_after_us);
    set(pool, number, token, Interval::grant(used_until_us, now_us(), ttl_us))
}

/// Who has to wait before his first id is told how long.
pub fn tell_of_a_wait(pool: &str, number: i32, interval: Interval) {
    let wait_us = interval.not_before_us.saturating_sub(now_us());
    if wait_us > 0 {
        let is_endless = timestamp::from_us(interval.not_before_us).is_none();
        let wait = (!is_endless).then(|| Duration::from_micros(wait_us as u64));
        error::worker::not_yet(pool, number, wait).notice();
    }
}

/// For the same holder.
pub fn renew(pool: &str, number: i32, token: i64, ttl_us: i64) -> Interval {
    set(pool, number, token, own(pool, number, token).renewed(now_us(), ttl_us))
}

/// The holder says the last time that he has used.
pub fn release(pool: &str, number: i32, token: i64, last_us: i64) {
    let held = own(pool, number, token);
    set(pool, number, token, Interval { not_after_us: held.used_until_us(Some(last_us)), ..held });
}

/// What a timestamp cannot say is as good as for ever.
pub fn time(us: i64) -> TimestampWithTimeZone {
    timestamp::from_us(us).unwrap_or_else(TimestampWithTimeZone::positive_infinity)
}

fn now_us() -> i64 {
    // SAFETY: reads the clock.
    timestamp::to_us(TimestampWithTimeZone::try_from(unsafe { pg_sys::GetCurrentTimestamp() }).expect("a time of now"))
}
