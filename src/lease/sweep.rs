//! Deleting the rows that vanished holders of undefined names and of shared terms leave behind.
//!
//! A release deletes such a row. A holder that vanishes does not, and its name may never be used again. So an acquirer that
//! adds such a row now and then deletes a few that ended more than a day ago.
//!
//! The deletes belong to the acquirer's transaction. Until it ends, another acquirer of a deleted name finds the row
//! locked: it waits, or gets no row if it does not wait. A rollback keeps the rows for a later sweep. So a sweep deletes
//! few rows, and reads few.

use super::rows::{LEASE, LEASE_DEFINITION, LeaseRow, clock, now_for, term};
use super::terms;
use crate::pg::spi::{Query, text, value};
use crate::pg::{recovery, session, system_clock};
use crate::shmem::Part;
use idgen_core::lease::ABANDONED_AFTER_US;
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
    // The caller's time may be limited.
    if now_us < due_us
        || !LEASE_DEFINITION.lets_read()
        || sweep.due_us.compare_exchange(due_us, next_us, Relaxed, Relaxed).is_err()
    {
        return;
    }
    let pages = TABLE_PAGES.read_latest(&[], |row| value(row, 1)).pop().unwrap_or(0);
    let first = Some(sweep.next_page.load(Relaxed)).filter(|first| *first < pages).unwrap_or(0);
    let found = find(first, first + PAGES);
    let remove = |(name, slot): &&(String, i32)| terms::remove(name, *slot, is_abandoned);
    if found.iter().filter(remove).take(MOST).count() == MOST {
        // More may be left in this part.
        sweep.due_us.store(now_us, Relaxed);
    } else {
        sweep.next_page.store(first + PAGES, Relaxed);
        sweep.due_us.store(now_us.saturating_add(PERIOD_US / (pages / PAGES + 1)), Relaxed);
    }
}

static TABLE_PAGES: Query = LEASE.query(
    "SELECT pg_catalog.pg_relation_size('idgen.lease'::pg_catalog.regclass) \
     OPERATOR(pg_catalog./) pg_catalog.current_setting('block_size')::bigint",
);

/// What `Term::is_abandoned` says of terms without a session, and less than it says of others.
static FIND: Query = LEASE.query(
    "SELECT lease.name, lease.slot FROM idgen.lease \
     WHERE CASE WHEN lease.clock OPERATOR(pg_catalog.=) $2 THEN lease.ends_us OPERATOR(pg_catalog.<=) $3 \
                ELSE lease.ttl_us OPERATOR(pg_catalog.<=) $4 END \
       AND lease.ctid OPERATOR(pg_catalog.>=) pg_catalog.format('(%s,0)', $1)::pg_catalog.tid \
       AND lease.ctid OPERATOR(pg_catalog.<) pg_catalog.format('(%s,0)', $5)::pg_catalog.tid \
       AND (lease.slot OPERATOR(pg_catalog.>=) 65536 OR NOT EXISTS (\
                SELECT FROM idgen.lease_definition AS defined \
                WHERE defined.name OPERATOR(pg_catalog.=) lease.name))",
);

/// The rows of these pages that can be abandoned. A defined name keeps the rows of its slots.
fn find(from: i64, until: i64) -> Vec<(String, i32)> {
    let abandoned_us = system_clock::boot_us().saturating_sub(ABANDONED_AFTER_US);
    let began_us = recovery::began_to_write_us().unwrap_or(i64::MAX);
    let ttl_us = abandoned_us.saturating_sub(began_us);
    let args = [from.into(), clock().into(), abandoned_us.into(), ttl_us.into(), until.into()];
    FIND.read_latest(&args, |row| (text(row, 1), value::<i32>(row, 2)))
}

fn is_abandoned(row: &LeaseRow) -> bool {
    let term = term(row, None);
    term.is_abandoned(now_for(&[term]))
}
