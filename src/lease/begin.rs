//! Statements that begin a term, and the fencing tokens that they draw.

use super::locks;
use super::store::{LEASE, clock};
use crate::pg::advisory_lock::{AdvisoryLock, LockKind, Mode, Scope};
use crate::pg::datum::Text;
use crate::pg::spi::{self, Query, optional, value};
use crate::pg::system_clock;
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

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
pub struct HeldTerm {
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

impl HeldTerm {
    /// The end of the term by the wall clock. `None` for a term that is bound to a session.
    pub fn expires_at(&self) -> Option<TimestampWithTimeZone> {
        if self.session_key.is_some() { None } else { system_clock::wall_time_of_boot_us(self.ends_us) }
    }
}

pub const HELD: &str = "slot, token, owner, acquired_at, ends_us, depth, session_key";

/// The columns of [`HELD`].
pub fn held(row: &SpiHeapTupleData) -> HeldTerm {
    HeldTerm {
        slot: value(row, 1),
        token: value(row, 2),
        owner: optional::<Text>(row, 3).map(String::from),
        acquired_at: value(row, 4),
        ends_us: value(row, 5),
        depth: value(row, 6),
        session_key: optional(row, 7),
    }
}

const NEXT_TOKEN: &str = "pg_catalog.nextval('idgen.lease_token'::pg_catalog.regclass)";

/// Replaces the term of a row. The arguments of each statement here: name, owner, role, data, ttl, end, clock, session, key
/// of the session, and one more.
pub fn update_text(condition: &str) -> String {
    format!(
        "UPDATE idgen.lease SET token = {NEXT_TOKEN}, depth = 1, owner = $2, role = $3::pg_catalog.regrole, data = $4, \
             acquired_at = pg_catalog.clock_timestamp(), ttl_us = $5, ends_us = $6, clock = $7, revoked = false, \
             session = $8, session_key = $9 \
         WHERE name OPERATOR(pg_catalog.=) $1 AND {condition} RETURNING {HELD}"
    )
}

/// Inserts the row of a slot or a shared term, unless it exists, or the lease has a row that meets the condition. The
/// last argument is the slot.
pub fn insert_text(unless: &str) -> String {
    format!(
        "INSERT INTO idgen.lease (name, slot, token, depth, owner, role, data, acquired_at, ttl_us, ends_us, clock, revoked, \
             session, session_key) \
         SELECT $1, $10, next.token, 1, $2, $3::pg_catalog.regrole, $4, pg_catalog.clock_timestamp(), $5, $6, $7, false, \
             $8, $9 \
         FROM (SELECT {NEXT_TOKEN} AS token WHERE NOT EXISTS ( \
                   SELECT FROM idgen.lease AS other WHERE other.name OPERATOR(pg_catalog.=) $1 AND {unless}) \
               OFFSET 0) AS next \
         ON CONFLICT (name, slot) DO NOTHING RETURNING {HELD}"
    )
}

static TAKE: Query = Query::new(&LEASE, || update_text("slot OPERATOR(pg_catalog.=) $10"));
static INSERT: Query = Query::new(&LEASE, || insert_text("false"));

/// Begins a term in a slot. `None` if its row is gone.
pub fn take(name: &str, slot: i32, holder: NewHolder, ttl_us: i64) -> Option<HeldTerm> {
    begin(&TAKE, name, holder, ttl_us, slot.into())
}

/// Inserts a slot's row with a term. `None` if another transaction has inserted it.
pub fn insert(name: &str, slot: i32, holder: NewHolder, ttl_us: i64) -> Option<HeldTerm> {
    begin(&INSERT, name, holder, ttl_us, slot.into())
}

/// Runs one of these statements. `None` if it has changed no row.
pub fn begin(query: &Query, name: &str, holder: NewHolder, ttl_us: i64, more: DatumWithOid) -> Option<HeldTerm> {
    // SAFETY: a jsonb of the running call.
    let data = unsafe { DatumWithOid::new(holder.data, pg_sys::JSONBOID) };
    let session = holder.bind_session.then(locks::new_binding).unzip();
    let args = [
        name.into(),
        holder.owner.into(),
        spi::user().into(),
        data,
        ttl_us.into(),
        system_clock::boot_us().saturating_add(ttl_us).into(),
        clock().into(),
        session.0.into(),
        session.1.into(),
        more,
    ];
    with_tokens(|| query.write_latest(&args, held).pop())
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

static DRAW_TOKEN: Query = Query::new(&LEASE, || format!("SELECT {NEXT_TOKEN}"));

/// A token that no term gets. All later tokens are greater.
pub fn next_token() -> i64 {
    let next = || DRAW_TOKEN.write_losable(&[], |row| value(row, 1)).pop();
    with_tokens(next).expect("a sequence has a next value")
}
