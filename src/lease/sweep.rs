//! Deleting the rows that vanished holders of undefined names and of shared terms leave behind.
//!
//! A release deletes such a row. A holder that vanishes does not, and its name may never be used again. So an acquirer that
//! adds such a row now and then deletes a few that ended more than a day ago.
//!
//! The deletes belong to the acquirer's transaction. Until it ends, another acquirer of a deleted name finds the row
//! locked: it waits, or gets no row if it does not wait. A rollback keeps the rows for a later sweep. So a sweep deletes
//! few rows, and reads few.

use super::stats;
use super::store::{LEASE, TERM, TERM_COLUMNS, clock, now_for, term};
use crate::pg::spi::{Query, optional_text, text, value};
use crate::pg::{recovery, session, system_clock};
use crate::shmem::Part;
use idgen_core::lease::{ABANDONED_AFTER_US, Term};
use pgrx::datum::DatumWithOid;
use pgrx::spi::SpiHeapTupleData;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// A position in the table, and when to go on from there. Any process may repeat or skip a part of it, so every access is
/// relaxed.
#[derive(Default)]
pub struct Sweep {
    /// By the clock of leases.
    due_us: AtomicI64,
    next_page: AtomicI64,
}

/// One for each database. Databases that share one are each swept less often.
pub static SWEEPS: Part<&'static [Sweep]> =
    Part::new(c"idgen lease sweeps", |block| block.array(SWEEP_COUNT, Sweep::default));
const SWEEP_COUNT: usize = 64;

/// How often the whole table is read.
const PERIOD_US: i64 = 3_600_000_000;
/// The pages of the table that one sweep reads: about a thousand rows.
const PAGES: i64 = 64;
/// The most rows that one sweep deletes.
const MOST: usize = 100;

/// Sweeps the next part of the table if that is due.
pub fn sweep_if_due() {
    // Without shared memory, each process sweeps on its own.
    static OWN: Sweep = Sweep { due_us: AtomicI64::new(0), next_page: AtomicI64::new(0) };
    let sweep = SWEEPS.get().map_or(&OWN, |sweeps| &sweeps[session::database() as usize % SWEEP_COUNT]);
    let (now_us, due_us) = (system_clock::boot_us(), sweep.due_us.load(Relaxed));
    // One process at a time.
    let next_us = now_us.saturating_add(PERIOD_US);
    if now_us < due_us || sweep.due_us.compare_exchange(due_us, next_us, Relaxed, Relaxed).is_err() {
        return;
    }
    let pages = pages();
    let first = Some(sweep.next_page.load(Relaxed)).filter(|first| *first < pages).unwrap_or(0);
    let found = find(first, first + PAGES);
    let deleted = delete(&found[..found.len().min(MOST)]);
    deleted.iter().for_each(stats::notify_deleted);
    if found.len() > MOST {
        // More are left in this part.
        sweep.due_us.store(now_us, Relaxed);
    } else {
        sweep.next_page.store(first + PAGES, Relaxed);
        sweep.due_us.store(now_us.saturating_add(PERIOD_US / (pages / PAGES + 1)), Relaxed);
    }
}

/// An abandoned row.
struct Abandoned {
    name: String,
    term: Term,
}

static TABLE_PAGES: Query = LEASE.query(
    "SELECT pg_catalog.pg_relation_size('idgen.lease'::pg_catalog.regclass) \
     OPERATOR(pg_catalog./) pg_catalog.current_setting('block_size')::bigint",
);

/// The size of the table.
fn pages() -> i64 {
    TABLE_PAGES.read_latest(&[], |row| value(row, 1)).pop().unwrap_or(0)
}

/// What `Term::is_abandoned` says of terms without a session, and less than it says of others. A defined name keeps the rows
/// of its slots.
const ENDED: &str = "CASE WHEN lease.clock OPERATOR(pg_catalog.=) $2 THEN lease.ends_us OPERATOR(pg_catalog.<=) $3 \
                          ELSE lease.ttl_us OPERATOR(pg_catalog.<=) $4 END \
                     AND (lease.slot OPERATOR(pg_catalog.>=) 65536 OR NOT EXISTS (\
                              SELECT FROM idgen.lease_definition AS defined \
                              WHERE defined.name OPERATOR(pg_catalog.=) lease.name))";

static FIND: Query = Query::new(&LEASE, || {
    format!(
        "SELECT {TERM}, lease.name FROM idgen.lease WHERE {ENDED} \
         AND lease.ctid OPERATOR(pg_catalog.>=) pg_catalog.format('(%s,0)', $1)::pg_catalog.tid \
         AND lease.ctid OPERATOR(pg_catalog.<) pg_catalog.format('(%s,0)', $5)::pg_catalog.tid"
    )
});

/// The abandoned rows of these pages.
fn find(from: i64, until: i64) -> Vec<Abandoned> {
    let [clock, by_this_clock, by_another] = limits();
    let args = [from.into(), clock, by_this_clock, by_another, until.into()];
    let found = FIND.read_latest(&args, |row| Abandoned { term: term(row, None), name: text(row, TERM_COLUMNS + 1) });
    found.into_iter().filter(|row| row.term.is_abandoned(now_for(&[row.term]))).collect()
}

/// The name of this clock; the latest end of an abandoned term by this clock; and the longest ttl of an abandoned term by
/// another clock.
fn limits<'a>() -> [DatumWithOid<'a>; 3] {
    let abandoned_us = system_clock::boot_us().saturating_sub(ABANDONED_AFTER_US);
    let began_us = recovery::began_to_write_us().unwrap_or(i64::MAX);
    [clock().into(), abandoned_us.into(), abandoned_us.saturating_sub(began_us).into()]
}

static DELETE: Query = Query::new(&LEASE, || {
    format!(
        "DELETE FROM idgen.lease WHERE ctid OPERATOR(pg_catalog.=) ANY (ARRAY(\
             SELECT lease.ctid \
             FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($5), pg_catalog.unnest($6)) AS found (name, slot, token) \
             JOIN idgen.lease ON lease.name OPERATOR(pg_catalog.=) found.name \
              AND lease.slot OPERATOR(pg_catalog.=) found.slot AND lease.token OPERATOR(pg_catalog.=) found.token \
             WHERE {ENDED} FOR UPDATE OF lease SKIP LOCKED)) RETURNING name, slot, depth, owner"
    )
});

/// A row that was deleted, with what its holder said of itself.
pub struct Deleted {
    pub name: String,
    pub slot: i32,
    pub depth: i32,
    pub owner: Option<String>,
}

/// Deletes these rows, except those that another transaction has locked, fenced, changed or defined. Returns the others.
fn delete(rows: &[Abandoned]) -> Vec<Deleted> {
    if rows.is_empty() {
        return Vec::new();
    }
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    let slots: Vec<i32> = rows.iter().map(|row| row.term.slot).collect();
    let tokens: Vec<i64> = rows.iter().map(|row| row.term.token).collect();
    let [clock, by_this_clock, by_another] = limits();
    let args = [names.into(), clock, by_this_clock, by_another, slots.into(), tokens.into()];
    let deleted = |row: &SpiHeapTupleData| Deleted {
        name: text(row, 1),
        slot: value(row, 2),
        depth: value(row, 3),
        owner: optional_text(row, 4),
    };
    DELETE.write_latest(&args, deleted)
}
