//! What is known of transactions that have drawn and can still commit: for readers of settled ids and settled values. See
//! [`idgen_core::draws`].
//!
//! Shared memory has since when each open transaction draws. A prepared transaction has locks whose keys say that: see
//! [`PreparedDraw`]. One without such a lock is of a server without idgen, or of an earlier version.

use crate::error::{self, Check, listed};
use crate::pg::advisory_lock::{AdvisoryLock, LockKind, Mode, Scope};
use crate::pg::ereport::{Report, errors};
use crate::pg::spi::{self, Query};
use crate::pg::{datum, recovery, session, system_clock, xact};
use crate::shmem::{Block, Part};
use idgen_core::draws::{EarliestDraw, PreparedDraw, PreparedKeys};
use idgen_core::layout::time_text;
use pgrx::prelude::*;
use std::collections::HashMap;

/// Draws of one sort.
pub struct OpenDraws {
    /// One for each process that can draw.
    pub processes: Part<&'static [EarliestDraw]>,
    /// Those of the locks of prepared transactions.
    pub units: LockKind,
    pub rest: LockKind,
    /// What is drawn, for messages.
    pub drawn: &'static str,
    /// The function that says what is settled, for messages.
    pub reader: &'static str,
    /// The first version that gave prepared transactions these locks.
    pub since_version: &'static str,
}

pub fn processes(block: &mut Block) -> &'static [EarliestDraw] {
    // SAFETY: fixed before PostgreSQL asks for the size of shared memory.
    block.array(unsafe { pg_sys::MaxBackends } as usize, EarliestDraw::new)
}

impl OpenDraws {
    /// For a function that says what is settled. Raises 55000 without preload, 25006 on a standby, and 25001 unless the
    /// transaction is READ COMMITTED.
    pub fn require_readable(&self, reader: &str) {
        self.processes.require();
        error::refuse_on_standby(&format!("tell which {}s are settled", self.drawn));
        // Not only in a block: the statements of a function share a snapshot too.
        if !xact::is_read_committed() {
            settled_in_one_snapshot(reader).raise();
        }
    }

    /// That of this process, or of the leader if it is a worker of a parallel query: that one commits the rows. `None`
    /// in a process that runs no transactions.
    fn own(&self) -> Option<&'static EarliestDraw> {
        self.processes.get()?.get(session::leader_index())
    }

    /// Before a draw that can have this number.
    pub fn lower_to(&self, since: i64) {
        if let Some(earliest) = self.own() {
            earliest.lower_to(since);
        }
    }

    /// At each event of a transaction of this process, also if it draws nothing: a worker may have drawn for it.
    pub fn at_xact_event(&self, event: pg_sys::XactEvent::Type) {
        use pg_sys::XactEvent::*;
        match event {
            XACT_EVENT_PRE_PREPARE => self.keep_prepared(self.own().and_then(EarliestDraw::get)),
            // PostgreSQL has made the transaction's rows visible, and all its workers have ended. A worker commits a
            // transaction of its own before it joins its leader's.
            XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE if !session::is_parallel_worker() => {
                self.own().into_iter().for_each(EarliestDraw::clear);
            }
            _ => {}
        }
    }

    /// Before the transaction is prepared. Also for one that has drawn nothing, to tell it from those without a lock.
    /// Raises 53200 if the lock table is full: the transaction is then rolled back.
    fn keep_prepared(&self, since: Option<i64>) {
        let prepared = PreparedDraw { xid: xact::id() as u32, since };
        let PreparedKeys { units, rest } = prepared.keys();
        // No other transaction has a lock of such a key. The units come last: with them alone, the number would be too low.
        for (kind, lower) in rest.map(|rest| (self.rest, rest)).into_iter().chain([(self.units, units)]) {
            AdvisoryLock::new(kind, prepared.key(lower), Mode::Shared).acquire(Scope::Transaction);
        }
    }

    /// Since when the transactions draw that are open now, in no order. Raises 55000 while there is a prepared transaction
    /// that may have drawn anything.
    pub fn open(&self) -> Vec<i64> {
        let mut open: Vec<i64> = self.processes.require().iter().filter_map(EarliestDraw::get).collect();
        // Last: a transaction clears its own number after it holds the lock of a prepared one.
        let prepared = self.prepared().unwrap_or_else(|unknown| unknown.raise());
        open.extend(prepared.into_iter().filter_map(|draw| draw.since));
        open
    }

    /// The draws of all prepared transactions; an error if one of them has no lock.
    fn prepared(&self) -> Result<Vec<PreparedDraw>, Report> {
        let before = prepared_transactions();
        if before.is_empty() {
            return Ok(Vec::new());
        }
        let kinds = [self.units, self.rest].map(|kind| kind.number().into());
        let locks = LOCKS.read_latest(&kinds, |row| {
            let [units, rest] = [2, 3].map(|column| spi::optional::<i64>(row, column).map(|lower| lower as u32));
            units.map(|units| PreparedDraw::of_keys(spi::value::<i64>(row, 1) as u32, PreparedKeys { units, rest }))
        });
        let draws: Vec<PreparedDraw> = locks.into_iter().flatten().collect();
        let has_lock = |xid: &u32| draws.iter().any(|draw| draw.xid == *xid);
        if let Some((xid, _)) = before.into_iter().find(|(xid, _)| !has_lock(xid)) {
            // It may have ended before the locks were read. A lock ends after its transaction.
            if prepared_transactions().iter().any(|(other, _)| *other == xid) {
                return Err(prepared_without_lock(xid, self));
            }
        }
        Ok(draws)
    }

    /// Fails if a transaction that has drawn is open for long: consumers wait for it. What it has drawn does not say since
    /// when it is open, because ids can be ahead of the clock.
    pub fn check(&self, name: &'static str) -> Check {
        let Some(processes) = self.processes.get().filter(|_| !recovery::is_in_progress()) else {
            return Check::ok(name, format!("no {} is drawn here", self.drawn));
        };
        let prepared = match self.prepared() {
            Err(unknown) => return Check::raising(name, unknown).affects(self.reader),
            Ok(prepared) => prepared,
        };
        let drew = |xid: u32| prepared.iter().any(|draw| draw.xid == xid && draw.since.is_some());
        let prepared = prepared_transactions().into_iter().filter(|(xid, _)| drew(*xid));
        let mut late: Vec<_> =
            prepared.map(|(xid, since_ms)| (since_ms, format!("prepared transaction {xid}"))).collect();
        let open: HashMap<i32, i64> = OPEN
            .read_latest(&[], |row| (spi::value(row, 1), datum::to_us(spi::value(row, 2)) / 1000))
            .into_iter()
            .collect();
        for (index, _) in processes.iter().enumerate().filter(|(_, draw)| draw.get().is_some()) {
            let pid = session::process_at(index);
            late.extend(open.get(&pid).map(|since_ms| (*since_ms, format!("process {pid}"))));
        }
        let late_ms = system_clock::wall_ms() - LATE_MS;
        late.retain(|(since_ms, _)| *since_ms < late_ms);
        late.sort_unstable();
        let Some(&(since_ms, _)) = late.first() else {
            return Check::ok(name, format!("no transaction holds settled {}s back", self.drawn));
        };
        let holders: Vec<String> = late.into_iter().map(|(_, holder)| holder).collect();
        let drawn = self.drawn;
        let article = if drawn == "id" { "an" } else { "a" };
        Check::warning(
            name,
            format!(
                "settled {drawn}s wait for {}, which has drawn {article} {drawn}, and whose transaction is open since {}",
                holders[0],
                time_text(since_ms)
            ),
            "End it: COMMIT or ROLLBACK PREPARED by its gid in pg_prepared_xacts, or SELECT pg_terminate_backend(pid).",
        )
        .since_ms(Some(since_ms))
        .affects(listed(&holders))
    }
}

