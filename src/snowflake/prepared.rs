//! How early the ids of prepared transactions are. Each is prepared with a lock whose key says that: see
//! [`PreparedDraw`]. A prepared transaction without that lock is of a server without idgen, or of one before 0.12.0.

use super::errors;
use crate::pg::advisory_lock::{AdvisoryLock, LockKind, Mode, Scope};
use crate::pg::spi::{self, Query};
use crate::pg::xact;
use idgen_core::generator::settled::PreparedDraw;

/// `LOCKS` selects this kind by its number.
const EARLIEST_DRAW: LockKind = LockKind::new(b"pb");

/// Before the transaction is prepared. Also for one that has drawn no id, to tell it from those without a lock. Raises
/// 53200 if the lock table is full: the transaction is then rolled back.
pub fn keep(earliest_ms: Option<i64>) {
    let prepared = PreparedDraw { xid: xact::id() as u32, earliest_ms };
    // No other transaction has a lock of this key.
    AdvisoryLock::new(EARLIEST_DRAW, prepared.key(), Mode::Shared).acquire(Scope::Transaction);
}

/// By transaction id: a gid can be in the encoding of another database.
static TRANSACTIONS: Query =
    Query::of_statistics("SELECT transaction::pg_catalog.text::pg_catalog.int8 FROM pg_catalog.pg_prepared_xacts");

static LOCKS: Query = Query::of_statistics(
    "SELECT classid::pg_catalog.int8, objid::pg_catalog.int8 FROM pg_catalog.pg_locks \
     WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND objsubid OPERATOR(pg_catalog.=) 28770",
);

fn transactions() -> Vec<u32> {
    TRANSACTIONS.read_latest(&[], |row| spi::value::<i64>(row, 1) as u32)
}

/// The earliest times of the ids of all prepared transactions. Raises 55000 if that of one is unknown.
pub fn earliest_ms() -> Vec<i64> {
    let before = transactions();
    if before.is_empty() {
        return Vec::new();
    }
    let locks = LOCKS.read_latest(&[], |row| {
        let [xid, units] = [1, 2].map(|column| spi::value::<i64>(row, column));
        PreparedDraw::of_key(xid << 32 | units)
    });
    let has_lock = |xid: &u32| locks.iter().any(|lock| lock.xid == *xid);
    if let Some(unknown) = before.iter().find(|xid| !has_lock(xid)) {
        // It may have ended before the locks were read. A lock ends after its transaction.
        if transactions().contains(unknown) {
            errors::prepared_without_lock(*unknown).raise();
        }
    }
    locks.into_iter().filter_map(|lock| lock.earliest_ms).collect()
}
