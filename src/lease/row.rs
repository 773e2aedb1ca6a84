//! The rows of `idgen.lease` and `idgen.lease_definition`: every query on them, in one place.

use super::machine;
use super::session;
use crate::query::{Query, optional, value};
use crate::settings;
use idgen_core::lease::{Definition, Session, Term};
use pgrx::datum::DatumWithOid;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;

/// A name as it is now.
pub struct Lease {
    /// What is laid down, or holds where nothing is.
    pub definition: Definition,
    /// Who laid it down.
    pub definer: Option<pg_sys::Oid>,
    pub terms: Vec<Term>,
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
    /// A number is wanted: at once or not at all, and the one that the owner had last, if it is free.
    pub is_for_number: bool,
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
    /// It is bound to a session, be it alive or not.
    pub is_bound: bool,
    pub ttl_us: i64,
}

const TERM: &str = "lease.slot, lease.token, lease.depth, lease.ends_us, lease.ttl_us, lease.revoked, \
                    lease.clock OPERATOR(pg_catalog.=) $2, lease.session";

/// An interval too long for a bigint of microseconds is as good as for ever.
const MICROS: &str =
    "LEAST(pg_catalog.extract('epoch', {}) OPERATOR(pg_catalog.*) 1000000, 9223372036854775807)::bigint";

const GRANTED: &str = "slot, token, owner, acquired_at, ends_us, depth, session IS NOT NULL, ttl_us";

fn micros(column: &str) -> String {
    MICROS.replace("{}", column)
}

/// The term that a token stands for, if its holder's role is one that the caller may act as.
const OWN_TERM: &str = "lease.name OPERATOR(pg_catalog.=) $1 AND lease.token OPERATOR(pg_catalog.=) $2 \
                        AND lease.depth OPERATOR(pg_catalog.>) 0 \
                        AND pg_catalog.pg_has_role($3, lease.role::pg_catalog.oid, 'USAGE')";

static LOOK: Query = Query::new(|| {
    format!(
        "SELECT {TERM}, defined.slots, {}, {}, defined.owner::pg_catalog.oid \
         FROM (SELECT $1) AS asked (name) \
         LEFT JOIN idgen.lease_definition AS defined ON defined.name OPERATOR(pg_catalog.=) asked.name \
         LEFT JOIN idgen.lease ON lease.name OPERATOR(pg_catalog.=) asked.name",
        micros("defined.ttl"),
        micros("defined.lock_delay")
    )
});

/// The name as it is now, whatever the transaction's snapshot says.
pub fn look(name: &str) -> Lease {
    let rows = LOOK.look(&[name.into(), machine::clock_name().into()], |row| {
        let definition =
            optional(row, 9).map(|slots| Definition { slots, ttl_us: value(row, 10), lock_delay_us: value(row, 11) });
        (definition, optional(row, 12), optional::<i32>(row, 1).map(|_| term(row)))
    });
    let (definition, definer) =
        rows.first().map(|(definition, definer, _)| (*definition, *definer)).unwrap_or_default();
    Lease {
        definition: definition.unwrap_or_else(|| Definition {
            slots: 1,
            ttl_us: settings::lease_ttl_us(),
            lock_delay_us: 0,
        }),
        definer,
        terms: rows.into_iter().filter_map(|(_, _, term)| term).collect(),
    }
}

fn term(row: &SpiHeapTupleData) -> Term {
    let token = value(row, 2);
    Term {
        slot: value(row, 1),
        token,
        depth: value(row, 3),
        ends_us: value(row, 4),
        ttl_us: value(row, 5),
        revoked: value(row, 6),
        by_this_clock: value(row, 7),
        session: optional(row, 8).map_or(Session::None, |server_start| session::state(server_start, token)),
    }
}

static LAST_OF_OWNER: Query = Query::new(|| {
    "SELECT slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND owner OPERATOR(pg_catalog.=) $2 \
     ORDER BY acquired_at DESC LIMIT 1"
        .to_owned()
});

/// The slot that an owner had last, of those that nobody has had since.
pub fn last_of_owner(name: &str, owner: &str) -> Option<i32> {
    LAST_OF_OWNER.look(&[name.into(), owner.into()], |row| value(row, 1)).pop()
}

