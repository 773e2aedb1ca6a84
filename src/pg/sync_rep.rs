//! Synchronous standbys: waiting for what is committed, without a commit.
//!
//! A commit that is canceled while it waits for a standby succeeds, with a warning that the caller may never see. This
//! wait fails instead.

use super::latch;
use super::session;
use super::wait_event::WaitEvent;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::time::Duration;

/// Waits until the synchronous standbys have flushed all WAL that this server has flushed. Returns at once if there are
/// no synchronous standbys. Can be canceled. Not in recovery.
pub fn wait_for_flushed(event: &WaitEvent) {
    // SAFETY: the caller is not in recovery; null: the timeline is not wanted.
    let until = unsafe { pg_sys::GetFlushRecPtr(std::ptr::null_mut()) };
    while has_synchronous_standbys() && flushed_by_standbys() < until {
        latch::wait(Some(READ_EVERY), event);
        // A session reloads its settings between statements only. Like the wait of a commit, this wait ends when no
        // standby is synchronous any more.
        if session::is_reload_pending() {
            session::reload_configuration();
        }
    }
}

/// About the time that a standby takes to answer. PostgreSQL wakes only processes in its queue of commits.
const READ_EVERY: Duration = Duration::from_millis(2);

fn has_synchronous_standbys() -> bool {
    // SAFETY: settings of this process; the text is null or a C string.
    unsafe {
        let names = pg_sys::SyncRepStandbyNames;
        pg_sys::max_wal_senders > 0 && !names.is_null() && *names != 0
    }
}

/// `SyncRepLock` is a macro of PostgreSQL's headers: an index among its own LWLocks, the same in versions 15 to 19. In each
/// version the index is also the lock's tranche, which tells the name.
fn sync_rep_lock() -> *mut pg_sys::LWLock {
    const INDEX: u16 = 32;
    // SAFETY: PostgreSQL's array of its own LWLocks is longer in every version. A name is a C string that is never freed.
    let (lock, name) = unsafe {
        let lock = &raw mut (*pg_sys::MainLWLockArray.add(INDEX.into())).lock;
        (lock, CStr::from_ptr(pg_sys::GetLWLockIdentifier(pg_sys::PG_WAIT_LWLOCK, INDEX)))
    };
    assert_eq!(name, c"SyncRep", "this version of PostgreSQL has another lock there");
    lock
}

fn flushed_by_standbys() -> pg_sys::XLogRecPtr {
    let lock = sync_rep_lock();
    // SAFETY: shared memory that exists as long as the server; the lock guards it.
    unsafe {
        pg_sys::LWLockAcquire(lock, pg_sys::LWLockMode::LW_SHARED);
        let flushed = (*pg_sys::WalSndCtl).lsn[pg_sys::SYNC_REP_WAIT_FLUSH as usize];
        pg_sys::LWLockRelease(lock);
        flushed
    }
}
