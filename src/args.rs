//! Checks of arguments that several capabilities share.

use crate::error;
use pgrx::datum::Interval;
use std::time::Duration;

/// Raises 22004 if the argument is NULL.
pub fn required<T>(value: Option<T>, name: &str) -> T {
    value.unwrap_or_else(|| error::null_argument(name).raise())
}

/// How many rows a set has: not NULL, not negative.
pub fn count(count: Option<i32>) -> u64 {
    let count = required(count, "count");
    u64::try_from(count).unwrap_or_else(|_| error::negative_count(count).raise())
}

/// A timeout: not NULL, not negative, and no longer than PostgreSQL can wait.
pub fn timeout(timeout: Option<Interval>) -> Duration {
    let longest = Duration::from_millis(i32::MAX as u64);
    let given = u64::try_from(required(timeout, "timeout").as_micros()).map(Duration::from_micros);
    given.ok().filter(|given| *given <= longest).unwrap_or_else(|| error::timeout_out_of_range().raise())
}
