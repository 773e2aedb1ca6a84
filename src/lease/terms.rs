//! The terms of holders: beginning one, with the fencing token that is drawn for it, and what a holder does by its token.

use super::rows::column::*;
use super::rows::{self, LEASE, LeaseRow, LeaseRows, LockedRow, ROWS, clock, clock_datum, is_current, slot_key};
use super::stats;
use crate::pg::advisory_lock::{AdvisoryLock, LockKind, Mode, Scope};
use crate::pg::datum::{self, Text};
use crate::pg::row::{Key, Wait};
use crate::pg::spi::{ExtensionTable, Query, user};
use crate::pg::xact::{self, Durability};
use crate::pg::{session, system_clock};
use crate::shmem::Part;
use idgen_core::lease::FIRST_SHARED;
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

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

    /// A term that is about to begin.
    fn new(slot: i32, holder: NewHolder, ttl_us: i64) -> Self {
        let token = next_token();
        if slot != 0 {
            note_slot(token, slot);
        }
        Self {
            slot,
            token,
            owner: holder.owner.map(str::to_owned),
            acquired_at: datum::from_us_or_infinity(system_clock::now_us()),
            ends_us: system_clock::boot_us().saturating_add(ttl_us),
            depth: 1,
            session_key: holder.bind_session.then(session::random_i64),
        }
    }

    /// The column `session`.
    fn server(&self) -> Option<i64> {
        self.session_key.map(|_| session::server_start_us())
    }

    /// The term of a row, with another end and depth.
    fn of(row: &LeaseRow, ends_us: i64, depth: i32) -> Self {
        Self {
            slot: row.value(SLOT),
            token: row.value(TOKEN),
            owner: row.text(OWNER),
            acquired_at: row.value(ACQUIRED_AT),
            ends_us,
            depth,
            session_key: row.optional(SESSION_KEY),
        }
    }
}

/// Begins a term in a slot, whose last one is over. No fence of that one is left: fences share the lock.
pub fn take(locked: LockedRow, holder: NewHolder, ttl_us: i64) -> HeldTerm {
    let term = HeldTerm::new(locked.row().value(SLOT), holder, ttl_us);
    locked.update(&[
        (TOKEN, term.token.into_datum()),
        (DEPTH, 1.into_datum()),
        (OWNER, holder.owner.map(Text::from).and_then(Text::into_datum)),
        (ROLE, user().into_datum()),
        (DATA, holder.data),
        (ACQUIRED_AT, term.acquired_at.into_datum()),
        (TTL_US, ttl_us.into_datum()),
        (ENDS_US, term.ends_us.into_datum()),
        (CLOCK, clock_datum()),
        (REVOKED, false.into_datum()),
        (SESSION, term.server().into_datum()),
        (SESSION_KEY, term.session_key.into_datum()),
    ]);
    term
}

static INSERT: Query = LEASE.query(
    "INSERT INTO idgen.lease (name, slot, token, depth, owner, role, data, acquired_at, ttl_us, ends_us, clock, revoked, \
         session, session_key) \
     VALUES ($1, $2, $3, 1, $4, $5::pg_catalog.regrole, $6, $7, $8, $9, $10, false, $11, $12) \
     ON CONFLICT (name, slot) DO NOTHING RETURNING slot",
);

/// Inserts a row with a term. `None` if another transaction has inserted it.
pub fn insert(name: &str, slot: i32, holder: NewHolder, ttl_us: i64) -> Option<HeldTerm> {
    let term = HeldTerm::new(slot, holder, ttl_us);
    // SAFETY: a jsonb of the running call.
    let data = unsafe { DatumWithOid::new(holder.data, pg_sys::JSONBOID) };
    let args = [
        name.into(),
        slot.into(),
        term.token.into(),
        holder.owner.into(),
        user().into(),
        data,
        term.acquired_at.into(),
        ttl_us.into(),
        term.ends_us.into(),
        clock().into(),
        term.server().into(),
        term.session_key.into(),
    ];
    INSERT.write_latest(&args, |_| ()).pop().map(|()| term)
}

/// The fencing tokens of the database.
static TOKENS: ExtensionTable = ExtensionTable::new(c"lease_token");

static RAISE_TOKENS: Query = LEASE.query(
    "SELECT pg_catalog.setval('idgen.lease_token'::pg_catalog.regclass, GREATEST(last_value, \
     (pg_catalog.extract('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint)) \
     FROM idgen.lease_token",
);

