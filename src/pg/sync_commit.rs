//! `synchronous_commit` of the running transaction.

use pgrx::prelude::*;

/// The failures that a commit must survive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    Any,
    /// A crash. Under `synchronous_commit = local` the commit does not wait for standbys.
    Crash,
    /// A failover to a synchronous standby.
    Failover,
}

/// Makes the commit of this transaction as durable as needed.
pub fn require(durability: Durability) {
    // SAFETY: reads a variable of this process.
    let is_local =
        || unsafe { pg_sys::synchronous_commit == pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_LOCAL_FLUSH as i32 };
    match durability {
        Durability::Any => {}
        Durability::Crash if is_local() => {}
        Durability::Crash | Durability::Failover => require_failover(),
    }
}

/// Makes the commit wait for the disk, and for the synchronous standby if there is one, whatever is set for the session,
/// the role or the database.
pub fn require_failover() {
    // SAFETY: reads a variable of this process, and sets it as SET LOCAL does.
    unsafe {
        if pg_sys::synchronous_commit < pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_REMOTE_FLUSH as i32 {
            pg_sys::set_config_option(
                c"synchronous_commit".as_ptr(),
                c"on".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_LOCAL,
                true,
                0,
                false,
            );
        }
    }
}
