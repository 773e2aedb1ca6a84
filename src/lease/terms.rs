//! The terms of holders: beginning one, with the fencing token that is drawn for it, and what a holder does by its token.

use super::rows::column::*;
use super::rows::{self, LEASE, LeaseRow, LeaseRows, LockedRow, ROWS, clock, clock_datum, slot_key};
use super::{definitions, locks, pending, status};
use crate::pg::advisory_lock::{AdvisoryLock, LockKind, Mode, Scope};
use crate::pg::datum::{self, Text, text_arg};
use crate::pg::row::{Key, NewValue, Wait};
use crate::pg::spi::{ExtensionTable, Query, user};
use crate::pg::{session, system_clock, xact};
use crate::shmem::Part;
use crate::{args, settings};
use idgen_core::lease::{Change, FIRST_SHARED, HeldRow, TermRow, TokenSequence, draw, end_us};
use pgrx::datum::{DatumWithOid, Interval};
use pgrx::fcinfo::{pg_getarg, pg_getarg_datum};
use pgrx::prelude::*;
use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// What a caller says of the terms that it wants.
pub struct Wanted<'a> {
    /// `None` for the ttl of the definition.
    pub ttl_us: Option<i64>,
    owner: Option<Cow<'a, str>>,
    /// A jsonb.
    data: Option<pg_sys::Datum>,
    /// The term ends with the session.
    pub bind_session: bool,
    pub shared: bool,
    pub is_own_statement: bool,
}

impl Wanted<'_> {
    /// # Safety
    /// `fcinfo` is that of the running call. Its arguments from `first` on are ttl, owner and data, and those from `modes` on
    /// bind_session and shared.
    pub unsafe fn by_args(fcinfo: pg_sys::FunctionCallInfo, first: usize, modes: usize) -> Self {
        // SAFETY: by the above.
        unsafe {
            let ttl = pg_getarg::<Interval>(fcinfo, first);
            Self {
                ttl_us: ttl.map(|ttl| args::ttl_us(ttl, settings::lease_ttl_limits_us())),
                owner: args::owner(text_arg(fcinfo, first + 1)),
                data: pg_getarg_datum(fcinfo, first + 2),
                bind_session: args::required(pg_getarg::<bool>(fcinfo, modes), "bind_session"),
                shared: args::required(pg_getarg::<bool>(fcinfo, modes + 1), "shared"),
                is_own_statement: xact::is_own_statement(fcinfo),
            }
        }
    }
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
    fn new(slot: i32, wanted: &Wanted, ttl_us: i64) -> Self {
        let token = draw(&mut Tokens);
        if slot != 0 {
            note_slot(token, slot);
        }
        Self {
            slot,
            token,
            owner: wanted.owner.as_deref().map(str::to_owned),
            acquired_at: datum::from_us_or_infinity(system_clock::wall_us()),
            ends_us: end_us(system_clock::boot_us(), ttl_us),
            depth: 1,
            session_key: wanted.bind_session.then(session::random_i64),
        }
    }

    /// The column `session`.
    fn server(&self) -> Option<i64> {
        self.session_key.map(|_| session::server_start_us())
    }

    fn of(row: &LeaseRow) -> Self {
        Self {
            slot: row.value(SLOT),
            token: row.value(TOKEN),
            owner: row.text(OWNER),
            acquired_at: row.value(ACQUIRED_AT),
            ends_us: row.value(ENDS_US),
            depth: row.value(DEPTH),
            session_key: row.optional(SESSION_KEY),
        }
    }
}

