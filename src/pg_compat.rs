//! What PostgreSQL's versions call differently, under one name each.

#[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
pub use pgrx::pg_sys::pqsignal as set_signal_handler;
#[cfg(feature = "pg18")]
pub use pgrx::pg_sys::pqsignal_be as set_signal_handler;
