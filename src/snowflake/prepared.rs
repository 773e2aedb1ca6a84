//! How early the ids of prepared transactions are. Each is prepared with locks whose keys say that: see [`PreparedDraw`].
//! A prepared transaction without such a lock is of a server without idgen, or of one before 0.12.0.

use super::errors;
use crate::pg::advisory_lock::{AdvisoryLock, LockKind, Mode, Scope};
use crate::pg::spi::{self, Query};
use crate::pg::xact;
use idgen_core::generator::settled::{PreparedDraw, PreparedKeys};

/// `LOCKS` selects these kinds by their numbers.
const UNITS: LockKind = LockKind::new(b"pb");
const REST: LockKind = LockKind::new(b"pr");

/// Before the transaction is prepared. Also for one that has drawn no id, to tell it from those without a lock. Raises
/// 53200 if the lock table is full: the transaction is then rolled back.
pub fn keep(earliest_ms: Option<i64>) {
    let prepared = PreparedDraw { xid: xact::id() as u32, earliest_ms };
    let PreparedKeys { units, rest } = prepared.keys();
    // No other transaction has a lock of such a key. The units come last: with them alone, the time would be too early.
    for (kind, lower) in rest.map(|rest| (REST, rest)).into_iter().chain([(UNITS, units)]) {
        AdvisoryLock::new(kind, prepared.key(lower), Mode::Shared).acquire(Scope::Transaction);
    }
}

/// By transaction id: a gid can be in the encoding of another database.
static TRANSACTIONS: Query =
    Query::of_statistics("SELECT transaction::pg_catalog.text::pg_catalog.int8 FROM pg_catalog.pg_prepared_xacts");

/// The upper halves of the keys, and the lower ones of both kinds.
static LOCKS: Query = Query::of_statistics(
    "SELECT classid::pg_catalog.int8, \
            pg_catalog.max(objid::pg_catalog.int8) FILTER (WHERE objsubid OPERATOR(pg_catalog.=) 28770), \
            pg_catalog.max(objid::pg_catalog.int8) FILTER (WHERE objsubid OPERATOR(pg_catalog.=) 28786) \
     FROM pg_catalog.pg_locks \
     WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND objsubid OPERATOR(pg_catalog.=) ANY (ARRAY[28770, 28786]) \
     GROUP BY classid",
);

fn transactions() -> Vec<u32> {
    TRANSACTIONS.read_latest(&[], |row| spi::value::<i64>(row, 1) as u32)
}

/// The earliest times of the ids of all prepared transactions. Raises 55000 if that of one is unknown.
pub fn earliest_ms() -> Vec<i64> {
    let draws = draws().unwrap_or_else(|unknown| errors::prepared_without_lock(unknown).raise());
    draws.into_iter().filter_map(|draw| draw.earliest_ms).collect()
}

/// The draws of all prepared transactions, or one of which nothing is known.
pub fn draws() -> Result<Vec<PreparedDraw>, u32> {
    let before = transactions();
    if before.is_empty() {
        return Ok(Vec::new());
    }
    let locks = LOCKS.read_latest(&[], |row| {
        let [units, rest] = [2, 3].map(|column| spi::optional::<i64>(row, column).map(|lower| lower as u32));
        units.map(|units| PreparedDraw::of_keys(spi::value::<i64>(row, 1) as u32, PreparedKeys { units, rest }))
    });
    let draws: Vec<PreparedDraw> = locks.into_iter().flatten().collect();
    let has_lock = |xid: &u32| draws.iter().any(|draw| draw.xid == *xid);
    if let Some(unknown) = before.iter().find(|xid| !has_lock(xid)) {
        // It may have ended before the locks were read. A lock ends after its transaction.
        if transactions().contains(unknown) {
            return Err(*unknown);
        }
    }
    Ok(draws)
}
