//! The error of a connection or a query, and the strings of libpq.

use std::ffi::{CStr, CString, c_char};

/// Why there is no connection, or no result.
#[derive(Debug)]
pub struct Error {
    /// `None` unless the other server reported the error.
    pub sqlstate: Option<String>,
    pub message: String,
}

impl Error {
    pub fn new(message: impl Into<String>) -> Self {
        Self { sqlstate: None, message: message.into() }
    }
}

/// A copy of the string; empty for null.
///
/// # Safety
/// Null or a C string.
pub unsafe fn string(text: *const c_char) -> String {
    // SAFETY: by the above.
    if text.is_null() { String::new() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned() }
}

/// Cuts the text at a NUL, as PostgreSQL does.
pub fn c_string(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

pub fn on_one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}
