//! Commits that nothing brings back.

use pgrx::prelude::*;

/// What a transaction needs of its commit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    Nothing,
    /// To outlive a crash. A caller that has set `synchronous_commit = local` asks for the standbys by itself.
    Here,
    /// To outlive a failover.
    Standbys,
}

/// Has the commit wait for what the transaction needs.
pub fn make_commit(need: Need) {
    // SAFETY: reads a variable of this process.
    let is_local =
        || unsafe { pg_sys::synchronous_commit == pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_LOCAL_FLUSH as i32 };
    match need {
        Need::Nothing => {}
        Need::Here if is_local() => {}
        Need::Here | Need::Standbys => make_commit_durable(),
    }
}

/// The transaction's commit waits for the disk, and for the synchronous standby if there is one, whatever is set for the
/// session, the role or the database: what is told or used after it must not come again after a crash.
pub fn make_commit_durable() {
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
