//! The tables `idgen.lease` and `idgen.lease_definition`: reading the slots of a lease, locking them, and ending their terms.

use super::{errors, locks};
use crate::pg::spi::{ExtensionTable, Query, micros, optional, optional_text, value};
use crate::pg::{recovery, system_clock};
use crate::place;
use crate::settings;
use idgen_core::lease::{FIRST_SHARED, LeaseDefinition, Now, Session, Term};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::sync::OnceLock;

/// Slots and their terms. Queries on the other tables of leases use the rights of its owner, too.
pub static LEASE: ExtensionTable = ExtensionTable::new(c"lease");

pub static LEASE_DEFINITION: ExtensionTable = ExtensionTable::new(c"lease_definition");

/// The clock of leases, CLOCK_BOOTTIME, as rows name it. With the life of the data: clones of a machine share its boot, and
/// what is known of a term from before a failover, a restore or a loss of WAL may be older than its last renewal.
pub fn clock() -> &'static str {
    static CLOCK: OnceLock<String> = OnceLock::new();
    CLOCK.get_or_init(|| {
        let boot = system_clock::boot_clock_name().unwrap_or_else(|error| errors::no_boot_id(&error).raise());
        format!("{boot}/{}", place::number())
    })
}

/// What applies to a lease that is not defined.
pub fn undefined() -> LeaseDefinition {
    LeaseDefinition { slots: 1, ttl_us: settings::lease_ttl_us(), lock_delay_us: 0 }
}

/// The definition of a lease, and its terms.
pub struct LeaseState {
    /// The defaults if the lease is not defined.
    pub definition: LeaseDefinition,
    /// `None` if the lease is not defined.
    pub definer: Option<pg_sys::Oid>,
    pub terms: Vec<Term>,
}

pub const TERM: &str = "lease.slot, lease.token, lease.depth, lease.ends_us, lease.ttl_us, lease.revoked, \
                    lease.clock OPERATOR(pg_catalog.=) $2, lease.session, lease.session_key";

/// The number of columns of [`TERM`].
pub const TERM_COLUMNS: usize = 9;

/// One row without a term if the lease has none, and without a definition if it is not defined.
static READ: Query = Query::new(&LEASE, || {
    format!(
        "SELECT {TERM}, defined.slots, {}, {}, defined.owner::pg_catalog.oid \
         FROM (SELECT $1) AS asked (name) \
         LEFT JOIN idgen.lease_definition AS defined ON defined.name OPERATOR(pg_catalog.=) asked.name \
         LEFT JOIN idgen.lease ON lease.name OPERATOR(pg_catalog.=) asked.name AND lease.slot OPERATOR(pg_catalog.<) $3",
        micros("defined.ttl"),
        micros("defined.lock_delay")
    )
});

impl LeaseState {
    /// The committed state, whatever the transaction's snapshot shows.
    pub fn read(name: &str) -> Self {
        Self::read_rows(name, i32::MAX, false)
    }

    /// For a caller that wants a slot: the lock delay of an ended session begins when it is first seen here.
    pub fn read_to_acquire(name: &str) -> Self {
        Self::read_rows(name, i32::MAX, true)
    }

    /// The same without shared terms, for a caller that wants one.
    pub fn read_to_share(name: &str) -> Self {
        Self::read_rows(name, FIRST_SHARED, true)
    }

    /// Reads the rows of slots below a bound.
    fn read_rows(name: &str, below: i32, wants_slot: bool) -> Self {
        let rows = READ.read_latest(&[name.into(), clock().into(), below.into()], |row| {
            let definition: Option<LeaseDefinition> = optional(row, 10).map(|slots| LeaseDefinition {
                slots,
                ttl_us: value(row, 11),
                lock_delay_us: value(row, 12),
            });
            let delay_us = definition.filter(|_| wants_slot).map(|definition| definition.lock_delay_us);
            (definition, optional(row, 13), optional::<i32>(row, 1).map(|_| term(row, delay_us)))
        });
        let (definition, definer) =
            rows.first().map(|(definition, definer, _)| (*definition, *definer)).unwrap_or_default();
        Self {
            definition: definition.unwrap_or_else(undefined),
            definer,
            terms: rows.into_iter().filter_map(|(_, _, term)| term).collect(),
        }
    }

    pub fn now(&self) -> Now {
        now_for(&self.terms)
    }
}

