//! NOTIFY.

use super::datum;
use pgrx::pg_sys::ffi::pg_guard_ffi_boundary;
use std::ffi::{CStr, c_char};

unsafe extern "C-unwind" {
    /// In no header that pgrx binds.
    fn Async_Notify(channel: *const c_char, payload: *const c_char);
}

/// Sends a notification when the transaction commits, unless the savepoint is rolled back. PostgreSQL omits it if the
/// transaction has sent an equal one.
pub fn notify(channel: &CStr, payload: &str) {
    let payload = datum::c_string(payload);
    // SAFETY: C strings, which PostgreSQL copies. In a transaction.
    unsafe { pg_guard_ffi_boundary(|| Async_Notify(channel.as_ptr(), payload.as_ptr())) };
}
