//! Differences between versions of PostgreSQL, each under one name.

#[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
pub use pgrx::pg_sys::pqsignal as set_signal_handler;
#[cfg(feature = "pg18")]
pub use pgrx::pg_sys::pqsignal_be as set_signal_handler;

/// True if this process holds the lock in this mode.
///
/// # Safety
/// The tag is initialised and names an existing lock method.
#[cfg(any(feature = "pg15", feature = "pg16"))]
pub unsafe fn lock_held_by_me(tag: *const pgrx::pg_sys::LOCKTAG, mode: pgrx::pg_sys::LOCKMODE) -> bool {
    // SAFETY: by the above.
    unsafe { pgrx::pg_sys::LockHeldByMe(tag, mode) }
}

/// True if this process holds the lock in this mode.
///
/// # Safety
/// The tag is initialised and names an existing lock method.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
pub unsafe fn lock_held_by_me(tag: *const pgrx::pg_sys::LOCKTAG, mode: pgrx::pg_sys::LOCKMODE) -> bool {
    // SAFETY: by the above.
    unsafe { pgrx::pg_sys::LockHeldByMe(tag, mode, false) }
}

/// PostgreSQL's `SyncRepLock`. Its index is the same in versions 15 to 18.
pub fn sync_rep_lock() -> *mut pgrx::pg_sys::LWLock {
    const SYNC_REP_LOCK: usize = 32;
    // SAFETY: the array in shared memory has all individual LWLocks of PostgreSQL.
    unsafe { &raw mut (*pgrx::pg_sys::MainLWLockArray.add(SYNC_REP_LOCK)).lock }
}
