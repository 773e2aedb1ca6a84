//! The rows of terms: statements that begin a term, and the fencing tokens that they draw; and statements on the term of a
//! token, whose holder's role must be one that the caller may act as.

use super::locks;
use super::store::{LEASE, clock};
use crate::pg::advisory_lock::{AdvisoryLock, LockKind, Mode, Scope};
use crate::pg::spi::{Query, optional, optional_text, text, user, value};
use crate::pg::system_clock;
use idgen_core::lease::FIRST_SHARED;
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
        owner: optional_text(row, 3),
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
        user().into(),
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
fn with_tokens<R>(work: impl FnOnce() -> R) -> R {
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

/// The term of a token, if the caller may act as the holder's role.
const BY_TOKEN: &str = "lease.name OPERATOR(pg_catalog.=) $1 AND lease.token OPERATOR(pg_catalog.=) $2 \
                        AND lease.depth OPERATOR(pg_catalog.>) 0 \
                        AND pg_catalog.pg_has_role($3, lease.role::pg_catalog.oid, 'USAGE')";

static LOCK: Query =
    Query::new(&LEASE, || format!("SELECT lease.slot FROM idgen.lease WHERE {BY_TOKEN} FOR NO KEY UPDATE"));
static RENEW: Query = Query::new(&LEASE, || {
    format!(
        "UPDATE idgen.lease SET ttl_us = COALESCE($4, ttl_us), clock = $6, \
         ends_us = $5 OPERATOR(pg_catalog.+) COALESCE($4, ttl_us) WHERE {BY_TOKEN} RETURNING {HELD}"
    )
});

/// Extends a term to its ttl from now on, or to the ttl given. `None` if the token has no term. The clock is read when the row
/// is locked: a renewal that has waited for another one would move the end back.
pub fn renew(name: &str, token: i64, ttl_us: Option<i64>) -> Option<HeldTerm> {
    LOCK.write_losable(&[name.into(), token.into(), user().into()], |_| ()).pop()?;
    extend(&RENEW, name, token, ttl_us)
}

fn extend(query: &Query, name: &str, token: i64, ttl_us: Option<i64>) -> Option<HeldTerm> {
    let (now_us, clock) = (system_clock::boot_us(), clock());
    let args = [name.into(), token.into(), user().into(), ttl_us.into(), now_us.into(), clock.into()];
    query.write_latest(&args, held).pop()
}

static LOCK_MANY: Query = LEASE.query(
    "SELECT lease.name, lease.slot FROM idgen.lease \
     JOIN (SELECT DISTINCT name, token FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) AS given (name, token)) \
     AS given ON given.name OPERATOR(pg_catalog.=) lease.name AND given.token OPERATOR(pg_catalog.=) lease.token \
     WHERE lease.depth OPERATOR(pg_catalog.>) 0 AND pg_catalog.pg_has_role($3, lease.role::pg_catalog.oid, 'USAGE') \
     ORDER BY lease.name, lease.slot FOR NO KEY UPDATE OF lease",
);
static RENEW_MANY: Query = LEASE.query(
    "UPDATE idgen.lease SET ttl_us = COALESCE($3, ttl_us), clock = $5, \
     ends_us = $4 OPERATOR(pg_catalog.+) COALESCE($3, ttl_us) \
     FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) AS locked (name, slot) \
     WHERE locked.name OPERATOR(pg_catalog.=) lease.name AND locked.slot OPERATOR(pg_catalog.=) lease.slot \
     RETURNING lease.name, lease.slot, lease.token, lease.ends_us, lease.session_key",
);

/// One of several terms that were renewed.
pub struct Renewed {
    pub name: String,
    pub slot: i32,
    pub token: i64,
    pub ends_us: i64,
    pub session_key: Option<i64>,
}

/// Renews the terms that exist. Locks their rows in the order of names, so that concurrent calls cannot deadlock, and before
/// it reads the clock.
pub fn renew_many(names: Vec<&str>, tokens: Vec<i64>, ttl_us: Option<i64>) -> Vec<Renewed> {
    let lock = [names.into(), tokens.into(), user().into()];
    let locked = LOCK_MANY.write_losable(&lock, |row| (text(row, 1), value::<i32>(row, 2)));
    let (names, slots): (Vec<String>, Vec<i32>) = locked.into_iter().unzip();
    let (now_us, clock) = (system_clock::boot_us(), clock());
    let args = [names.into(), slots.into(), ttl_us.into(), now_us.into(), clock.into()];
    let mut renewed = RENEW_MANY.write_latest(&args, |row| Renewed {
        name: text(row, 1),
        slot: value(row, 2),
        token: value(row, 3),
        ends_us: value(row, 4),
        session_key: optional(row, 5),
    });
    renewed.sort_by(|a, b| (&a.name, a.slot).cmp(&(&b.name, b.slot)));
    renewed
}

static UNBIND: Query = LEASE.query(
    "UPDATE idgen.lease SET session = NULL, session_key = NULL \
     WHERE name OPERATOR(pg_catalog.=) $1 AND token OPERATOR(pg_catalog.=) $2",
);

/// Releases a term from its session: it lasts its time.
pub fn unbind(name: &str, token: i64) {
    UNBIND.write_latest(&[name.into(), token.into()], |_| ());
}

static DEEPEN: Query = Query::new(&LEASE, || {
    format!(
        "UPDATE idgen.lease SET depth = depth OPERATOR(pg_catalog.+) 1, ttl_us = COALESCE($4, ttl_us), clock = $6, \
         ends_us = GREATEST($5 OPERATOR(pg_catalog.+) COALESCE($4, ttl_us), \
                            CASE WHEN clock OPERATOR(pg_catalog.=) $6 THEN ends_us END) \
         WHERE {BY_TOKEN} RETURNING {HELD}"
    )
});

/// Acquires a term once more. `None` if the token has no term.
pub fn deepen(name: &str, token: i64, ttl_us: Option<i64>) -> Option<HeldTerm> {
    extend(&DEEPEN, name, token, ttl_us)
}

static REMOVE: Query = Query::new(&LEASE, || {
    format!(
        "DELETE FROM idgen.lease WHERE ctid OPERATOR(pg_catalog.=) (SELECT lease.ctid FROM idgen.lease WHERE {BY_TOKEN} \
         AND lease.depth OPERATOR(pg_catalog.=) 1 AND (lease.slot OPERATOR(pg_catalog.>=) {FIRST_SHARED} OR NOT EXISTS ( \
             SELECT FROM idgen.lease_definition AS defined WHERE defined.name OPERATOR(pg_catalog.=) lease.name)) \
         FOR UPDATE SKIP LOCKED) RETURNING 0, slot, owner"
    )
});
static RELEASE: Query = Query::new(&LEASE, || release_text(""));
static RELEASE_SLOT: Query =
    Query::new(&LEASE, || release_text(&format!("AND lease.slot OPERATOR(pg_catalog.<) {FIRST_SHARED}")));

fn release_text(condition: &str) -> String {
    format!(
        "UPDATE idgen.lease SET depth = depth OPERATOR(pg_catalog.-) 1, \
         ends_us = CASE WHEN depth OPERATOR(pg_catalog.=) 1 THEN $4 ELSE ends_us END, \
         clock = CASE WHEN depth OPERATOR(pg_catalog.=) 1 THEN $5 ELSE clock END, \
         session = CASE WHEN depth OPERATOR(pg_catalog.>) 1 THEN session END, \
         session_key = CASE WHEN depth OPERATOR(pg_catalog.>) 1 THEN session_key END, revoked = false \
         WHERE {BY_TOKEN} {condition} RETURNING depth, slot, owner"
    )
}

/// A term that was released once.
pub struct Released {
    /// How often it is still to be released.
    pub depth: i32,
    pub slot: i32,
    pub owner: Option<String>,
}

/// Releases a term once. `None` if the token has no term. The token stays in the row until the next grant, which waits for
/// transactions that have fenced by it. The row of an undefined lease, and that of a shared term, is deleted unless a
/// transaction has fenced, so that such rows do not accumulate.
pub fn release(name: &str, token: i64, is_defined: bool) -> Option<Released> {
    let (user, now_us, clock) = (user(), system_clock::boot_us(), clock());
    let released =
        |row: &SpiHeapTupleData| Released { depth: value(row, 1), slot: value(row, 2), owner: optional_text(row, 3) };
    let update = |query: &Query| {
        let args = [name.into(), token.into(), user.into(), now_us.into(), clock.into()];
        query.write_losable(&args, released).pop()
    };
    let remove = || REMOVE.write_losable(&[name.into(), token.into(), user.into()], released).pop();
    let at_once = if is_defined { update(&RELEASE_SLOT) } else { None };
    at_once.or_else(remove).or_else(|| update(&RELEASE))
}

static FENCE: Query =
    Query::new(&LEASE, || format!("SELECT lease.slot FROM idgen.lease WHERE {BY_TOKEN} FOR KEY SHARE"));

/// Locks the row against take-overs until the transaction ends, after waiting for one that is under way. Returns the slot;
/// `None` if the token has no term.
pub fn fence(name: &str, token: i64) -> Option<i32> {
    FENCE.write_losable(&[name.into(), token.into(), user().into()], |row| value(row, 1)).pop()
}

static SLOT_OF: Query = LEASE
    .query("SELECT slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND token OPERATOR(pg_catalog.=) $2");

/// The slot of a token, even if its term has ended.
pub fn slot_of(name: &str, token: i64) -> Option<i32> {
    SLOT_OF.read_latest(&[name.into(), token.into()], |row| value(row, 1)).pop()
}

static FOREIGN_ROLE: Query = LEASE.query(
    "SELECT role::pg_catalog.text FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 \
     AND token OPERATOR(pg_catalog.=) $2 AND depth OPERATOR(pg_catalog.>) 0 \
     AND NOT pg_catalog.pg_has_role($3, role::pg_catalog.oid, 'USAGE')",
);

/// The role of the holder, if the caller may not act as it.
pub fn foreign_role(name: &str, token: i64) -> Option<String> {
    FOREIGN_ROLE.read_latest(&[name.into(), token.into(), user().into()], |row| text(row, 1)).pop()
}

/// True if the transaction's own snapshot shows the token.
pub fn is_in_snapshot(name: &str, token: i64) -> bool {
    !SLOT_OF.read_snapshot(&[name.into(), token.into()], |_| ()).is_empty()
}