static SEE: Query = Query::new(|| {
    "SELECT token, depth, ends_us FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2"
        .to_owned()
});

/// What the transaction's own snapshot shows of a slot: token, depth and end.
pub fn see(name: &str, slot: i32) -> Option<(i64, i32, i64)> {
    SEE.see(&[name.into(), slot.into()], |row| (value(row, 1), value(row, 2), value(row, 3))).pop()
}

static SEE_TOKEN: Query = Query::new(|| {
    "SELECT slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND token OPERATOR(pg_catalog.=) $2".to_owned()
});

/// Does the transaction's own snapshot show the term?
pub fn sees_token(name: &str, token: i64) -> bool {
    !SEE_TOKEN.see(&[name.into(), token.into()], |_| ()).is_empty()
}

static IS_CURRENT: Query = Query::new(|| {
    "SELECT slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND token OPERATOR(pg_catalog.=) $2 \
     AND depth OPERATOR(pg_catalog.>) 0"
        .to_owned()
});

/// Does a token stand for a term, whoever's?
pub fn is_current(name: &str, token: i64) -> bool {
    !IS_CURRENT.look(&[name.into(), token.into()], |_| ()).is_empty()
}

static LOCK_ALL: Query = Query::new(|| lock_all_text("UPDATE"));
static LOCK_ALL_AGAINST_CHANGES: Query = Query::new(|| lock_all_text("NO KEY UPDATE"));

fn lock_all_text(strength: &str) -> String {
    format!(
        "SELECT {TERM} FROM idgen.lease WHERE lease.name OPERATOR(pg_catalog.=) $1 ORDER BY lease.slot FOR {strength}"
    )
}

/// All rows of a name, as they are once nobody else has changed or fenced them.
pub fn lock_all(name: &str) -> Vec<Term> {
    LOCK_ALL.write(&[name.into(), machine::clock_name().into()], term)
}

/// Waits for those who are about to take, renew or release a slot, and keeps others from it until the transaction ends.
pub fn lock_all_against_changes(name: &str) {
    LOCK_ALL_AGAINST_CHANGES.write(&[name.into(), machine::clock_name().into()], |_| ());
}

static LOCK: Query = Query::new(|| lock_text("SKIP LOCKED"));
static LOCK_WAITING: Query = Query::new(|| lock_text(""));

fn lock_text(wait: &str) -> String {
    format!(
        "SELECT {TERM} FROM idgen.lease WHERE lease.name OPERATOR(pg_catalog.=) $1 \
         AND lease.slot OPERATOR(pg_catalog.=) $3 FOR UPDATE {wait}"
    )
}

/// A slot's row, locked for a take-over: against fences and all writers. `None` if it is locked, or gone.
pub fn lock(name: &str, slot: i32) -> Option<Term> {
    LOCK.write(&[name.into(), machine::clock_name().into(), slot.into()], term).pop()
}

/// The same, after waiting for whoever has locked it.
pub fn lock_waiting(name: &str, slot: i32) -> Option<Term> {
    LOCK_WAITING.write(&[name.into(), machine::clock_name().into(), slot.into()], term).pop()
}