const LATE_MS: i64 = 300_000;

/// Since when the transactions of processes are open.
static OPEN: Query = Query::of_statistics(
    "SELECT pid, xact_start FROM pg_catalog.pg_stat_get_activity(NULL) WHERE xact_start IS NOT NULL",
);

/// By transaction id: a gid can be in the encoding of another database.
static PREPARED: Query = Query::of_statistics(
    "SELECT transaction::pg_catalog.text::pg_catalog.int8, prepared FROM pg_catalog.pg_prepared_xacts",
);

/// The upper halves of the keys, and the lower ones of both kinds.
static LOCKS: Query = Query::of_statistics(
    "SELECT classid::pg_catalog.int8, \
            pg_catalog.max(objid::pg_catalog.int8) FILTER (WHERE objsubid OPERATOR(pg_catalog.=) $1), \
            pg_catalog.max(objid::pg_catalog.int8) FILTER (WHERE objsubid OPERATOR(pg_catalog.=) $2) \
     FROM pg_catalog.pg_locks \
     WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND objsubid OPERATOR(pg_catalog.=) ANY (ARRAY[$1, $2]) \
     GROUP BY classid",
);

/// The prepared transactions, each with the time since when it is, in milliseconds since 1970.
fn prepared_transactions() -> Vec<(u32, i64)> {
    PREPARED.read_latest(&[], |row| (spi::value::<i64>(row, 1) as u32, datum::to_us(spi::value(row, 2)) / 1000))
}

errors! {
    fn settled_in_one_snapshot(reader: &str) {
        ERRCODE_ACTIVE_SQL_TRANSACTION: "{reader} cannot be called in a REPEATABLE READ or SERIALIZABLE transaction";
        detail: "The snapshot of the transaction may be older than rows that are settled now.";
        hint: "Use READ COMMITTED, and read the rows in a later statement.";
    }

    fn prepared_without_lock(xid: u32, draws: &OpenDraws) {
        ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE: "prepared transaction {xid} may have drawn any {}", draws.drawn;
        detail: "It was prepared by a server that had not preloaded idgen {} or later.", draws.since_version;
        hint: "Run SELECT gid, database FROM pg_prepared_xacts WHERE transaction = '{xid}', and in that database \
            COMMIT PREPARED or ROLLBACK PREPARED with this gid.";
    }
}
