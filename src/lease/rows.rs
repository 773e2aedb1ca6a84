//! The rows of `idgen.lease`: a slot or a shared term each. They are reached by key and locked in one version, so that no one
//! waits behind a lock that a caller has no use for.
//!
//! A fence shares the key of its row until its transaction ends. So only the holder of an exclusive lock may change a token or
//! delete a row, and those functions take the row locked like that.

use super::{errors, locks};
use crate::pg::advisory_lock::{Limit, is_lock_timeout, with_lock_timeout};
use crate::pg::datum;
use crate::pg::row::{Key, Locked, NewValue, Row, RowTable, Rows, Wait};
use crate::pg::spi::ExtensionTable;
use crate::pg::{recovery, system_clock, xact};
use crate::place;
use crate::settings;
use idgen_core::lease::{Change, FIRST_SHARED, HeldRow, LeaseDefinition, Now, Term, clock_name};
use pgrx::prelude::*;
use std::sync::OnceLock;

/// Slots and their terms. Queries on the other tables of leases use the rights of its owner, too.
pub static LEASE: ExtensionTable = ExtensionTable::new(c"lease");

pub static LEASE_DEFINITION: ExtensionTable = ExtensionTable::new(c"lease_definition");

/// The places by which callers count columns, and the names. Only keys have the first one.
macro_rules! columns {
    ($($column:ident = $name:literal),*) => {
        columns!(0; $($column)*);
        pub const NAMES: [&std::ffi::CStr; COUNT] = [$($name),*];
    };
    ($place:expr; $column:ident $($others:ident)*) => {
        pub const $column: usize = $place;
        columns!($place + 1; $($others)*);
    };
    ($place:expr;) => { pub const COUNT: usize = $place; };
}

pub mod column {
    columns! {
        _NAME = c"name", SLOT = c"slot", TOKEN = c"token", DEPTH = c"depth", OWNER = c"owner", ROLE = c"role", DATA = c"data",
        ACQUIRED_AT = c"acquired_at", TTL_US = c"ttl_us", ENDS_US = c"ends_us", CLOCK = c"clock", REVOKED = c"revoked",
        SESSION = c"session", SESSION_KEY = c"session_key"
    }
}
pub use column::COUNT as COLUMNS;
use column::*;

pub static ROWS: RowTable<COLUMNS> = RowTable::new(&LEASE, NAMES, 2);

pub type LeaseRow<'a> = Row<'a, COLUMNS>;
pub type LeaseRows = Rows<COLUMNS>;
pub type LockedRow<'a> = Locked<'a, COLUMNS>;

/// The clock of leases, CLOCK_BOOTTIME, as rows name it.
pub fn clock() -> &'static str {
    static CLOCK: OnceLock<String> = OnceLock::new();
    CLOCK.get_or_init(|| {
        let boot = system_clock::boot_clock_name().unwrap_or_else(|error| errors::no_boot_id(&error).raise());
        clock_name(boot, place::life())
    })
}

pub fn clock_datum() -> Option<pg_sys::Datum> {
    datum::Text::from(clock()).into_datum()
}

/// What applies to a lease that is not defined.
pub fn undefined() -> LeaseDefinition {
    LeaseDefinition { slots: 1, ttl_us: settings::lease_ttl_us(), lock_delay_us: 0 }
}

/// The time to compare these terms with. Looks up when this server began to write only if a term depends on it.
pub fn now_for(terms: &[Term]) -> Now {
    let now_us = system_clock::boot_us();
    let began_us = terms.iter().any(Term::counts_from_the_beginning).then(recovery::began_to_write_us).flatten();
    Now { now_us, began_us: began_us.unwrap_or(now_us) }
}

/// The row as a term. An ended session is remembered if its slot has this lock delay.
pub fn term(row: &LeaseRow, lock_delay_us: Option<i64>) -> Term {
    let session = row.optional(SESSION).zip(row.optional(SESSION_KEY));
    Term {
        slot: row.value(SLOT),
        token: row.value(TOKEN),
        depth: row.value(DEPTH),
        ends_us: row.value(ENDS_US),
        ttl_us: row.value(TTL_US),
        revoked: row.value(REVOKED),
        by_this_clock: row.has_text(CLOCK, clock()),
        session: locks::session_state(session, lock_delay_us),
    }
}

pub fn slot_key(name: &str, slot: i32) -> [Key<'_>; 2] {
    [Key::Text(name), Key::Int(slot)]
}

/// The row, as far as the procedures of a holder look at it.
pub fn held(row: &LeaseRow) -> HeldRow {
    HeldRow { token: row.value(TOKEN), depth: row.value(DEPTH), ttl_us: row.value(TTL_US) }
}