static TAKE: Query = Query::new(|| {
    format!(
        "UPDATE idgen.lease SET token = pg_catalog.nextval('idgen.lease_token'::pg_catalog.regclass), depth = 1, owner = $3, \
         role = $4::pg_catalog.regrole, data = $5, acquired_at = pg_catalog.clock_timestamp(), ttl_us = $6, ends_us = $7, \
         clock = $8, revoked = false, session = $9 \
         WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2 RETURNING {GRANTED}"
    )
});
static MAKE: Query = Query::new(|| {
    format!(
        "INSERT INTO idgen.lease (name, slot, token, depth, owner, role, data, acquired_at, ttl_us, ends_us, clock, revoked, \
         session) VALUES ($1, $2, pg_catalog.nextval('idgen.lease_token'::pg_catalog.regclass), 1, $3, \
         $4::pg_catalog.regrole, $5, pg_catalog.clock_timestamp(), $6, $7, $8, false, $9) \
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
    let session = wish.bind_session.then(machine::server_start);
    let args = [
        wish.name.into(),
        slot.into(),
        wish.owner.into(),
        user().into(),
        data,
        ttl_us.into(),
        ends_us.into(),
        machine::clock_name().into(),
        session.into(),
    ];
    query.write(&args, granted).pop()
}

fn granted(row: &SpiHeapTupleData) -> Granted {
    Granted {
        slot: value(row, 1),
        token: value(row, 2),
        owner: optional(row, 3),
        acquired_at: value(row, 4),
        ends_us: value(row, 5),
        depth: value(row, 6),
        is_bound: value(row, 7),
        ttl_us: value(row, 8),
    }
}

static REVOKE: Query = Query::new(|| {
    "UPDATE idgen.lease SET depth = 0, ends_us = $3, clock = $4, revoked = true, session = NULL \
     WHERE name OPERATOR(pg_catalog.=) $1 AND slot OPERATOR(pg_catalog.=) $2 AND depth OPERATOR(pg_catalog.>) 0 \
     RETURNING token"
        .to_owned()
});

/// Takes a slot from whoever holds it; from now on it rests. Returns his token.
pub fn revoke(name: &str, slot: i32) -> Option<i64> {
    let now_us = machine::now(false).now_us;
    let args = [name.into(), slot.into(), now_us.into(), machine::clock_name().into()];
    REVOKE.write(&args, |row| value(row, 1)).pop()
}

static RENEW: Query = Query::new(|| {
    format!(
        "UPDATE idgen.lease SET ttl_us = COALESCE($4, ttl_us), clock = $6, \
         ends_us = $5 OPERATOR(pg_catalog.+) COALESCE($4, ttl_us) WHERE {OWN_TERM} RETURNING {GRANTED}"
    )
});

/// Makes a term last for a while from now on. `None` if the token stands for none.
pub fn renew(name: &str, token: i64, ttl_us: Option<i64>) -> Option<Granted> {
    let (now_us, clock) = (machine::now(false).now_us, machine::clock_name());
    let args = [name.into(), token.into(), user().into(), ttl_us.into(), now_us.into(), clock.into()];
    RENEW.write(&args, granted).pop()
}

static RENEW_MANY: Query = Query::new(|| {
    "WITH own AS (SELECT lease.name, lease.slot FROM idgen.lease \
     JOIN (SELECT DISTINCT name, token FROM ROWS FROM (pg_catalog.unnest($1), pg_catalog.unnest($2)) AS given (name, token)) \
     AS given ON given.name OPERATOR(pg_catalog.=) lease.name AND given.token OPERATOR(pg_catalog.=) lease.token \
     WHERE lease.depth OPERATOR(pg_catalog.>) 0 AND pg_catalog.pg_has_role($3, lease.role::pg_catalog.oid, 'USAGE') \
     ORDER BY lease.name, lease.slot FOR NO KEY UPDATE OF lease) \
     UPDATE idgen.lease SET ttl_us = COALESCE($4, ttl_us), clock = $6, \
     ends_us = $5 OPERATOR(pg_catalog.+) COALESCE($4, ttl_us) FROM own \
     WHERE own.name OPERATOR(pg_catalog.=) lease.name AND own.slot OPERATOR(pg_catalog.=) lease.slot \
     RETURNING lease.name, lease.slot, lease.token, lease.ends_us, lease.session IS NOT NULL"
        .to_owned()
});

/// One of several terms that were renewed.
pub struct Renewed {
    pub name: String,
    pub slot: i32,
    pub token: i64,
    pub ends_us: i64,
    pub is_bound: bool,
}

/// Renews the terms that are there, in the order of their names: whoever renews several waits for others in one order.
pub fn renew_many(names: Vec<&str>, tokens: Vec<i64>, ttl_us: Option<i64>) -> Vec<Renewed> {
    let (now_us, clock) = (machine::now(false).now_us, machine::clock_name());
    let args = [names.into(), tokens.into(), user().into(), ttl_us.into(), now_us.into(), clock.into()];
    let mut renewed = RENEW_MANY.write(&args, |row| Renewed {
        name: value(row, 1),
        slot: value(row, 2),
        token: value(row, 3),
        ends_us: value(row, 4),
        is_bound: value(row, 5),
    });
    renewed.sort_by(|a, b| (&a.name, a.slot).cmp(&(&b.name, b.slot)));
    renewed
}

static UNBIND: Query = Query::new(|| {
    "UPDATE idgen.lease SET session = NULL \
     WHERE name OPERATOR(pg_catalog.=) $1 AND token OPERATOR(pg_catalog.=) $2"
        .to_owned()
});

/// The term is bound to no session any more, and lasts its time.
pub fn unbind(name: &str, token: i64) {
    UNBIND.write(&[name.into(), token.into()], |_| ());
}

static DEEPEN: Query = Query::new(|| {
    format!(
        "UPDATE idgen.lease SET depth = depth OPERATOR(pg_catalog.+) 1, ttl_us = COALESCE($4, ttl_us), clock = $6, \
         ends_us = GREATEST($5 OPERATOR(pg_catalog.+) COALESCE($4, ttl_us), \
                            CASE WHEN clock OPERATOR(pg_catalog.=) $6 THEN ends_us END) \
         WHERE {OWN_TERM} RETURNING {GRANTED}"
    )
});

/// The holder acquires once more. `None` if the token stands for no term of his.
pub fn deepen(wish: &Wish, token: i64) -> Option<Granted> {
    let (now_us, clock) = (machine::now(false).now_us, machine::clock_name());
    let args = [wish.name.into(), token.into(), user().into(), wish.ttl_us.into(), now_us.into(), clock.into()];
    DEEPEN.write(&args, granted).pop()
}

static REMOVE: Query = Query::new(|| {
    format!(
        "DELETE FROM idgen.lease WHERE ctid OPERATOR(pg_catalog.=) (SELECT lease.ctid FROM idgen.lease WHERE {OWN_TERM} \
         AND lease.depth OPERATOR(pg_catalog.=) 1 \
         AND NOT EXISTS (SELECT FROM idgen.lease_definition AS defined WHERE defined.name OPERATOR(pg_catalog.=) lease.name) \
         FOR UPDATE SKIP LOCKED) RETURNING slot"
    )
});
static RELEASE: Query = Query::new(|| {
    format!(
        "UPDATE idgen.lease SET depth = depth OPERATOR(pg_catalog.-) 1, \
         ends_us = CASE WHEN depth OPERATOR(pg_catalog.=) 1 THEN $4 ELSE ends_us END, \
         clock = CASE WHEN depth OPERATOR(pg_catalog.=) 1 THEN $5 ELSE clock END, \
         session = CASE WHEN depth OPERATOR(pg_catalog.>) 1 THEN session END, revoked = false \
         WHERE {OWN_TERM} RETURNING depth"
    )
});

/// Lets go of a term once; returns how deep it still is held. `None` if the token stands for none. The token stays in the row
/// until the next take-over, which waits for transactions that have fenced by it. Of a name that is not defined nothing is
/// left, so that names made for one job each do not pile up; unless somebody has fenced.
pub fn release(name: &str, token: i64) -> Option<i32> {
    let own: [DatumWithOid; 3] = [name.into(), token.into(), user().into()];
    if !REMOVE.write(&own, |_| ()).is_empty() {
        return Some(0);
    }
    let (now_us, clock) = (machine::now(false).now_us, machine::clock_name());
    let [name, token, user] = own;
    RELEASE.write(&[name, token, user, now_us.into(), clock.into()], |row| value(row, 1)).pop()
}

static FENCE: Query = Query::new(|| format!("SELECT lease.slot FROM idgen.lease WHERE {OWN_TERM} FOR KEY SHARE"));

/// Locks the row against take-overs until the transaction ends. False if the token stands for no term, as far as the
/// transaction's snapshot shows.
pub fn fence(name: &str, token: i64) -> bool {
    !FENCE.write(&[name.into(), token.into(), user().into()], |_| ()).is_empty()
}

fn user() -> pg_sys::Oid {
    // SAFETY: reads this process's own state.
    unsafe { pg_sys::GetUserId() }
}

static NAMES: Query = Query::new(|| "SELECT DISTINCT name FROM idgen.lease ORDER BY name".to_owned());

/// The names of which a slot was ever taken.
pub fn names() -> Vec<String> {
    NAMES.look(&[], |row| value(row, 1))
}

/// Who holds a slot, as a text for people.
pub struct Holder {
    pub slot: i32,
    pub text: String,
}

/// A slot and its holder, for people.
const HOLDER: &str = "SELECT slot, pg_catalog.format('%s since %s', \
                      CASE WHEN owner IS NULL THEN pg_catalog.format('role %s', role) \
                           ELSE pg_catalog.format('\"%s\" (role %s)', owner, role) END, \
                      pg_catalog.date_trunc('second', acquired_at)) \
                      FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1";

static HOLDERS: Query = Query::new(|| format!("{HOLDER} ORDER BY slot"));

pub fn holders(name: &str) -> Vec<Holder> {
    HOLDERS.look(&[name.into()], |row| Holder { slot: value(row, 1), text: value(row, 2) })
}

static SLOT_OF: Query = Query::new(|| {
    "SELECT slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND token OPERATOR(pg_catalog.=) $2".to_owned()
});

/// The slot that a token is of.
pub fn slot_of(name: &str, token: i64) -> Option<i32> {
    SLOT_OF.look(&[name.into(), token.into()], |row| value(row, 1)).pop()
}

static IDLE_HOLDERS: Query = Query::new(|| {
    format!("{HOLDER} AND depth OPERATOR(pg_catalog.>) 0 ORDER BY ends_us OPERATOR(pg_catalog.-) ttl_us LIMIT 5")
});

/// Those whose last renewal is longest ago, the first five.
pub fn idle_holders(name: &str) -> Vec<Holder> {
    IDLE_HOLDERS.look(&[name.into()], |row| Holder { slot: value(row, 1), text: value(row, 2) })
}

static FOREIGN_ROLE: Query = Query::new(|| {
    "SELECT role::pg_catalog.text FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 \
     AND token OPERATOR(pg_catalog.=) $2 AND depth OPERATOR(pg_catalog.>) 0 \
     AND NOT pg_catalog.pg_has_role($3, role::pg_catalog.oid, 'USAGE')"
        .to_owned()
});

/// The role that acquired the term, if the caller may not act as it.
pub fn foreign_role(name: &str, token: i64) -> Option<String> {
    FOREIGN_ROLE.look(&[name.into(), token.into(), user().into()], |row| value(row, 1)).pop()
}

static DEFINE: Query = Query::new(|| {
    "INSERT INTO idgen.lease_definition AS defined (name, slots, ttl, lock_delay, owner) \
     VALUES ($1, $2, $3, $4, $5::pg_catalog.regrole) \
     ON CONFLICT (name) DO UPDATE SET slots = excluded.slots, ttl = excluded.ttl, lock_delay = excluded.lock_delay \
     WHERE pg_catalog.pg_has_role($5, defined.owner::pg_catalog.oid, 'USAGE') RETURNING slots"
        .to_owned()
});

/// Lays down, or changes, what holds for a name. Who laid it down first keeps it; false if it is another's.
pub fn define(name: &str, slots: i32, ttl: pgrx::datum::Interval, lock_delay: pgrx::datum::Interval) -> bool {
    !DEFINE.write(&[name.into(), slots.into(), ttl.into(), lock_delay.into(), user().into()], |_| ()).is_empty()
}

static DROP_ROWS: Query =
    Query::new(|| "DELETE FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 RETURNING slot".to_owned());
static DROP_DEFINITION: Query =
    Query::new(|| "DELETE FROM idgen.lease_definition WHERE name OPERATOR(pg_catalog.=) $1 RETURNING slots".to_owned());

/// Forgets all about a name. False if there was nothing. Waits for transactions that have fenced.
pub fn drop_all(name: &str) -> bool {
    let rows = DROP_ROWS.write(&[name.into()], |_| ()).len();
    rows + DROP_DEFINITION.write(&[name.into()], |_| ()).len() > 0
}
