//! Checks of arguments, shared by the capabilities.

use crate::error;
use idgen_core::lock::is_valid_name;
use pgrx::datum::Interval;
use std::time::Duration;

/// Raises 22004 if the argument is NULL.
pub fn required<T>(value: Option<T>, name: &str) -> T {
    value.unwrap_or_else(|| error::null_argument(name).raise())
}

/// A name of a lock or a lease, in the argument called so: not NULL, 1 to 255 bytes.
pub fn name<'a>(name: Option<&'a str>, argument: &str) -> &'a str {
    let name = required(name, argument);
    if !is_valid_name(name) {
        error::name_length(name).raise();
    }
    name
}

/// How many rows a set has: not NULL, not negative.
pub fn count(count: Option<i32>) -> u64 {
    let count = required(count, "count");
    u64::try_from(count).unwrap_or_else(|_| error::negative_count(count).raise())
}

/// Raises 22004 for NULL, 22023 if negative or longer than PostgreSQL can wait.
pub fn timeout(timeout: Option<Interval>) -> Duration {
    let longest = Duration::from_millis(i32::MAX as u64);
    let given = u64::try_from(required(timeout, "timeout").as_micros()).map(Duration::from_micros);
    given.ok().filter(|given| *given <= longest).unwrap_or_else(|| error::timeout_out_of_range().raise())
}
