//! Numbers that nobody can guess.

use crate::error;
use pgrx::prelude::*;

/// As good as unique.
pub fn number() -> i64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the buffer is of the length said.
    if !unsafe { pg_sys::pg_strong_random(bytes.as_mut_ptr().cast(), bytes.len()) } {
        error::no_random().raise();
    }
    i64::from_ne_bytes(bytes)
}
