//! Deleting the rows that vanished holders of undefined names and of shared terms leave behind.
//!
//! A release deletes such a row. A holder that vanishes does not, and its name may never be used again. So an acquirer that
//! adds such a row now and then deletes a few that ended more than a day ago.
//!
//! The deletes belong to the acquirer's transaction. Until it ends, another acquirer of a deleted name finds the row
//! locked: it waits, or gets no row if it does not wait. A rollback keeps the rows for a later sweep. So a sweep deletes
//! few rows, and reads few.

use super::notify;
use super::store::abandoned;
use crate::pg::{session, system_clock};
use crate::shmem::Part;
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
    let pages = abandoned::pages();
    let first = Some(sweep.next_page.load(Relaxed)).filter(|first| *first < pages).unwrap_or(0);
    let found = abandoned::find(first, first + PAGES);
    let deleted = abandoned::delete(&found[..found.len().min(MOST)]);
    deleted.iter().for_each(notify::deleted);
    if found.len() > MOST {
        // More are left in this part.
        sweep.due_us.store(now_us, Relaxed);
    } else {
        sweep.next_page.store(first + PAGES, Relaxed);
        sweep.due_us.store(now_us.saturating_add(PERIOD_US / (pages / PAGES + 1)), Relaxed);
    }
}
