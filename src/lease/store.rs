//! The tables `idgen.lease` and `idgen.lease_definition`, and the sequence `idgen.lease_token`. This file reads the slots of
//! a lease, locks them and grants one.

use super::{errors, locks};
use crate::pg::advisory_lock::{AdvisoryLock, LockKind, Mode, Scope};
use crate::pg::datum::Text;
use crate::pg::spi::{self, ExtensionTable, Query, optional, value};
use crate::pg::{recovery, system_clock};
use crate::place;
use crate::settings;
use idgen_core::lease::{FIRST_SHARED, LeaseDefinition, Now, Session, Term};
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

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
    LeaseDefinition { first_slot: 0, slots: 1, ttl_us: settings::lease_ttl_us(), lock_delay_us: 0 }
}

/// The definition of a lease, and its terms.
pub struct LeaseState {
    /// The defaults if the lease is not defined.
    pub definition: LeaseDefinition,
    /// `None` if the lease is not defined.
    pub definer: Option<pg_sys::Oid>,
    pub terms: Vec<Term>,
}

/// What the holder of a new term says of itself.
#[derive(Clone, Copy)]
pub struct NewHolder<'a> {
    pub owner: Option<&'a str>,
    /// A jsonb.
    pub data: Option<pg_sys::Datum>,
    /// The term ends with the session.
    pub bind_session: bool,
}

/// A term that the caller has acquired, deepened or renewed.
pub struct Granted {
    pub slot: i32,
    pub token: i64,
    pub owner: Option<String>,
    pub acquired_at: TimestampWithTimeZone,
    /// By the clock of leases.
    pub ends_us: i64,
    pub depth: i32,
    /// `None` unless the term is bound to a session.
    pub session_key: Option<i64>,
}

impl Granted {
    /// The end of the term by the wall clock. `None` for a term that is bound to a session.
    pub fn expires_at(&self) -> Option<TimestampWithTimeZone> {
        if self.session_key.is_some() { None } else { system_clock::wall_time_of_boot_us(self.ends_us) }
    }
}

pub const TERM: &str = "lease.slot, lease.token, lease.depth, lease.ends_us, lease.ttl_us, lease.revoked, \
                    lease.clock OPERATOR(pg_catalog.=) $2, lease.session, lease.session_key";

/// An interval too long for a bigint of microseconds never ends.
const MICROS: &str =
    "LEAST(pg_catalog.extract('epoch', {}) OPERATOR(pg_catalog.*) 1000000, 9223372036854775807)::bigint";

pub const GRANTED: &str = "slot, token, owner, acquired_at, ends_us, depth, session_key";

pub fn micros(column: &str) -> String {
    MICROS.replace("{}", column)
}

