//! PostgreSQL's timestamps and the core's milliseconds and microseconds since 1970.

use pgrx::datum::Interval;
use pgrx::prelude::*;

/// 2000-01-01, where PostgreSQL's timestamps begin, in milliseconds since 1970.
const POSTGRES_EPOCH_MS: i64 = 946_684_800_000;

/// The millisecond that holds an instant; the least and greatest number for the infinities.
pub fn to_ms(ts: TimestampWithTimeZone) -> i64 {
    match pg_sys::TimestampTz::from(ts) {
        infinite @ (i64::MIN | i64::MAX) => infinite,
        us => us.div_euclid(1000) + POSTGRES_EPOCH_MS,
    }
}

/// `None` for what a timestamp cannot say.
pub fn from_ms(ms: i64) -> Option<TimestampWithTimeZone> {
    let us = ms.checked_sub(POSTGRES_EPOCH_MS)?.checked_mul(1000)?;
    TimestampWithTimeZone::try_from(us).ok()
}

/// The microsecond since 1970; the least and greatest number for the infinities, and for what is too far away.
pub fn to_us(ts: TimestampWithTimeZone) -> i64 {
    match pg_sys::TimestampTz::from(ts) {
        infinite @ (i64::MIN | i64::MAX) => infinite,
        us => us.saturating_add(POSTGRES_EPOCH_MS * 1000),
    }
}

/// `None` for the infinities as `to_us` says them, and for what a timestamp cannot say.
pub fn from_us(us: i64) -> Option<TimestampWithTimeZone> {
    if matches!(us, i64::MIN | i64::MAX) {
        return None;
    }
    TimestampWithTimeZone::try_from(us.checked_sub(POSTGRES_EPOCH_MS * 1000)?).ok()
}

/// `infinity` for what is later than a timestamp can say.
pub fn from_ms_or_infinity(ms: i64) -> TimestampWithTimeZone {
    from_ms(ms).unwrap_or_else(TimestampWithTimeZone::positive_infinity)
}

/// `None` for what an interval cannot say.
pub fn interval_of_us(us: i64) -> Option<Interval> {
    Interval::new(0, 0, us).ok()
}