/// Draws a fencing token from the sequence.
///
/// A sequence survives a crash. After a failover to a standby that lags behind, or in a restored database, it can be
/// behind. So each process first raises it to the microseconds since 1970. No server draws a million tokens a second,
/// so wherever clocks move forward, that is past every token drawn before.
///
/// A process raises the sequence under an exclusive lock. If it stopped between reading and setting, it could otherwise
/// set the sequence back below tokens that other processes have drawn since.
fn next_token() -> i64 {
    static HAS_RAISED: AtomicBool = AtomicBool::new(false);
    if !HAS_RAISED.load(Relaxed) {
        with_token_lock(Mode::Exclusive, || RAISE_TOKENS.write_losable(&[], |_| ()));
        HAS_RAISED.store(true, Relaxed);
    }
    with_token_lock(Mode::Shared, || {
        let sequence = TOKENS.lock(pg_sys::RowExclusiveLock);
        // SAFETY: a sequence of the extension, which is locked. What the caller may do was decided before.
        unsafe { pg_sys::nextval_internal(sequence, false) }
    })
}

/// Held shared while a token is drawn, exclusively while the sequence is raised. The key is 0.
const TOKEN_LOCK: LockKind = LockKind::new(b"lt");

/// An error releases the lock, which belongs to the transaction.
fn with_token_lock<R>(mode: Mode, work: impl FnOnce() -> R) -> R {
    let lock = AdvisoryLock::new(TOKEN_LOCK, 0, mode);
    lock.acquire(Scope::Transaction);
    let result = work();
    lock.release(Scope::Transaction);
    result
}

/// Works on the row of a token's term. `None` if the token is not current, if the caller may not act as the holder's role, or if
/// the work gives none.
fn with_term<R>(
    name: &str,
    token: i64,
    work: impl Fn(&LeaseRows, &[Key; 2], &dyn Fn(&LeaseRow) -> bool) -> Option<R>,
) -> Option<R> {
    let is_it = |row: &LeaseRow| is_current(row, token) && acts_as(row.value(ROLE));
    ROWS.write(|rows| with_slot(rows, name, token, |key| work(rows, key, &is_it)))
}

/// Works on the row of a token, where it is likely to be and then where it is.
fn with_slot<R>(rows: &LeaseRows, name: &str, token: i64, work: impl Fn(&[Key; 2]) -> Option<R>) -> Option<R> {
    let likely = noted_slot(token).unwrap_or(0);
    let other = || find_slot(rows, name, token).filter(|slot| *slot != likely);
    work(&slot_key(name, likely)).or_else(|| work(&slot_key(name, other()?)))
}

/// True if the caller may act as the holder of a term.
fn acts_as(role: pg_sys::Oid) -> bool {
    // SAFETY: reads the system caches.
    unsafe { pg_sys::has_privs_of_role(user(), role) }
}

/// Slots other than 0 of tokens that were drawn or seen last: a hint, by which a term among many is found at once. One
/// without a hint is found by reading all rows of the lease, which notes each of them. The slot is in the low half, and the
/// low half of the token in the high one. Tokens that were drawn in turn have places of their own.
pub static SLOTS: Part<&'static [AtomicU64]> =
    Part::new(c"idgen lease slots", |block| block.array(SLOT_COUNT, || AtomicU64::new(0)));
const SLOT_COUNT: usize = 16_384;

fn note_slot(token: i64, slot: i32) {
    if let Some(slots) = SLOTS.get() {
        slots[token as usize % SLOT_COUNT].store((token as u64) << 32 | u64::from(slot as u32), Relaxed);
    }
}

fn noted_slot(token: i64) -> Option<i32> {
    let noted = SLOTS.get()?[token as usize % SLOT_COUNT].load(Relaxed);
    (noted >> 32 == u64::from(token as u32)).then_some(noted as u32 as i32)
}

/// Extends a term to its ttl from now on, or to the ttl given, and acquires it `times` more. `None` if the token has no term. A
/// term that is acquired once more never ends earlier than before.
pub fn extend(name: &str, token: i64, ttl_us: Option<i64>, times: i32) -> Option<HeldTerm> {
    let extended = |row: &LeaseRow| {
        let ttl_us = ttl_us.unwrap_or_else(|| row.value(TTL_US));
        let mut ends_us = system_clock::boot_us().saturating_add(ttl_us);
        if times > 0 && rows::is_by_this_clock(row) {
            ends_us = ends_us.max(row.value(ENDS_US));
        }
        let depth = row.value::<i32>(DEPTH) + times;
        let values = [
            (DEPTH, depth.into_datum()),
            (TTL_US, ttl_us.into_datum()),
            (CLOCK, clock_datum()),
            (ENDS_US, ends_us.into_datum()),
        ];
        (values, HeldTerm::of(row, ends_us, depth))
    };
    let held = with_term(name, token, |rows, key, is_it| rows.update(key, |row| is_it(row).then(|| extended(row))));
    crate::pg::crash_point!("lease: renewal written");
    // A failed call requires nothing.
    held.inspect(|_| xact::require_durability(Durability::Crash))
}

