//! Checks that several SQL functions of worker ids share.

use super::errors;
use crate::pg::{datum, xact};
use pgrx::prelude::*;
use std::ffi::CStr;

/// For functions that grant id times. A rectangle must be committed before the caller learns of it: a rollback would
/// give its id times to the next holder. So this raises 25006 where nothing can be written, and 25001 if the call is not of
/// a statement that is the whole of its transaction.
///
/// In SERIALIZABLE, grants of different pools would fail because of each other: their rows share pages of indexes.
///
/// # Safety
/// `fcinfo` is that of the running call.
pub unsafe fn require_own_transaction(function: &CStr, fcinfo: pg_sys::FunctionCallInfo) {
    xact::require_read_write(function);
    // SAFETY: by the above.
    if !unsafe { xact::is_own_statement(fcinfo) } {
        errors::not_own_statement(function).raise();
    }
    xact::commit_with_statement();
    xact::leave_serializable();
}

/// Microseconds since 1970. Raises 22008 if the time is infinite.
pub fn finite_us(name: &str, time: TimestampWithTimeZone) -> i64 {
    match datum::to_us(time) {
        i64::MIN | i64::MAX => errors::not_finite(name).raise(),
        us => us,
    }
}
