//! `snowflake_settled`: an id at or below which nothing can still be committed on this server. Consumers read up to it,
//! so that they miss no row of a transaction that commits late.
//!
//! Shared memory has how early the ids are that each open transaction has drawn. A prepared transaction has locks whose
//! keys say that: see [`PreparedDraw`]. One without such a lock is of a server without idgen, or of one before 0.12.0.

use super::{errors, layouts, node};
use crate::clock::{self, GENERATORS};
use crate::pg::advisory_lock::{AdvisoryLock, LockKind, Mode, Scope};
use crate::pg::datum::{self, Text};
use crate::pg::spi::{self, Query};
use crate::pg::{session, xact};
use crate::shmem::Part;
use crate::{args, error};
use idgen_core::generator::settled::{self, EarliestDraw, PreparedDraw, PreparedKeys};
use idgen_core::layout::{Layout, Node};
use idgen_core::snowflake::IdSpace;
use pgrx::prelude::*;

/// The greatest id of `idgen.layout` at or below which no transaction of this server can commit a row any more. Use it in
/// a later statement than the one that returns it. -1 if no id is settled. Raises 55000 without preload, or while there is
/// a prepared transaction whose ids are unknown; 25006 on a standby; 25001 unless the transaction is READ COMMITTED.
#[pg_extern(sql = false)]
fn snowflake_settled() -> i64 {
    settled(&layouts::default())
}

/// As `snowflake_settled()`, for a layout. Raises 22004 for NULL and 22023 for an invalid layout.
#[pg_extern(sql = false)]
fn snowflake_settled_in(layout: Option<Text>) -> i64 {
    settled(&layouts::parsed(&args::required(layout, "layout")))
}

fn settled(layout: &Layout) -> i64 {
    let draws = EARLIEST_DRAWS.require();
    error::refuse_on_standby("tell which ids are settled");
    // Not only in a block: the statements of a function share a snapshot too.
    if !xact::is_read_committed() {
        errors::settled_in_one_snapshot().raise();
    }
    // Ids go on from the mark, which no transaction of an earlier start can have reached.
    clock::ensure_begun();
    let before_next = || {
        // Under the lock, because worker ids change under it.
        GENERATORS.shared(|table| {
            let space = current_space(layout);
            (space, table.id_before_next(&space))
        })
    };
    let open_ms = || {
        let mut open: Vec<i64> = draws.iter().filter_map(EarliestDraw::get).collect();
        // Last: a transaction clears its own time after it holds the lock of a prepared one.
        let draws = prepared_draws().unwrap_or_else(|unknown| errors::prepared_without_lock(unknown).raise());
        open.extend(draws.into_iter().filter_map(|draw| draw.earliest_ms));
        open
    };
    let (space, id) = settled::settled(layout, before_next, open_ms);
    GENERATORS.exclusive(|table| table.settle(&space, id))
}

/// The space of the current worker id. Where it has none, or one that does not fit, nothing is issued in the layout, and
/// what is later issued begins in a later tick: any worker id serves.
fn current_space(layout: &Layout) -> IdSpace {
    let node = node::CURRENT.require().get().unwrap_or_default();
    let space = layout.id_space(node).or_else(|_| layout.id_space(Node::default()));
    space.expect("worker id 0 fits each layout")
}

/// One for each process that can draw.
pub static EARLIEST_DRAWS: Part<&'static [EarliestDraw]> = Part::new(c"idgen earliest draws", |block| {
    // SAFETY: fixed before PostgreSQL asks for the size of shared memory.
    block.array(unsafe { pg_sys::MaxBackends } as usize, EarliestDraw::new)
});

/// That of this process, or of the leader if it is a worker of a parallel query: that one commits the rows. `None`
/// in a process that runs no transactions.
fn own() -> Option<&'static EarliestDraw> {
    EARLIEST_DRAWS.get()?.get(session::leader_index())
}

