//! Versions of rows that no snapshot of the caller shows: of running transactions, and of those that have committed since
//! the snapshot was taken, even if the row is gone.

use super::definitions;
use super::rows::column::{SLOT, TOKEN};
use super::rows::{LeaseRow, ROWS};
use crate::pg::row::Key;
use crate::pg::spi::{Query, value};
use crate::pg::xact;
use idgen_core::lease::FIRST_SHARED;
use pgrx::prelude::*;

/// Rows of a lease.
pub enum Slots {
    One(i32),
    All,
    Shared,
}

/// True if a committed transaction that the transaction's own snapshot does not show has inserted, changed or deleted
/// one of the rows. VACUUM keeps the dead versions as long as that snapshot exists.
pub fn have_changed(name: &str, slots: Slots) -> bool {
    let slot = match slots {
        Slots::One(slot) => Key::Int(slot),
        Slots::All => Key::IntBelow(FIRST_SHARED),
        Slots::Shared => Key::IntFrom(FIRST_SHARED),
    };
    // SAFETY: a transaction with one snapshot keeps it until its end.
    let own = unsafe { pg_sys::GetTransactionSnapshot() };
    // SAFETY: as above.
    let is_missed = |xid| unsafe { pg_sys::XidInMVCCSnapshot(xid, own) && pg_sys::TransactionIdDidCommit(xid) };
    let has_changed =
        |row: &LeaseRow| [row.inserted_by(), row.replaced_by()].into_iter().flatten().any(is_missed).then_some(());
    ROWS.read(|rows| rows.find_in_all(&[Key::Text(name), slot], has_changed)).is_some()
}

/// Waits for all other transactions that have begun a term of the lease. The wait is in the lock manager, which detects
/// deadlocks.
pub fn wait_for_grants(name: &str) {
    while let Some(Uncommitted { xid, .. }) = find(name, |_| true) {
        xact::wait_for_end_of(xid);
    }
}

/// The process that runs a transaction, which is no subtransaction: these lock their id only until they commit.
static PROCESS: Query = Query::of_statistics(
    "SELECT pid FROM pg_catalog.pg_locks WHERE locktype OPERATOR(pg_catalog.=) 'transactionid' AND granted \
     AND mode OPERATOR(pg_catalog.=) 'ExclusiveLock' \
     AND transactionid OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.xid",
);

/// A term that another session has acquired and not committed, in this slot or shared: its slot, and the process of the
/// session.
pub fn slot_and_process(name: &str, slot: i32) -> Option<(i32, i32)> {
    let grant = find(name, |granted| granted == slot || granted >= FIRST_SHARED)?;
    // SAFETY: the id of a transaction that was running.
    let xid = unsafe { pg_sys::SubTransGetTopmostTransaction(grant.xid) };
    let process = PROCESS.read_latest(&[i64::from(u32::from(xid)).into()], |row| value(row, 1)).pop()?;
    Some((grant.slot, process))
}

struct Uncommitted {
    slot: i32,
    xid: pg_sys::TransactionId,
}

/// A running transaction of another session that has written a version with a token that was never committed, in such a
/// slot. Renewals and releases keep the token.
fn find(name: &str, is_wanted: impl Fn(i32) -> bool) -> Option<Uncommitted> {
    let committed: Vec<i64> = definitions::read(name).terms.into_iter().map(|term| term.token).collect();
    let uncommitted = |row: &LeaseRow| {
        let xid = row.inserted_by()?;
        // SAFETY: the id of a transaction.
        let is_of_another =
            unsafe { !pg_sys::TransactionIdIsCurrentTransactionId(xid) && pg_sys::TransactionIdIsInProgress(xid) };
        let (slot, token) = (row.value(SLOT), row.value::<i64>(TOKEN));
        (is_of_another && is_wanted(slot) && !committed.contains(&token)).then_some(Uncommitted { slot, xid })
    };
    ROWS.read(|rows| rows.find_in_all(&[Key::Text(name)], uncommitted))
}
