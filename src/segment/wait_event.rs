//! What `pg_stat_activity` calls the wait for a refill.

use pgrx::prelude::*;

/// The event's number. Servers before 17 know one event for all extensions.
#[cfg(any(feature = "pg15", feature = "pg16"))]
pub fn refill() -> u32 {
    pg_sys::PG_WAIT_EXTENSION
}

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
pub fn refill() -> u32 {
    use std::sync::OnceLock;
    static EVENT: OnceLock<u32> = OnceLock::new();
    // SAFETY: a C string literal. PostgreSQL gives the same number for the same name in every process.
    *EVENT.get_or_init(|| unsafe { pg_sys::WaitEventExtensionNew(c"IdgenSegmentRefill".as_ptr()) })
}