/// Before a draw that can have this time.
pub fn lower_to(time_ms: i64) {
    if let Some(earliest) = own() {
        earliest.lower_to(time_ms);
    }
}

/// At each event of a transaction of this process, also if it draws no id: a worker may have drawn for it.
pub fn at_xact_event(event: pg_sys::XactEvent::Type) {
    use pg_sys::XactEvent::*;
    // A worker of a parallel query commits a transaction of its own before it joins its leader's.
    let own = own().filter(|_| !session::is_parallel_worker());
    let Some(earliest) = own else {
        return;
    };
    match event {
        XACT_EVENT_PRE_PREPARE => keep_prepared(earliest.get()),
        // PostgreSQL has made the transaction's rows visible, and all its workers have ended.
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE => earliest.clear(),
        _ => {}
    }
}

/// `LOCKS` selects these kinds by their numbers.
const UNITS: LockKind = LockKind::new(b"pb");
const REST: LockKind = LockKind::new(b"pr");

/// Before the transaction is prepared. Also for one that has drawn no id, to tell it from those without a lock. Raises
/// 53200 if the lock table is full: the transaction is then rolled back.
fn keep_prepared(earliest_ms: Option<i64>) {
    let prepared = PreparedDraw { xid: xact::id() as u32, earliest_ms };
    let PreparedKeys { units, rest } = prepared.keys();
    // No other transaction has a lock of such a key. The units come last: with them alone, the time would be too early.
    for (kind, lower) in rest.map(|rest| (REST, rest)).into_iter().chain([(UNITS, units)]) {
        AdvisoryLock::new(kind, prepared.key(lower), Mode::Shared).acquire(Scope::Transaction);
    }
}

/// By transaction id: a gid can be in the encoding of another database.
static PREPARED: Query = Query::of_statistics(
    "SELECT transaction::pg_catalog.text::pg_catalog.int8, prepared FROM pg_catalog.pg_prepared_xacts",
);

/// The upper halves of the keys, and the lower ones of both kinds.
static LOCKS: Query = Query::of_statistics(
    "SELECT classid::pg_catalog.int8, \
            pg_catalog.max(objid::pg_catalog.int8) FILTER (WHERE objsubid OPERATOR(pg_catalog.=) 28770), \
            pg_catalog.max(objid::pg_catalog.int8) FILTER (WHERE objsubid OPERATOR(pg_catalog.=) 28786) \
     FROM pg_catalog.pg_locks \
     WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND objsubid OPERATOR(pg_catalog.=) ANY (ARRAY[28770, 28786]) \
     GROUP BY classid",
);

/// The prepared transactions, each with the time since when it is, in milliseconds since 1970.
pub fn prepared() -> Vec<(u32, i64)> {
    PREPARED.read_latest(&[], |row| (spi::value::<i64>(row, 1) as u32, datum::to_us(spi::value(row, 2)) / 1000))
}

/// The draws of all prepared transactions, or one of which nothing is known.
pub fn prepared_draws() -> Result<Vec<PreparedDraw>, u32> {
    let before = prepared();
    if before.is_empty() {
        return Ok(Vec::new());
    }
    let locks = LOCKS.read_latest(&[], |row| {
        let [units, rest] = [2, 3].map(|column| spi::optional::<i64>(row, column).map(|lower| lower as u32));
        units.map(|units| PreparedDraw::of_keys(spi::value::<i64>(row, 1) as u32, PreparedKeys { units, rest }))
    });
    let draws: Vec<PreparedDraw> = locks.into_iter().flatten().collect();
    let has_lock = |xid: &u32| draws.iter().any(|draw| draw.xid == *xid);
    if let Some((unknown, _)) = before.iter().find(|(xid, _)| !has_lock(xid)) {
        // It may have ended before the locks were read. A lock ends after its transaction.
        if prepared().iter().any(|(xid, _)| xid == unknown) {
            return Err(*unknown);
        }
    }
    Ok(draws)
}
