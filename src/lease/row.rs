//! The rows of `idgen.lease` and `idgen.lease_definition`: how a name stands, and giving its slots to the caller.

use super::machine;
use super::preference::Preference;
use super::session as bound_session;
use crate::pg::encoding::Text;
use crate::pg::owner::ExtensionTable;
use crate::pg::session;
use crate::pg::spi::{Query, optional, value};
use crate::settings;
use idgen_core::lease::{Definition, Session, Term};
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::collections::HashSet;

/// The slots of names, and their terms. The definitions of names belong to it.
pub static LEASE: ExtensionTable = ExtensionTable::new(c"idgen", c"lease");

/// A name as it is now.
pub struct Lease {
    /// What is laid down, or holds where nothing is.
    pub definition: Definition,
    /// Who laid it down.
    pub definer: Option<pg_sys::Oid>,
    pub terms: Vec<Term>,
    /// Slots whose holders are known to have ended, where somebody wants one of them.
    pub ended: HashSet<i32>,
}

impl Lease {
    /// Does it matter when this server began to write?
    pub fn needs_the_beginning(&self) -> bool {
        self.terms.iter().any(|term| !term.by_this_clock || term.session == Session::EndedWithServer)
    }
}

/// What a holder gives with his wish.
pub struct Wish<'a> {
    pub name: &'a str,
    pub ttl_us: Option<i64>,
    pub owner: Option<&'a str>,
    /// A jsonb.
    pub data: Option<pg_sys::Datum>,
    pub bind_session: bool,
    /// True to refuse where every slot is taken, false to wait for one.
    pub only_if_free: bool,
    pub preference: &'a dyn Preference,
    /// It is to be in a transaction block that has one snapshot for all its statements.
    pub has_one_snapshot: bool,
}

/// A slot that has become the caller's, or is his once more.
pub struct Granted {
    pub slot: i32,
    pub token: i64,
    pub owner: Option<String>,
    pub acquired_at: TimestampWithTimeZone,
    /// By the clock of leases.
    pub ends_us: i64,
    pub depth: i32,
    /// The key of the lock of the session that it is bound to, be that alive or not.
    pub session_key: Option<i64>,
    pub ttl_us: i64,
}

const TERM: &str = "lease.slot, lease.token, lease.depth, lease.ends_us, lease.ttl_us, lease.revoked, \
                    lease.clock OPERATOR(pg_catalog.=) $2, lease.session, lease.session_key";

/// An interval too long for a bigint of microseconds is as good as for ever.
const MICROS: &str =
    "LEAST(pg_catalog.extract('epoch', {}) OPERATOR(pg_catalog.*) 1000000, 9223372036854775807)::bigint";

pub const GRANTED: &str = "slot, token, owner, acquired_at, ends_us, depth, session_key, ttl_us";

fn micros(column: &str) -> String {
    MICROS.replace("{}", column)
}

/// With the SQL of 0.7, `idgen.lease_definition` has no column first_slot: then the name means that of `asked`.
static LOOK: Query = Query::new(&LEASE, || {
    format!(
        "SELECT {TERM}, defined.slots, {}, {}, defined.first_slot, defined.owner::pg_catalog.oid \
         FROM (SELECT $1, 0) AS asked (name, first_slot) \
         LEFT JOIN LATERAL (SELECT slots, ttl, lock_delay, owner, first_slot FROM idgen.lease_definition AS stored \
                            WHERE stored.name OPERATOR(pg_catalog.=) asked.name) AS defined ON true \
         LEFT JOIN idgen.lease ON lease.name OPERATOR(pg_catalog.=) asked.name",
        micros("defined.ttl"),
        micros("defined.lock_delay")
    )
});

/// The name as it is now, whatever the transaction's snapshot says.
pub fn look(name: &str) -> Lease {
    look_and(name, false)
}

/// The same for a session that wants a slot: from its first look on, a slot rests whose session has ended.
pub fn look_to_take(name: &str) -> Lease {
    look_and(name, true)
}

fn look_and(name: &str, wants_slot: bool) -> Lease {
    let rows = LOOK.read_latest(&[name.into(), machine::clock_name().into()], |row| {
        let definition: Option<Definition> = optional(row, 10).map(|slots| Definition {
            first_slot: value(row, 13),
            slots,
            ttl_us: value(row, 11),
            lock_delay_us: value(row, 12),
        });
        let rest_us = definition.filter(|_| wants_slot).map(|definition| definition.lock_delay_us);
        (definition, optional(row, 14), optional::<i32>(row, 1).map(|_| term(row, rest_us)))
    });
    let (definition, definer) =
        rows.first().map(|(definition, definer, _)| (*definition, *definer)).unwrap_or_default();
    Lease {
        definition: definition.unwrap_or_else(|| Definition {
            first_slot: 0,
            slots: 1,
            ttl_us: settings::lease_ttl_us(),
            lock_delay_us: 0,
        }),
        definer,
        ended: HashSet::new(),
        terms: rows.into_iter().filter_map(|(_, _, term)| term).collect(),
    }
}

fn term(row: &SpiHeapTupleData, rest_us: Option<i64>) -> Term {
    let session = optional(row, 8).zip(optional(row, 9));
    Term {
        slot: value(row, 1),
        token: value(row, 2),
        depth: value(row, 3),
        ends_us: value(row, 4),
        ttl_us: value(row, 5),
        revoked: value(row, 6),
        by_this_clock: value(row, 7),
        session: session.map_or(Session::None, |(server_start, key)| bound_session::state(server_start, key, rest_us)),
    }
}

static SEE: Query = Query::new(&LEASE, || {
    "SELECT token, depth, ends_us FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2"
        .to_owned()
});

