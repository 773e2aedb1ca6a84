//! Conversion between PostgreSQL's timestamps and milliseconds or microseconds since 1970.

use pgrx::datum::Interval;
use pgrx::prelude::*;

/// The epoch of PostgreSQL's timestamps, 2000-01-01, in milliseconds since 1970.
const POSTGRES_EPOCH_MS: i64 = 946_684_800_000;

/// Rounded down. `-infinity` and `infinity` are `i64::MIN` and `i64::MAX`.
pub fn to_ms(ts: TimestampWithTimeZone) -> i64 {
    match pg_sys::TimestampTz::from(ts) {
        infinite @ (i64::MIN | i64::MAX) => infinite,
        us => us.div_euclid(1000) + POSTGRES_EPOCH_MS,
    }
}

/// `None` if out of range for a timestamp.
pub fn from_ms(ms: i64) -> Option<TimestampWithTimeZone> {
    let us = ms.checked_sub(POSTGRES_EPOCH_MS)?.checked_mul(1000)?;
    TimestampWithTimeZone::try_from(us).ok()
}

/// `-infinity` and `infinity` are `i64::MIN` and `i64::MAX`, as is a time out of range for an `i64`.
pub fn to_us(ts: TimestampWithTimeZone) -> i64 {
    match pg_sys::TimestampTz::from(ts) {
        infinite @ (i64::MIN | i64::MAX) => infinite,
        us => us.saturating_add(POSTGRES_EPOCH_MS * 1000),
    }
}

/// `None` for the infinities of [`to_us`], and if out of range for a timestamp.
pub fn from_us(us: i64) -> Option<TimestampWithTimeZone> {
    if matches!(us, i64::MIN | i64::MAX) {
        return None;
    }
    TimestampWithTimeZone::try_from(us.checked_sub(POSTGRES_EPOCH_MS * 1000)?).ok()
}

/// `infinity` if out of range for a timestamp.
pub fn from_ms_or_infinity(ms: i64) -> TimestampWithTimeZone {
    from_ms(ms).unwrap_or_else(TimestampWithTimeZone::positive_infinity)
}

/// `infinity` for what is later than a timestamp can say.
pub fn from_us_or_infinity(us: i64) -> TimestampWithTimeZone {
    from_us(us).unwrap_or_else(TimestampWithTimeZone::positive_infinity)
}

/// Microseconds since 1970 on the wall clock, as `clock_timestamp()` reads it.
pub fn now_us() -> i64 {
    // SAFETY: reads the clock.
    since_1970_us(unsafe { pg_sys::GetCurrentTimestamp() })
}

/// Of a time as PostgreSQL stores it.
pub fn since_1970_us(us: pg_sys::TimestampTz) -> i64 {
    us + POSTGRES_EPOCH_MS * 1000
}

/// `None` for what an interval cannot say.
pub fn interval_of_us(us: i64) -> Option<Interval> {
    Interval::new(0, 0, us).ok()
}
