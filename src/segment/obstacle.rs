//! What keeps the worker from a row: transactions of other sessions that have locked the row, or the table. The worker waits
//! for none of them, because it serves other tags too. A session that needs the values waits: one of these transactions may
//! wait for the session in turn, and PostgreSQL sees a deadlock only if both wait in its lock manager.

use super::store::SEGMENT;
use crate::pg::advisory_lock::limited_or;
use crate::pg::spi::ExtensionTable;
use crate::pg::xact;
use pgrx::pg_sys;
use std::time::Duration;

/// The lock that the worker takes to update a row.
const MODE: u32 = pg_sys::RowExclusiveLock;

/// Waits for these transactions. False if there are none. Where the time is over, calls what raises the error.
pub fn wait(creation: i64, left: Duration, time_out: impl FnOnce() -> bool) -> bool {
    let work = || {
        let free = SEGMENT.try_lock(MODE);
        let table = free.unwrap_or_else(|| SEGMENT.lock(MODE));
        // SAFETY: the table is locked.
        let holders = unsafe { xact::holders_of_row(table, c"segment_creation_key", c"creation", creation) };
        // Not held during the wait: ALTER TABLE would wait for it, and draws for that.
        ExtensionTable::unlock(table, MODE);
        let is_free = free.is_some() && holders.is_empty();
        holders.into_iter().for_each(xact::wait_for_end_of);
        !is_free
    };
    limited_or(left, work, time_out)
}
