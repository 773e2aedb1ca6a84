//! Checks of arguments, shared by the capabilities.

use crate::pg::datum::stored_len;
use crate::pg::ereport::Report;
use idgen_core::lock::{MAX_NAME_BYTES, is_valid_name};
use pgrx::datum::Interval;
use pgrx::prelude::*;
use std::time::Duration;

fn invalid(message: impl Into<String>) -> Report {
    Report::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, message)
}

/// Raises 22004 if the argument is NULL.
pub fn required<T>(value: Option<T>, name: &str) -> T {
    let code = PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED;
    value.unwrap_or_else(|| Report::new(code, format!("{name} must not be null")).raise())
}

/// A name of a lock or a lease, in the argument called so: not NULL, 1 to 255 bytes.
pub fn name<'a>(name: Option<&'a str>, argument: &str) -> &'a str {
    let name = required(name, argument);
    if !is_valid_name(name) {
        raise_name_length(name, name.len());
    }
    name
}

/// As [`name`], for one that a table stores under a constraint on its bytes there.
pub fn stored_name<'a>(text: Option<&'a str>, argument: &str) -> &'a str {
    let name = name(text, argument);
    let bytes = stored_len(name);
    if bytes > MAX_NAME_BYTES {
        raise_name_length(name, bytes);
    }
    name
}

fn raise_name_length(name: &str, bytes: usize) -> ! {
    invalid(format!("invalid name \"{name}\""))
        .detail(format!("A name has 1 to {MAX_NAME_BYTES} bytes, and this has {bytes}."))
        .raise()
}

/// How many rows a set has: not NULL, not negative.
pub fn count(count: Option<i32>) -> u64 {
    let count = required(count, "count");
    u64::try_from(count).unwrap_or_else(|_| invalid(format!("count must not be negative: \"{count}\"")).raise())
}

/// Raises 22004 for NULL, 22023 if negative or longer than PostgreSQL can wait.
pub fn timeout(timeout: Option<Interval>) -> Duration {
    let longest = Duration::from_millis(i32::MAX as u64);
    let given = u64::try_from(required(timeout, "timeout").as_micros()).map(Duration::from_micros);
    given
        .ok()
        .filter(|given| *given <= longest)
        .unwrap_or_else(|| invalid("timeout is out of range").detail("It must be 0 to 24 days.").raise())
}
