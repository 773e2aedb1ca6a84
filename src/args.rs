//! Checks of arguments, shared by the capabilities.

use crate::pg::datum::stored_len;
use crate::pg::ereport::errors;
use idgen_core::lock::{MAX_NAME_BYTES, is_valid_name};
use pgrx::datum::Interval;
use std::time::Duration;

errors! {
    fn null(name: &str) {
        ERRCODE_NULL_VALUE_NOT_ALLOWED: "{name} must not be null";
    }

    fn name_length(name: &str, bytes: usize) {
        ERRCODE_INVALID_PARAMETER_VALUE: "invalid name \"{name}\"";
        detail: "A name has 1 to {MAX_NAME_BYTES} bytes, and this has {bytes}.";
    }

    fn negative_count(count: i32) {
        ERRCODE_INVALID_PARAMETER_VALUE: "count must not be negative: \"{count}\"";
    }

    fn timeout_out_of_range() {
        ERRCODE_INVALID_PARAMETER_VALUE: "timeout is out of range";
        detail: "It must be 0 to 24 days.";
    }
}

/// Raises 22004 if the argument is NULL.
pub fn required<T>(value: Option<T>, name: &str) -> T {
    value.unwrap_or_else(|| null(name).raise())
}

/// A name of a lock or a lease, in the argument called so: not NULL, 1 to 255 bytes.
pub fn name<'a>(name: Option<&'a str>, argument: &str) -> &'a str {
    let name = required(name, argument);
    if !is_valid_name(name) {
        name_length(name, name.len()).raise();
    }
    name
}

/// As [`name`], for one that a table stores under a constraint on its bytes there.
pub fn stored_name<'a>(text: Option<&'a str>, argument: &str) -> &'a str {
    let name = name(text, argument);
    let bytes = stored_len(name);
    if bytes > MAX_NAME_BYTES {
        name_length(name, bytes).raise();
    }
    name
}

/// How many rows a set has: not NULL, not negative.
pub fn count(count: Option<i32>) -> u64 {
    let count = required(count, "count");
    u64::try_from(count).unwrap_or_else(|_| negative_count(count).raise())
}

/// Raises 22004 for NULL, 22023 if negative or longer than PostgreSQL can wait.
pub fn timeout(timeout: Option<Interval>) -> Duration {
    let longest = Duration::from_millis(i32::MAX as u64);
    let given = u64::try_from(required(timeout, "timeout").as_micros()).map(Duration::from_micros);
    given.ok().filter(|given| *given <= longest).unwrap_or_else(|| timeout_out_of_range().raise())
}