/// One row without a term if the lease has none, and without a definition if it is not defined.
static READ: Query = Query::new(&LEASE, || {
    format!(
        "SELECT {TERM}, defined.slots, {}, {}, defined.first_slot, defined.owner::pg_catalog.oid \
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
                first_slot: value(row, 13),
                slots,
                ttl_us: value(row, 11),
                lock_delay_us: value(row, 12),
            });
            let delay_us = definition.filter(|_| wants_slot).map(|definition| definition.lock_delay_us);
            (definition, optional(row, 14), optional::<i32>(row, 1).map(|_| term(row, delay_us)))
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

static TAKE: Query = Query::new(&LEASE, || {
    format!(
        "UPDATE idgen.lease SET token = pg_catalog.nextval('idgen.lease_token'::pg_catalog.regclass), depth = 1, owner = $3, \
         role = $4::pg_catalog.regrole, data = $5, acquired_at = pg_catalog.clock_timestamp(), ttl_us = $6, ends_us = $7, \
         clock = $8, revoked = false, session = $9, session_key = $10 \
         WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2 RETURNING {GRANTED}"
    )
});
static INSERT: Query = Query::new(&LEASE, || {
    format!(
        "INSERT INTO idgen.lease (name, slot, token, depth, owner, role, data, acquired_at, ttl_us, ends_us, clock, revoked, \
         session, session_key) VALUES ($1, $2, pg_catalog.nextval('idgen.lease_token'::pg_catalog.regclass), 1, $3, \
         $4::pg_catalog.regrole, $5, pg_catalog.clock_timestamp(), $6, $7, $8, false, $9, $10) \
         ON CONFLICT (name, slot) DO NOTHING RETURNING {GRANTED}"
    )
});

/// Begins a term in a slot. `None` if its row is gone.
pub fn take(name: &str, slot: i32, holder: NewHolder, ttl_us: i64) -> Option<Granted> {
    with_tokens(|| grant(&TAKE, name, slot, holder, ttl_us))
}

/// Inserts a slot's row with a term. `None` if another transaction has inserted it.
pub fn insert(name: &str, slot: i32, holder: NewHolder, ttl_us: i64) -> Option<Granted> {
    with_tokens(|| grant(&INSERT, name, slot, holder, ttl_us))
}

fn grant(query: &Query, name: &str, slot: i32, holder: NewHolder, ttl_us: i64) -> Option<Granted> {
    // SAFETY: a jsonb of the running call.
    let data = unsafe { DatumWithOid::new(holder.data, pg_sys::JSONBOID) };
    let ends_us = system_clock::boot_us().saturating_add(ttl_us);
    let session = holder.bind_session.then(locks::new_binding).unzip();
    let args = [
        name.into(),
        slot.into(),
        holder.owner.into(),
        spi::user().into(),
        data,
        ttl_us.into(),
        ends_us.into(),
        clock().into(),
        session.0.into(),
        session.1.into(),
    ];
    query.write_latest(&args, granted).pop()
}

pub fn granted(row: &SpiHeapTupleData) -> Granted {
    Granted {
        slot: value(row, 1),
        token: value(row, 2),
        owner: optional::<Text>(row, 3).map(String::from),
        acquired_at: value(row, 4),
        ends_us: value(row, 5),
        depth: value(row, 6),
        session_key: optional(row, 7),
    }
}

static RAISE_TOKENS: Query = LEASE.query(
    "SELECT pg_catalog.setval('idgen.lease_token'::pg_catalog.regclass, GREATEST(last_value, \
     (pg_catalog.extract('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint)) \
     FROM idgen.lease_token",
);

/// Runs work that draws fencing tokens from the sequence.
///
/// A sequence survives a crash. After a failover to a standby that lags behind, or in a restored database, it can be
/// behind. So each process first raises it to the microseconds since 1970. No server draws a million tokens a second,
/// so wherever clocks move forward, that is past every token drawn before.
///
/// A process raises the sequence under an exclusive lock. If it stopped between reading and setting, it could otherwise
/// set the sequence back below tokens that other processes have drawn since.
pub fn with_tokens<R>(work: impl FnOnce() -> R) -> R {
    if !has_raised_tokens() {
        with_token_lock(Mode::Exclusive, || RAISE_TOKENS.write_losable(&[], |_| ()));
        HAS_RAISED_TOKENS.store(true, Relaxed);
    }
    with_token_lock(Mode::Shared, work)
}

static HAS_RAISED_TOKENS: AtomicBool = AtomicBool::new(false);

/// True if this process has raised the sequence. The transaction that raises it keeps a lock on it until its end.
pub fn has_raised_tokens() -> bool {
    HAS_RAISED_TOKENS.load(Relaxed)
}

/// Held shared while a token is drawn, exclusively while the sequence is raised. The key is 0.
const TOKENS: LockKind = LockKind::new(b"lt");

/// An error releases the lock, which belongs to the transaction.
fn with_token_lock<R>(mode: Mode, work: impl FnOnce() -> R) -> R {
    let lock = AdvisoryLock::new(TOKENS, 0, mode);
    lock.acquire(Scope::Transaction);
    let result = work();
    lock.release(Scope::Transaction);
    result
}

static NEXT_TOKEN: Query = LEASE.query("SELECT pg_catalog.nextval('idgen.lease_token'::pg_catalog.regclass)");

/// A token that no term gets. All later tokens are greater.
pub fn next_token() -> i64 {
    let next = || NEXT_TOKEN.write_losable(&[], |row| value(row, 1)).pop();
    with_tokens(next).expect("a sequence has a next value")
}

static END: Query = LEASE.query(
    "UPDATE idgen.lease SET depth = 0, ends_us = $3, clock = $4, revoked = false, session = NULL, session_key = NULL \
     WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2 AND depth OPERATOR(pg_catalog.>) 0",
);

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
static REVOKE: Query = LEASE.query(
    "UPDATE idgen.lease SET depth = 0, ends_us = $3, clock = $4, revoked = true, session = NULL, session_key = NULL \
     WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2 AND depth OPERATOR(pg_catalog.>) 0 \
     RETURNING token",
);

/// Ends the term in a slot, and begins the lock delay when the row is locked. Returns the token of the term.
pub fn revoke(name: &str, slot: i32) -> Option<i64> {
    LOCK_TERM.write_losable(&[name.into(), slot.into()], |_| ());
    let now_us = system_clock::boot_us();
    let args = [name.into(), slot.into(), now_us.into(), clock().into()];
    REVOKE.write_latest(&args, |row| value(row, 1)).pop()
}