/// Releases a term from its session: it lasts its time.
pub fn unbind(name: &str, token: i64) {
    let unbound = |_: &LeaseRow| ([(SESSION, None), (SESSION_KEY, None)], ());
    with_term(name, token, |rows, key, is_it| rows.update(key, |row| is_it(row).then(|| unbound(row))));
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
    let released =
        |row: &LeaseRow| Released { depth: row.value::<i32>(DEPTH) - 1, slot: row.value(SLOT), owner: row.text(OWNER) };
    let values = |released: &Released| match released.depth {
        0 => rows::freed(false).to_vec(),
        depth => vec![(DEPTH, depth.into_datum())],
    };
    let released = with_term(name, token, |rows, key, is_it| {
        let remove = || {
            let locked = rows.lock(key, Wait::Skip, |row| is_it(row) && row.value::<i32>(DEPTH) == 1)?;
            let released = released(&locked.row());
            locked.delete();
            Some(released)
        };
        let stays = is_defined && matches!(key[1], Key::Int(..FIRST_SHARED));
        let removed = if stays { None } else { remove() };
        removed.or_else(|| {
            rows.update(key, |row| is_it(row).then(|| released(row)).map(|released| (values(&released), released)))
        })
    });
    crate::pg::crash_point!("lease: release written");
    released
}

/// Shares the row's key until the transaction ends, so that nobody takes the lease over, after waiting for a take-over that is
/// under way. Returns the slot; `None` if the token has no term.
pub fn fence(name: &str, token: i64) -> Option<i32> {
    let slot = with_term(name, token, |rows, key, is_it| rows.share(key, |row| is_it(row).then(|| row.value(SLOT))));
    crate::pg::crash_point!("lease: fenced");
    slot
}

/// The slot of a token, even if its term has ended. Notes those of the other terms.
fn find_slot(rows: &LeaseRows, name: &str, token: i64) -> Option<i32> {
    let mut found = None;
    rows.latest(|latest| {
        latest.find(&[Key::Text(name)], |row| {
            let (slot, other): (i32, i64) = (row.value(SLOT), row.value(TOKEN));
            if other == token {
                found = Some(slot);
            }
            if slot != 0 {
                note_slot(other, slot);
            }
            None::<()>
        })
    });
    found
}

/// As [`find_slot`], for a caller that has not opened the table.
pub fn slot_of(name: &str, token: i64) -> Option<i32> {
    let slot = |row: &LeaseRow| (row.value::<i64>(TOKEN) == token).then(|| row.value(SLOT));
    ROWS.read(|rows| with_slot(rows, name, token, |key| rows.latest(|latest| latest.find(key, slot))))
}

/// Removes the row of a slot that is wanted. A term in it that was not released has expired. False if there is none, or if a
/// transaction that is not waited for has locked it.
pub fn remove(name: &str, slot: i32, wait: Wait, is_wanted: impl Fn(&LeaseRow) -> bool) -> bool {
    let removed = ROWS.write(|rows| {
        let locked = rows.lock(&slot_key(name, slot), wait, is_wanted)?;
        stats::notify_expired(name, &locked.row());
        locked.delete();
        Some(())
    });
    removed.is_some()
}

/// True if the transaction's own snapshot shows the token in this slot.
pub fn is_in_snapshot(name: &str, slot: i32, token: i64) -> bool {
    let is_it = |row: &LeaseRow| (row.value::<i64>(TOKEN) == token).then_some(());
    ROWS.read(|rows| rows.find_in_snapshot(&slot_key(name, slot), is_it)).is_some()
}

/// The role of the holder, if the caller may not act as it.
pub fn foreign_role(name: &str, token: i64) -> Option<pg_sys::Oid> {
    let foreign = |row: &LeaseRow| {
        let role = row.value(ROLE);
        (is_current(row, token) && !acts_as(role)).then_some(role)
    };
    ROWS.read(|rows| rows.latest(|latest| latest.find(&[Key::Text(name)], foreign)))
}

/// Revokes the term in a slot, and begins the lock delay when the row is locked. Returns the token and the owner of the term.
/// As for a renewal, it waits for no fence, and for no grant that has not committed.
pub fn revoke(name: &str, slot: i32) -> Option<(i64, Option<String>)> {
    let has_term = |row: &LeaseRow| row.value::<i32>(DEPTH) > 0;
    let revoked = |row: &LeaseRow| (rows::freed(true), (row.value(TOKEN), row.text(OWNER)));
    ROWS.write(|rows| rows.update(&slot_key(name, slot), |row| has_term(row).then(|| revoked(row))))
}
