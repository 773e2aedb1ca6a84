//! What PostgreSQL's versions have or call differently, under one name each.

#[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
pub use pgrx::pg_sys::pqsignal as set_signal_handler;
#[cfg(feature = "pg18")]
pub use pgrx::pg_sys::pqsignal_be as set_signal_handler;

/// What `pg_stat_activity` calls the wait for a refill. Servers before 17 know one event for all extensions.
#[cfg(any(feature = "pg15", feature = "pg16"))]
pub fn wait_for_refill() -> u32 {
    pgrx::pg_sys::PG_WAIT_EXTENSION
}

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
pub fn wait_for_refill() -> u32 {
    use std::sync::OnceLock;
    static EVENT: OnceLock<u32> = OnceLock::new();
    // SAFETY: a C string literal. PostgreSQL gives the same number for the same name in every process.
    *EVENT.get_or_init(|| unsafe { pgrx::pg_sys::WaitEventExtensionNew(c"IdgenSegmentRefill".as_ptr()) })
}