/// The time to compare these terms with. Looks up when this server began to write only if a term depends on it.
pub fn now_for(terms: &[Term]) -> Now {
    let now_us = system_clock::boot_us();
    let needs_began = |term: &Term| !term.by_this_clock || term.session == Session::EndedWithServer;
    let began_us = terms.iter().any(needs_began).then(recovery::began_to_write_us).flatten();
    Now { now_us, began_us: began_us.unwrap_or(now_us) }
}

pub fn term(row: &SpiHeapTupleData, lock_delay_us: Option<i64>) -> Term {
    let session = optional(row, 8).zip(optional(row, 9));
    Term {
        slot: value(row, 1),
        token: value(row, 2),
        depth: value(row, 3),
        ends_us: value(row, 4),
        ttl_us: value(row, 5),
        revoked: value(row, 6),
        by_this_clock: value(row, 7),
        session: session.map_or(Session::None, |session| locks::session_state(session, lock_delay_us)),
    }
}

static SNAPSHOT_OF_SLOT: Query = LEASE.query("SELECT token, depth, ends_us FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2");

/// Token, depth and end of a slot's term, as the transaction's own snapshot shows them.
pub fn in_snapshot(name: &str, slot: i32) -> Option<(i64, i32, i64)> {
    SNAPSHOT_OF_SLOT
        .read_snapshot(&[name.into(), slot.into()], |row| (value(row, 1), value(row, 2), value(row, 3)))
        .pop()
}

static LOCK_ALL: Query = Query::new(&LEASE, || {
    format!("SELECT {TERM} FROM idgen.lease WHERE lease.name OPERATOR(pg_catalog.=) $1 ORDER BY lease.slot FOR UPDATE")
});

/// Locks all rows of a lease, after waiting for transactions that have changed or fenced them.
pub fn lock_all(name: &str) -> Vec<Term> {
    LOCK_ALL.write_losable(&[name.into(), clock().into()], |row| term(row, None))
}

static LOCK: Query = Query::new(&LEASE, || lock_text("SKIP LOCKED"));
static LOCK_WAITING: Query = Query::new(&LEASE, || lock_text(""));

fn lock_text(wait: &str) -> String {
    format!(
        "SELECT {TERM} FROM idgen.lease WHERE lease.name OPERATOR(pg_catalog.=) $1 \
         AND lease.slot OPERATOR(pg_catalog.=) $3 FOR UPDATE {wait}"
    )
}

/// Locks a slot's row against fences and all writers. `None` if another transaction has locked it, or it is gone.
pub fn lock(name: &str, slot: i32) -> Option<Term> {
    LOCK.write_losable(&[name.into(), clock().into(), slot.into()], |row| term(row, None)).pop()
}

/// The same, after waiting for transactions that have locked the row.
pub fn lock_slot_waiting(name: &str, slot: i32) {
    LOCK_WAITING.write_losable(&[name.into(), clock().into(), slot.into()], |_| ());
}

static END: Query = Query::new(&LEASE, || end_text(false));
static REVOKE: Query = Query::new(&LEASE, || end_text(true));

fn end_text(is_revoked: bool) -> String {
    format!(
        "UPDATE idgen.lease SET depth = 0, ends_us = $3, clock = $4, revoked = {is_revoked}, session = NULL, session_key = NULL \
         WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2 AND depth OPERATOR(pg_catalog.>) 0 \
         RETURNING token, owner"
    )
}

/// Ends an expired term whose row is locked. Its lock delay is over: the slot is free from now on.
pub fn end(name: &str, slot: i32) {
    let now_us = system_clock::boot_us();
    END.write_latest(&[name.into(), slot.into(), now_us.into(), clock().into()], |_| ());
}

static REMOVE: Query =
    LEASE.query("DELETE FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2");

/// Removes a row that is locked, and whose term is over.
pub fn remove(name: &str, slot: i32) {
    REMOVE.write_latest(&[name.into(), slot.into()], |_| ());
}

/// As an UPDATE locks it: a revocation waits for no fence, and for no grant that has not committed.
static LOCK_TERM: Query = LEASE.query(
    "SELECT token FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2 \
     AND depth OPERATOR(pg_catalog.>) 0 FOR NO KEY UPDATE",
);

/// Ends the term in a slot, and begins the lock delay when the row is locked. Returns the token and the owner of the term.
pub fn revoke(name: &str, slot: i32) -> Option<(i64, Option<String>)> {
    LOCK_TERM.write_losable(&[name.into(), slot.into()], |_| ());
    let now_us = system_clock::boot_us();
    let args = [name.into(), slot.into(), now_us.into(), clock().into()];
    REVOKE.write_latest(&args, |row| (value(row, 1), optional_text(row, 2))).pop()
}