pub fn new_values(change: Change) -> Vec<NewValue> {
    match change {
        Change::Extend { depth, ttl_us, ends_us } => vec![
            (DEPTH, depth.into_datum()),
            (TTL_US, ttl_us.into_datum()),
            (CLOCK, clock_datum()),
            (ENDS_US, ends_us.into_datum()),
        ],
        Change::Release { depth } => vec![(DEPTH, depth.into_datum())],
        Change::Free { since_us, revoked } => vec![
            (DEPTH, 0.into_datum()),
            (ENDS_US, since_us.into_datum()),
            (CLOCK, clock_datum()),
            (REVOKED, revoked.into_datum()),
            (SESSION, None),
            (SESSION_KEY, None),
        ],
    }
}

/// Waits for transactions that have locked these rows: they have fenced, or are about to take the slots. The wait is in the
/// lock manager, which detects deadlocks. It keeps no lock on a row, so renewals pass.
pub fn wait_for_rows(name: &str, slots: &[i32], limit: Limit) {
    for slot in slots {
        // Attempt again after a while, long enough to detect a deadlock. Other slots may become free sooner; this term may be
        // renewed, and its fences wait for this one.
        // SAFETY: reads a setting.
        let longest_ms = unsafe { pg_sys::DeadlockTimeout }.saturating_add(1000);
        let ms = limit.left_ms().map_or(longest_ms, |left_ms| left_ms.min(longest_ms));
        if ms == 0 {
            break;
        }
        let rolled_back = with_lock_timeout(Some(ms), || {
            lock_slot(name, *slot);
            None::<()>
        });
        if let Err(cause) = rolled_back
            && !is_lock_timeout(&cause)
        {
            cause.rethrow();
        }
    }
}

/// Locks a slot's row against fences and all writers until the transaction ends, after waiting for those that have locked it.
pub fn lock_slot(name: &str, slot: i32) {
    ROWS.write(|rows| rows.lock(&slot_key(name, slot), Wait::Block, |_| true).map(drop));
}

/// True if a committed transaction that the transaction's own snapshot does not show has inserted, changed or deleted
/// one of these rows of a lease. VACUUM keeps the dead versions as long as that snapshot exists.
pub fn have_changed(name: &str, slots: Key) -> bool {
    // SAFETY: a transaction with one snapshot keeps it until its end.
    let own = unsafe { pg_sys::GetTransactionSnapshot() };
    // SAFETY: as above.
    let is_missed = |xid| unsafe { pg_sys::XidInMVCCSnapshot(xid, own) } && xact::is_committed(xid);
    let has_changed = |row: &LeaseRow| {
        // SAFETY: a row of the scan below.
        let replaced_by = unsafe { row.replaced_by() };
        [row.inserted_by(), replaced_by].into_iter().flatten().any(is_missed).then_some(())
    };
    ROWS.read(|rows| rows.find_in_all(&[Key::Text(name), slots], has_changed)).is_some()
}

/// Waits for the transactions of other sessions that have begun a term of the lease before this call. Later ones can follow each
/// other without a gap, so a wait for them too might never end. The wait is in the lock manager, which detects deadlocks.
pub fn wait_for_grants(name: &str) {
    uncommitted(name).into_iter().for_each(|(_, xid)| xact::wait_for_end_of(xid));
}

/// A term that another session has acquired and not committed, in this slot or shared: its slot, and the process of the
/// session.
pub fn slot_and_process(name: &str, slot: i32) -> Option<(i32, i32)> {
    let is_wanted = |(granted, _): &(i32, _)| *granted == slot || *granted >= FIRST_SHARED;
    let (slot, xid) = uncommitted(name).into_iter().find(is_wanted)?;
    // SAFETY: the id of a transaction that was running. 0 if it has ended since.
    let process = unsafe { pg_sys::BackendXidGetPid(pg_sys::SubTransGetTopmostTransaction(xid)) };
    (process != 0).then_some((slot, process))
}

/// Slots, with the running transactions of other sessions that have written a version of them with a token that was never
/// committed. Renewals and releases keep the token.
fn uncommitted(name: &str) -> Vec<(i32, pg_sys::TransactionId)> {
    let key = [Key::Text(name)];
    let committed: Vec<i64> = ROWS.read(|rows| rows.latest(|latest| latest.all(&key, |row| row.value(TOKEN))));
    let mut found = Vec::new();
    let note = |row: &LeaseRow| {
        let xid = row.inserted_by()?;
        // SAFETY: the id of a transaction.
        let is_of_another = !xact::is_current(xid) && unsafe { pg_sys::TransactionIdIsInProgress(xid) };
        let (slot, token) = (row.value(SLOT), row.value::<i64>(TOKEN));
        if is_of_another && !committed.contains(&token) {
            found.push((slot, xid));
        }
        None::<()>
    };
    ROWS.read(|rows| rows.find_in_all(&key, note));
    found
}
