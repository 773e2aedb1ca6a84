//! What the snapshot of the running statement shows: up to which command of its own transaction, and which others.

use pgrx::prelude::*;

/// The last command of the transaction that has written. The snapshots from then on are of later ones, but for those that the
/// statements of a rule share.
pub fn last_command() -> pg_sys::CommandId {
    // SAFETY: reads this process's own state.
    unsafe { pg_sys::GetCurrentCommandId(false) }.saturating_sub(1)
}

/// The command before which the running statement has taken its snapshot. Statements of a function that it calls have
/// snapshots of their own.
pub fn command() -> pg_sys::CommandId {
    // SAFETY: a function that SQL has called has a snapshot.
    unsafe { (*pg_sys::GetActiveSnapshot()).curcid }
}

/// Which transactions had ended at some time.
#[derive(Clone)]
pub struct Ended {
    /// All later ones were running, or had not begun.
    before: pg_sys::TransactionId,
    running: Vec<pg_sys::TransactionId>,
}

impl Ended {
    pub fn until_now() -> Self {
        // SAFETY: a function that SQL has called has a snapshot, and this one is read before there is a next one.
        unsafe { Self::shown_by(&*pg_sys::GetLatestSnapshot()) }
    }

    /// # Safety
    /// An MVCC snapshot, which was not taken during recovery.
    unsafe fn shown_by(snapshot: &pg_sys::SnapshotData) -> Self {
        let running = match snapshot.xcnt {
            0 => Vec::new(),
            // SAFETY: an array of this length.
            count => unsafe { std::slice::from_raw_parts(snapshot.xip, count as usize) }.to_vec(),
        };
        Self { before: snapshot.xmax, running }
    }

    /// True if the running statement sees what they have written.
    pub fn are_shown(&self) -> bool {
        // SAFETY: as in `until_now`. Compares numbers.
        unsafe {
            let shown = Self::shown_by(&*pg_sys::GetActiveSnapshot());
            let is_missed = |xid: &pg_sys::TransactionId| {
                pg_sys::TransactionIdPrecedes(*xid, self.before) && !self.running.contains(xid)
            };
            !pg_sys::TransactionIdPrecedes(shown.before, self.before) && !shown.running.iter().any(is_missed)
        }
    }
}