/// Begins a term in a slot, whose last one is over. No fence of that one is left: fences share the lock.
pub fn take(locked: LockedRow, wanted: &Wanted, ttl_us: i64) -> HeldTerm {
    let term = HeldTerm::new(locked.row().value(SLOT), wanted, ttl_us);
    locked.update(&[
        (TOKEN, term.token.into_datum()),
        (DEPTH, 1.into_datum()),
        (OWNER, wanted.owner.as_deref().map(Text::from).and_then(Text::into_datum)),
        (ROLE, user().into_datum()),
        (DATA, wanted.data),
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
pub fn insert(name: &str, slot: i32, wanted: &Wanted, ttl_us: i64) -> Option<HeldTerm> {
    let term = HeldTerm::new(slot, wanted, ttl_us);
    // SAFETY: a jsonb of the running call.
    let data = unsafe { DatumWithOid::new(wanted.data, pg_sys::JSONBOID) };
    let args = [
        name.into(),
        slot.into(),
        term.token.into(),
        wanted.owner.as_deref().into(),
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

/// The sequence, as this process reaches it.
struct Tokens;

/// Held shared while a token is drawn, exclusively while the sequence is raised. The key is 0.
const TOKEN_LOCK: LockKind = LockKind::new(b"lt");

static HAS_RAISED: AtomicBool = AtomicBool::new(false);

impl TokenSequence for Tokens {
    fn has_raised(&self) -> bool {
        HAS_RAISED.load(Relaxed)
    }

    /// An error releases the lock, which belongs to the transaction.
    fn locked<T>(&mut self, is_exclusive: bool, work: impl FnOnce(&mut Self) -> T) -> T {
        let lock = AdvisoryLock::new(TOKEN_LOCK, 0, Mode::of(!is_exclusive));
        lock.acquire(Scope::Transaction);
        let result = work(self);
        lock.release(Scope::Transaction);
        result
    }

    fn raise(&mut self) {
        RAISE_TOKENS.write_losable(&[], |_| ());
        HAS_RAISED.store(true, Relaxed);
    }

    fn next(&mut self) -> i64 {
        // SAFETY: a sequence of the extension, which DROP EXTENSION keeps while the caller has locked the table of the rows. What
        // the caller may do was decided before.
        unsafe { pg_sys::nextval_internal(TOKENS.require(), false) }
    }
}

/// The row of a term, as the procedures of the core reach it.
pub struct OneRow<'a> {
    pub name: &'a str,
    pub by: By,
}

#[derive(Clone, Copy)]
pub enum By {
    /// The term belongs to the caller's role, or to one that the caller may act as.
    Token(i64),
    Slot(i32),
}

impl OneRow<'_> {
    /// Works on the row of a token where it is likely to be, and then where it is.
    fn with<R>(&self, rows: &LeaseRows, work: impl Fn(&[Key; 2]) -> Option<R>) -> Option<R> {
        let token = match self.by {
            By::Token(token) => token,
            By::Slot(slot) => return work(&slot_key(self.name, slot)),
        };
        let likely = noted_slot(token).unwrap_or(0);
        let other = || find_slot(rows, self.name, token).filter(|slot| *slot != likely);
        work(&slot_key(self.name, likely)).or_else(|| work(&slot_key(self.name, other()?)))
    }

    fn is_permitted(&self, row: &LeaseRow) -> bool {
        matches!(self.by, By::Slot(_)) || acts_as(row.value(ROLE))
    }

    /// The new values of a row, and the term that they leave.
    fn changed(
        &self,
        row: &LeaseRow,
        change: impl Fn(&HeldRow) -> Option<Change>,
    ) -> Option<(Vec<NewValue>, HeldTerm)> {
        let change = change(&rows::held(row)).filter(|_| self.is_permitted(row))?;
        let (mut values, mut term) = (rows::new_values(change), HeldTerm::of(row));
        match change {
            Change::Extend { depth, ends_us, .. } => {
                (term.depth, term.ends_us) = (depth, ends_us);
                // If the session that the term was bound to has ended, the holder lives on without it: the term lasts its time.
                if term.session_key.take_if(|key| !locks::is_alive(*key)).is_some() {
                    values.extend([(SESSION, None), (SESSION_KEY, None)]);
                }
            }
            Change::Release { depth } => term.depth = depth,
            Change::Free { since_us, .. } => (term.depth, term.ends_us) = (0, since_us),
        }
        Some((values, term))
    }
}

impl TermRow for OneRow<'_> {
    type Found = HeldTerm;

    fn now_us(&self) -> i64 {
        system_clock::boot_us()
    }

    fn update(&self, change: impl Fn(&HeldRow) -> Option<Change>) -> Option<HeldTerm> {
        // The lock delay of a revocation begins when the row is locked.
        let is_revocation = matches!(self.by, By::Slot(_));
        ROWS.write(|rows| self.with(rows, |key| rows.update(key, is_revocation, |row| self.changed(row, &change))))
    }

    fn delete_or_update(
        &self,
        is_over: impl Fn(&HeldRow) -> bool,
        change: impl Fn(&HeldRow) -> Option<Change>,
    ) -> Option<HeldTerm> {
        let is_it = |row: &LeaseRow| is_over(&rows::held(row)) && self.is_permitted(row);
        let is_defined = definitions::of(self.name).definition.is_some();
        ROWS.write(|rows| {
            self.with(rows, |key| {
                // The row of a slot of a lease that is defined.
                let stays = is_defined && matches!(key[1], Key::Int(..FIRST_SHARED));
                match if stays { None } else { rows.lock(key, Wait::Skip, is_it) } {
                    Some(locked) => {
                        let released = HeldTerm { depth: 0, ..HeldTerm::of(&locked.row()) };
                        locked.delete();
                        Some(released)
                    }
                    None => rows.update(key, false, |row| self.changed(row, &change)),
                }
            })
        })
    }

    fn survive_failover(&self) {
        pending::require_durability();
    }

    fn slot(&self) -> Option<i32> {
        let By::Token(token) = self.by else { return None };
        let slot = |row: &LeaseRow| (row.value::<i64>(TOKEN) == token).then(|| row.value(SLOT));
        ROWS.read(|rows| self.with(rows, |key| rows.latest(|latest| latest.find(key, slot))))
    }

    fn has_locked(&self) -> bool {
        matches!(self.by, By::Token(token) if pending::EFFECTS.lock().has_locked(token))
    }

    fn yield_to_take_over(&self, slot: i32) {
        locks::yield_to_take_over(self.name, slot);
    }

    fn share(&self, is_wanted: impl Fn(&HeldRow) -> bool) -> Option<i32> {
        let is_it = |row: &LeaseRow| is_wanted(&rows::held(row)) && self.is_permitted(row);
        ROWS.write(|rows| self.with(rows, |key| rows.share(key, |row| is_it(row).then(|| row.value(SLOT)))))
    }
}

/// True if the caller may act as this holder of a term, or definer of a lease.
pub fn acts_as(role: pg_sys::Oid) -> bool {
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

/// The slot of a token, even if its term has ended. Notes those of the other terms.
fn find_slot(rows: &LeaseRows, name: &str, token: i64) -> Option<i32> {
    let read = |row: &LeaseRow| (row.value::<i32>(SLOT), row.value::<i64>(TOKEN));
    let terms = rows.latest(|latest| latest.all(&[Key::Text(name)], read));
    terms.iter().filter(|(slot, _)| *slot != 0).for_each(|(slot, of)| note_slot(*of, *slot));
    terms.into_iter().find(|(_, of)| *of == token).map(|(slot, _)| slot)
}

/// Removes the row of a slot that is wanted. A term in it that was not released has expired. False if there is none, or if
/// another transaction has locked it.
pub fn remove(name: &str, slot: i32, is_wanted: impl Fn(&LeaseRow) -> bool) -> bool {
    let removed = ROWS.write(|rows| {
        let locked = rows.lock(&slot_key(name, slot), Wait::Skip, is_wanted)?;
        status::notify_expired(name, &locked.row());
        locked.delete();
        Some(())
    });
    removed.is_some()
}
