//! The rows of `idgen.lease`: a slot or a shared term each. They are reached by key and locked in one version, so that no one
//! waits behind a lock that a caller has no use for.
//!
//! A fence shares the key of its row until its transaction ends. So only the holder of an exclusive lock may change a token or
//! delete a row, and those functions take the row locked like that.

use super::{errors, locks};
use crate::pg::advisory_lock::{Limit, is_lock_timeout, with_lock_timeout};
use crate::pg::datum;
use crate::pg::row::{Key, Locked, NewValue, Row, RowTable, Rows, Wait};
use crate::pg::spi::{ExtensionTable, Query, value};
use crate::pg::{recovery, system_clock, xact};
use crate::place;
use crate::settings;
use idgen_core::lease::{Change, FIRST_SHARED, HeldRow, LeaseDefinition, Now, Session, Term, clock_name};
use pgrx::prelude::*;
use std::sync::OnceLock;

/// Slots and their terms. Queries on the other tables of leases use the rights of its owner, too.
pub static LEASE: ExtensionTable = ExtensionTable::new(c"lease");

pub static LEASE_DEFINITION: ExtensionTable = ExtensionTable::new(c"lease_definition");

pub const COLUMNS: usize = 14;

pub static ROWS: RowTable<COLUMNS> = RowTable::new(
    &LEASE,
    [
        c"name",
        c"slot",
        c"token",
        c"depth",
        c"owner",
        c"role",
        c"data",
        c"acquired_at",
        c"ttl_us",
        c"ends_us",
        c"clock",
        c"revoked",
        c"session",
        c"session_key",
    ],
);

pub mod column {
    pub const SLOT: usize = 1;
    pub const TOKEN: usize = 2;
    pub const DEPTH: usize = 3;
    pub const OWNER: usize = 4;
    pub const ROLE: usize = 5;
    pub const DATA: usize = 6;
    pub const ACQUIRED_AT: usize = 7;
    pub const TTL_US: usize = 8;
    pub const ENDS_US: usize = 9;
    pub const CLOCK: usize = 10;
    pub const REVOKED: usize = 11;
    pub const SESSION: usize = 12;
    pub const SESSION_KEY: usize = 13;
}
use column::*;

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
        by_this_clock: is_by_this_clock(row),
        session: session.map_or(Session::None, |session| locks::session_state(session, lock_delay_us)),
    }
}

fn is_by_this_clock(row: &LeaseRow) -> bool {
    row.has_text(CLOCK, clock())
}

pub fn slot_key(name: &str, slot: i32) -> [Key<'_>; 2] {
    [Key::Text(name), Key::Int(slot)]
}

/// The row, as far as the procedures of a holder look at it.
pub fn held(row: &LeaseRow) -> HeldRow {
    HeldRow { token: row.value(TOKEN), depth: row.value(DEPTH), ttl_us: row.value(TTL_US) }
}

/// The values of a slot whose term has ended.
pub fn freed(since_us: i64, revoked: bool) -> [NewValue; 6] {
    [
        (DEPTH, 0.into_datum()),
        (ENDS_US, since_us.into_datum()),
        (CLOCK, clock_datum()),
        (REVOKED, revoked.into_datum()),
        (SESSION, None),
        (SESSION_KEY, None),
    ]
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
        Change::Free { since_us, revoked } => freed(since_us, revoked).to_vec(),
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
    let is_missed = |xid| unsafe { pg_sys::XidInMVCCSnapshot(xid, own) && pg_sys::TransactionIdDidCommit(xid) };
    let has_changed = |row: &LeaseRow| {
        // SAFETY: a row of the scan below.
        let replaced_by = unsafe { row.replaced_by() };
        [row.inserted_by(), replaced_by].into_iter().flatten().any(is_missed).then_some(())
    };
    ROWS.read(|rows| rows.find_in_all(&[Key::Text(name), slots], has_changed)).is_some()
}

/// Waits for all other transactions that have begun a term of the lease. The wait is in the lock manager, which detects
/// deadlocks.
pub fn wait_for_grants(name: &str) {
    while let Some(Uncommitted { xid, .. }) = find(name, |_| true) {
        xact::wait_for_end_of(xid);
    }
}

/// The process that runs a transaction, which is no subtransaction: these lock their id only until they commit.
static PROCESS: Query = Query::of_statistics(
    "SELECT pid FROM pg_catalog.pg_locks WHERE locktype OPERATOR(pg_catalog.=) 'transactionid' AND granted \
     AND mode OPERATOR(pg_catalog.=) 'ExclusiveLock' \
     AND transactionid OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.xid",
);

/// A term that another session has acquired and not committed, in this slot or shared: its slot, and the process of the
/// session.
pub fn slot_and_process(name: &str, slot: i32) -> Option<(i32, i32)> {
    let grant = find(name, |granted| granted == slot || granted >= FIRST_SHARED)?;
    // SAFETY: the id of a transaction that was running.
    let xid = unsafe { pg_sys::SubTransGetTopmostTransaction(grant.xid) };
    let process = PROCESS.read_latest(&[i64::from(u32::from(xid)).into()], |row| value(row, 1)).pop()?;
    Some((grant.slot, process))
}

struct Uncommitted {
    slot: i32,
    xid: pg_sys::TransactionId,
}

/// A running transaction of another session that has written a version with a token that was never committed, in such a
/// slot. Renewals and releases keep the token.
fn find(name: &str, is_wanted: impl Fn(i32) -> bool) -> Option<Uncommitted> {
    let key = [Key::Text(name)];
    let committed: Vec<i64> = ROWS.read(|rows| rows.latest(|latest| latest.all(&key, |row| row.value(TOKEN))));
    let uncommitted = |row: &LeaseRow| {
        let xid = row.inserted_by()?;
        // SAFETY: the id of a transaction.
        let is_of_another =
            unsafe { !pg_sys::TransactionIdIsCurrentTransactionId(xid) && pg_sys::TransactionIdIsInProgress(xid) };
        let (slot, token) = (row.value(SLOT), row.value::<i64>(TOKEN));
        (is_of_another && is_wanted(slot) && !committed.contains(&token)).then_some(Uncommitted { slot, xid })
    };
    ROWS.read(|rows| rows.find_in_all(&key, uncommitted))
}
