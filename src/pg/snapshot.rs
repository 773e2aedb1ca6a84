//! Whether the snapshot of the running statement is older than a moment of its transaction.

use pgrx::prelude::*;

/// A moment of the running transaction.
///
/// The statements of a rule share one snapshot. PostgreSQL raises its command for each of them, but it shows no more of other
/// transactions. So both are compared.
#[derive(Clone)]
pub struct Moment {
    /// The last command that has written. The snapshot of a later statement is of a later one.
    command: pg_sys::CommandId,
    /// Transactions from this one on had not ended.
    next: pg_sys::TransactionId,
    /// Those before it that had not ended. They are in order.
    running: Vec<pg_sys::TransactionId>,
}

impl Moment {
    pub fn now() -> Self {
        // SAFETY: reads this process's own state.
        let command = unsafe { pg_sys::GetCurrentCommandId(false) }.saturating_sub(1);
        // SAFETY: a function that SQL has called has a snapshot, and this one is read before there is a next one.
        let snapshot = unsafe { &*pg_sys::GetLatestSnapshot() };
        let mut running = running(snapshot).to_vec();
        running.sort_unstable();
        Self { command, next: snapshot.xmax, running }
    }

    /// The end of the transaction, to which every snapshot is older.
    pub fn end_of_transaction() -> Self {
        Self { command: pg_sys::CommandId::MAX, next: pg_sys::InvalidTransactionId, running: Vec::new() }
    }

    /// True if the running statement sees what was written and committed before it.
    pub fn is_seen(&self) -> bool {
        // SAFETY: a function that SQL has called has a snapshot.
        let snapshot = unsafe { &*pg_sys::GetActiveSnapshot() };
        // SAFETY: compares numbers.
        let is_before = |one, other| unsafe { pg_sys::TransactionIdPrecedes(one, other) };
        let had_ended =
            |xid: &pg_sys::TransactionId| is_before(*xid, self.next) && self.running.binary_search(xid).is_err();
        snapshot.curcid > self.command
            && !is_before(snapshot.xmax, self.next)
            && (!is_before(snapshot.xmin, self.next) || !running(snapshot).iter().any(had_ended))
    }
}

/// The transactions that a snapshot does not show although they are before its `xmax`, but for subtransactions. None during
/// recovery.
fn running(snapshot: &pg_sys::SnapshotData) -> &[pg_sys::TransactionId] {
    match snapshot.xcnt {
        0 => &[],
        // SAFETY: an array of this length, which lives as long as the snapshot.
        count => unsafe { std::slice::from_raw_parts(snapshot.xip, count as usize) },
    }
}
