//! The rows of undefined names and of shared terms that nobody holds any more.

use super::{LEASE, TERM, clock, now_for, term};
use crate::pg::datum::Text;
use crate::pg::spi::{Query, optional, text, value};
use crate::pg::{recovery, system_clock};
use idgen_core::lease::{ABANDONED_AFTER_US, Term};
use pgrx::datum::DatumWithOid;
use pgrx::spi::SpiHeapTupleData;

/// An abandoned row.
pub struct Abandoned {
    name: String,
    term: Term,
}

static PAGES: Query = LEASE.query(
    "SELECT pg_catalog.pg_relation_size('idgen.lease'::pg_catalog.regclass) \
     OPERATOR(pg_catalog./) pg_catalog.current_setting('block_size')::bigint",
);

/// The size of the table.
pub fn pages() -> i64 {
    PAGES.read_latest(&[], |row| value(row, 1)).pop().unwrap_or(0)
}

/// What `Term::is_abandoned` says of terms without a session, and less than it says of others. A defined name keeps the rows
/// of its slots: those of a pool are its worker ids.
const ENDED: &str = "CASE WHEN lease.clock OPERATOR(pg_catalog.=) $2 THEN lease.ends_us OPERATOR(pg_catalog.<=) $3 \
                          ELSE lease.ttl_us OPERATOR(pg_catalog.<=) $4 END \
                     AND (lease.slot OPERATOR(pg_catalog.>=) 65536 OR NOT EXISTS (\
                              SELECT FROM idgen.lease_definition AS defined \
                              WHERE defined.name OPERATOR(pg_catalog.=) lease.name \
                              UNION ALL SELECT FROM idgen.worker_number AS known \
                              WHERE known.pool OPERATOR(pg_catalog.=) lease.name))";

static FIND: Query = Query::new(&LEASE, || {
    format!(
        "SELECT {TERM}, lease.name FROM idgen.lease WHERE {ENDED} \
         AND lease.ctid OPERATOR(pg_catalog.>=) pg_catalog.format('(%s,0)', $1)::pg_catalog.tid \
         AND lease.ctid OPERATOR(pg_catalog.<) pg_catalog.format('(%s,0)', $5)::pg_catalog.tid"
    )
});

/// The abandoned rows of these pages.
pub fn find(from: i64, until: i64) -> Vec<Abandoned> {
    let [clock, by_this_clock, by_another] = limits();
    let args = [from.into(), clock, by_this_clock, by_another, until.into()];
    let found = FIND.read_latest(&args, |row| Abandoned { term: term(row, None), name: text(row, TERM_COLUMNS + 1) });
    found.into_iter().filter(|row| row.term.is_abandoned(now_for(&[row.term]))).collect()
}

/// The number of columns of `TERM`.
const TERM_COLUMNS: usize = 9;

/// This clock, the latest end by it of an abandoned term, and the longest ttl of one by another clock.
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
pub fn delete(rows: &[Abandoned]) -> Vec<Deleted> {
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
        owner: optional::<Text>(row, 4).map(String::from),
    };
    DELETE.write_latest(&args, deleted)
}
