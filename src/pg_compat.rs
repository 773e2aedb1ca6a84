//! What PostgreSQL's versions have or call differently, under one name each.

use std::ffi::CStr;
use std::sync::OnceLock;

#[cfg(any(feature = "pg15", feature = "pg16", feature = "pg17"))]
pub use pgrx::pg_sys::pqsignal as set_signal_handler;
#[cfg(feature = "pg18")]
pub use pgrx::pg_sys::pqsignal_be as set_signal_handler;

/// Does this process hold a lock in this mode?
///
/// # Safety
/// The tag is whole, and of a lock method that exists.
#[cfg(any(feature = "pg15", feature = "pg16"))]
pub unsafe fn lock_held_by_me(tag: *const pgrx::pg_sys::LOCKTAG, mode: pgrx::pg_sys::LOCKMODE) -> bool {
    // SAFETY: by the above.
    unsafe { pgrx::pg_sys::LockHeldByMe(tag, mode) }
}

/// Does this process hold a lock in this mode?
///
/// # Safety
/// The tag is whole, and of a lock method that exists.
#[cfg(not(any(feature = "pg15", feature = "pg16")))]
pub unsafe fn lock_held_by_me(tag: *const pgrx::pg_sys::LOCKTAG, mode: pgrx::pg_sys::LOCKMODE) -> bool {
    // SAFETY: by the above.
    unsafe { pgrx::pg_sys::LockHeldByMe(tag, mode, false) }
}

/// What `pg_stat_activity` calls the wait for a refill.
pub fn wait_for_refill() -> u32 {
    static EVENT: OnceLock<u32> = OnceLock::new();
    *EVENT.get_or_init(|| wait_event(c"IdgenSegmentRefill"))
}

/// What `pg_stat_activity` calls the wait at the head of a lease's queue.
pub fn wait_for_lease() -> u32 {
    static EVENT: OnceLock<u32> = OnceLock::new();
    *EVENT.get_or_init(|| wait_event(c"IdgenLease"))
}

/// Servers before 17 know one event for all extensions.
#[cfg(any(feature = "pg15", feature = "pg16"))]
fn wait_event(_name: &'static CStr) -> u32 {
    pgrx::pg_sys::PG_WAIT_EXTENSION
}

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
fn wait_event(name: &'static CStr) -> u32 {
    // SAFETY: a C string. PostgreSQL gives the same number for the same name in every process.
    unsafe { pgrx::pg_sys::WaitEventExtensionNew(name.as_ptr()) }
}

/// What `pg_stat_activity` calls the wait for synchronous standbys in `worker_confirm()`.
pub fn wait_for_standbys() -> u32 {
    static EVENT: OnceLock<u32> = OnceLock::new();
    *EVENT.get_or_init(|| wait_event(c"IdgenWorkerConfirm"))
}

/// The lock of what PostgreSQL knows of synchronous standbys. Its number is the same in versions 15 to 18.
pub fn sync_rep_lock() -> *mut pgrx::pg_sys::LWLock {
    const SYNC_REP_LOCK: usize = 32;
    // SAFETY: an array in shared memory with all of PostgreSQL's own locks.
    unsafe { &raw mut (*pgrx::pg_sys::MainLWLockArray.add(SYNC_REP_LOCK)).lock }
}
