//! Checks that several SQL functions of worker ids share.

use super::errors;
use crate::pg::{timestamp, xact};
use pgrx::prelude::*;
use std::ffi::CStr;

/// For functions that grant id times. A rectangle must be committed before the caller learns of it: a rollback would
/// give its id times to the next holder. So this raises 25006 where nothing can be written. It raises 25001 in a
/// transaction block, and in a pipeline behind another statement. In a pipeline it also commits before the next
/// statement.
pub fn require_own_transaction(function: &CStr) {
    xact::require_read_write(function);
    // SAFETY: reads and writes this process's own state. PostgreSQL's own commands that must be alone in their
    // transaction set the same flag.
    unsafe {
        let is_behind_another = pg_sys::MyXactFlags & pg_sys::XACT_FLAGS_PIPELINING as i32 != 0;
        if pg_sys::IsTransactionBlock() || pg_sys::IsSubTransaction() || is_behind_another {
            errors::in_transaction_block(function).raise();
        }
        pg_sys::MyXactFlags |= pg_sys::XACT_FLAGS_NEEDIMMEDIATECOMMIT as i32;
    }
}

/// Microseconds since 1970. Raises 22008 if the time is infinite.
pub fn finite_us(name: &str, time: TimestampWithTimeZone) -> i64 {
    match timestamp::to_us(time) {
        i64::MIN | i64::MAX => errors::not_finite(name).raise(),
        us => us,
    }
}
