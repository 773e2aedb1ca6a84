//! Differences between PostgreSQL's versions, under one name each.

#[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
pub use pgrx::pg_sys::pqsignal as set_signal_handler;
#[cfg(feature = "pg18")]
pub use pgrx::pg_sys::pqsignal_be as set_signal_handler;

/// True if this process holds the lock in this mode.
///
/// # Safety
/// The tag is initialised, and of a lock method that exists.
#[cfg(any(feature = "pg15", feature = "pg16"))]
pub unsafe fn lock_held_by_me(tag: *const pgrx::pg_sys::LOCKTAG, mode: pgrx::pg_sys::LOCKMODE) -> bool {
    // SAFETY: by the above.
    unsafe { pgrx::pg_sys::LockHeldByMe(tag, mode) }
}

/// True if this process holds the lock in this mode.
///
/// # Safety
/// The tag is initialised, and of a lock method that exists.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
pub unsafe fn lock_held_by_me(tag: *const pgrx::pg_sys::LOCKTAG, mode: pgrx::pg_sys::LOCKMODE) -> bool {
    // SAFETY: by the above.
    unsafe { pgrx::pg_sys::LockHeldByMe(tag, mode, false) }
}

/// The lock of PostgreSQL's positions of synchronous standbys. Its number is the same in versions 15 to 18.
pub fn sync_rep_lock() -> *mut pgrx::pg_sys::LWLock {
    const SYNC_REP_LOCK: usize = 32;
    // SAFETY: an array in shared memory with all individual locks of PostgreSQL.
    unsafe { &raw mut (*pgrx::pg_sys::MainLWLockArray.add(SYNC_REP_LOCK)).lock }
}
