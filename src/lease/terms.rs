//! The rows of terms, found by their token. The holder's role must be one that the caller may act as.

use super::begin::{HELD, HeldTerm, held};
use super::store::{LEASE, clock};
use crate::pg::spi::{Query, optional, text, user, value};
use crate::pg::system_clock;
use idgen_core::lease::FIRST_SHARED;

/// The term of a token, if the caller may act as the holder's role.
const HELD_TERM: &str = "lease.name OPERATOR(pg_catalog.=) $1 AND lease.token OPERATOR(pg_catalog.=) $2 \
                        AND lease.depth OPERATOR(pg_catalog.>) 0 \
                        AND pg_catalog.pg_has_role($3, lease.role::pg_catalog.oid, 'USAGE')";

static LOCK: Query =
    Query::new(&LEASE, || format!("SELECT lease.slot FROM idgen.lease WHERE {HELD_TERM} FOR NO KEY UPDATE"));
static RENEW: Query = Query::new(&LEASE, || {
    format!(
        "UPDATE idgen.lease SET ttl_us = COALESCE($4, ttl_us), clock = $6, \
         ends_us = $5 OPERATOR(pg_catalog.+) COALESCE($4, ttl_us) WHERE {HELD_TERM} RETURNING {HELD}"
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
         WHERE {HELD_TERM} RETURNING {HELD}"
    )
});

/// Acquires a term once more. `None` if the token has no term.
pub fn deepen(name: &str, token: i64, ttl_us: Option<i64>) -> Option<HeldTerm> {
    extend(&DEEPEN, name, token, ttl_us)
}

static REMOVE: Query = Query::new(&LEASE, || {
    format!(
        "DELETE FROM idgen.lease WHERE ctid OPERATOR(pg_catalog.=) (SELECT lease.ctid FROM idgen.lease WHERE {HELD_TERM} \
         AND lease.depth OPERATOR(pg_catalog.=) 1 AND (lease.slot OPERATOR(pg_catalog.>=) {FIRST_SHARED} OR NOT EXISTS ( \
             SELECT FROM idgen.lease_definition AS defined WHERE defined.name OPERATOR(pg_catalog.=) lease.name)) \
         FOR UPDATE SKIP LOCKED) RETURNING slot"
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
         WHERE {HELD_TERM} {condition} RETURNING depth"
    )
}

/// Releases a term once, and returns the depth that is left. `None` if the token has no term. The token stays in the
/// row until the next grant, which waits for transactions that have fenced by it. The row of an undefined lease, and that
/// of a shared term, is deleted unless a transaction has fenced, so that such rows do not accumulate.
pub fn release(name: &str, token: i64, is_defined: bool) -> Option<i32> {
    let (user, now_us, clock) = (user(), system_clock::boot_us(), clock());
    let update = |query: &Query| {
        let args = [name.into(), token.into(), user.into(), now_us.into(), clock.into()];
        query.write_losable(&args, |row| value(row, 1)).pop()
    };
    let remove = || REMOVE.write_losable(&[name.into(), token.into(), user.into()], |_| 0).pop();
    let released = if is_defined { update(&RELEASE_SLOT) } else { None };
    released.or_else(remove).or_else(|| update(&RELEASE))
}

static FENCE: Query =
    Query::new(&LEASE, || format!("SELECT lease.slot FROM idgen.lease WHERE {HELD_TERM} FOR KEY SHARE"));

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