/// What the transaction's own snapshot shows of a slot: token, depth and end.
pub fn see(name: &str, slot: i32) -> Option<(i64, i32, i64)> {
    SEE.read_snapshot(&[name.into(), slot.into()], |row| (value(row, 1), value(row, 2), value(row, 3))).pop()
}

static SEE_TOKEN: Query = Query::new(&LEASE, || {
    "SELECT slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND token OPERATOR(pg_catalog.=) $2".to_owned()
});

/// Does the transaction's own snapshot show the term?
pub fn sees_token(name: &str, token: i64) -> bool {
    !SEE_TOKEN.read_snapshot(&[name.into(), token.into()], |_| ()).is_empty()
}

static LOCK_ALL: Query = Query::new(&LEASE, || {
    format!("SELECT {TERM} FROM idgen.lease WHERE lease.name OPERATOR(pg_catalog.=) $1 ORDER BY lease.slot FOR UPDATE")
});

/// All rows of a name, as they are once nobody else has changed or fenced them.
pub fn lock_all(name: &str) -> Vec<Term> {
    LOCK_ALL.write_latest(&[name.into(), machine::clock_name().into()], |row| term(row, None))
}

static LOCK: Query = Query::new(&LEASE, || lock_text("SKIP LOCKED"));
static LOCK_WAITING: Query = Query::new(&LEASE, || lock_text(""));

fn lock_text(wait: &str) -> String {
    format!(
        "SELECT {TERM} FROM idgen.lease WHERE lease.name OPERATOR(pg_catalog.=) $1 \
         AND lease.slot OPERATOR(pg_catalog.=) $3 FOR UPDATE {wait}"
    )
}

/// A slot's row, locked for a take-over: against fences and all writers. `None` if it is locked, or gone.
pub fn lock(name: &str, slot: i32) -> Option<Term> {
    LOCK.write_latest(&[name.into(), machine::clock_name().into(), slot.into()], |row| term(row, None)).pop()
}

/// The same, after waiting for those who have locked it.
pub fn lock_waiting(name: &str, slot: i32) {
    LOCK_WAITING.write_latest(&[name.into(), machine::clock_name().into(), slot.into()], |_| ());
}

static TAKE: Query = Query::new(&LEASE, || {
    format!(
        "UPDATE idgen.lease SET token = pg_catalog.nextval('idgen.lease_token'::pg_catalog.regclass), depth = 1, owner = $3, \
         role = $4::pg_catalog.regrole, data = $5, acquired_at = pg_catalog.clock_timestamp(), ttl_us = $6, ends_us = $7, \
         clock = $8, revoked = false, session = $9, session_key = $10 \
         WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2 RETURNING {GRANTED}"
    )
});
static MAKE: Query = Query::new(&LEASE, || {
    format!(
        "INSERT INTO idgen.lease (name, slot, token, depth, owner, role, data, acquired_at, ttl_us, ends_us, clock, revoked, \
         session, session_key) VALUES ($1, $2, pg_catalog.nextval('idgen.lease_token'::pg_catalog.regclass), 1, $3, \
         $4::pg_catalog.regrole, $5, pg_catalog.clock_timestamp(), $6, $7, $8, false, $9, $10) \
         ON CONFLICT (name, slot) DO NOTHING RETURNING {GRANTED}"
    )
});

/// Gives a slot to the caller. `None` if its row is gone.
pub fn take(wish: &Wish, slot: i32, ttl_us: i64) -> Option<Granted> {
    grant(&TAKE, wish, slot, ttl_us)
}

/// Makes a slot's row and gives it to the caller. `None` if somebody has made it.
pub fn make(wish: &Wish, slot: i32, ttl_us: i64) -> Option<Granted> {
    grant(&MAKE, wish, slot, ttl_us)
}

fn grant(query: &Query, wish: &Wish, slot: i32, ttl_us: i64) -> Option<Granted> {
    // SAFETY: a datum of the type said, of the running call.
    let data = unsafe { DatumWithOid::new(wish.data, pg_sys::JSONBOID) };
    let ends_us = machine::now(false).now_us.saturating_add(ttl_us);
    let session = wish.bind_session.then(|| (machine::server_start(), session::random_i64())).unzip();
    let args = [
        wish.name.into(),
        slot.into(),
        wish.owner.into(),
        user().into(),
        data,
        ttl_us.into(),
        ends_us.into(),
        machine::clock_name().into(),
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
        ttl_us: value(row, 8),
    }
}

static END: Query = Query::new(&LEASE, || {
    "UPDATE idgen.lease SET depth = 0, ends_us = $3, clock = $4, revoked = false, session = NULL, session_key = NULL \
     WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2 AND depth OPERATOR(pg_catalog.>) 0"
        .to_owned()
});

/// Ends the term in a slot whose row is locked. The slot has rested already: it is free from now on.
pub fn end(name: &str, slot: i32) {
    let now_us = machine::now(false).now_us;
    END.write_latest(&[name.into(), slot.into(), now_us.into(), machine::clock_name().into()], |_| ());
}

static REVOKE: Query = Query::new(&LEASE, || {
    "UPDATE idgen.lease SET depth = 0, ends_us = $3, clock = $4, revoked = true, session = NULL, session_key = NULL \
     WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2 AND depth OPERATOR(pg_catalog.>) 0 \
     RETURNING token"
        .to_owned()
});

/// Takes a slot from whoever holds it; from now on it rests. Returns his token.
pub fn revoke(name: &str, slot: i32) -> Option<i64> {
    let now_us = machine::now(false).now_us;
    let args = [name.into(), slot.into(), now_us.into(), machine::clock_name().into()];
    REVOKE.write_latest(&args, |row| value(row, 1)).pop()
}

pub fn user() -> pg_sys::Oid {
    // SAFETY: reads this process's own state.
    unsafe { pg_sys::GetUserId() }
}
