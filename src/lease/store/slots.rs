//! Reading a few slots of a lease, and its definition without any slot.

use super::{LEASE, TERM, clock, micros, session_lock, term};
use crate::pg::spi::{Query, value};
use idgen_core::lease::{LeaseDefinition, Session, Term};
use pgrx::prelude::*;

/// The definition of a lease, and its definer.
pub struct Defined {
    pub definition: LeaseDefinition,
    pub definer: pg_sys::Oid,
}

static DEFINED: Query = Query::new(&LEASE, || {
    format!(
        "SELECT slots, {}, {}, first_slot, owner::pg_catalog.oid FROM idgen.lease_definition \
         WHERE name OPERATOR(pg_catalog.=) $1",
        micros("ttl"),
        micros("lock_delay")
    )
});

/// `None` if the lease is not defined.
pub fn defined(name: &str) -> Option<Defined> {
    let read = DEFINED.read_latest(&[name.into()], |row| Defined {
        definition: LeaseDefinition {
            first_slot: value(row, 4),
            slots: value(row, 1),
            ttl_us: value(row, 2),
            lock_delay_us: value(row, 3),
        },
        definer: value(row, 5),
    });
    read.into_iter().next()
}

static LOWEST: Query =
    LEASE.query("SELECT slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 ORDER BY slot LIMIT 1");
static HIGHEST: Query =
    LEASE.query("SELECT slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 ORDER BY slot DESC LIMIT 1");

/// The lowest and the highest slot that have rows.
pub fn range(name: &str) -> Option<(i32, i32)> {
    let end = |query: &Query| query.read_latest(&[name.into()], |row| value(row, 1)).pop();
    end(&LOWEST).zip(end(&HIGHEST))
}

/// One index scan for each slot. With OFFSET, the planner does not turn this into one scan of all slots, which it does
/// where it expects one slot for each name.
static TERMS: Query = Query::new(&LEASE, || {
    format!(
        "SELECT {TERM} FROM pg_catalog.unnest($3) AS asked (slot), \
         LATERAL (SELECT * FROM idgen.lease AS stored WHERE stored.name OPERATOR(pg_catalog.=) $1 \
                  AND stored.slot OPERATOR(pg_catalog.=) asked.slot OFFSET 0) AS lease"
    )
});

/// The rows of these slots, for a caller that wants one of them.
pub fn terms(name: &str, slots: &[i32], lock_delay_us: i64) -> Vec<Term> {
    let args = [name.into(), clock().into(), slots.to_vec().into()];
    TERMS.read_latest(&args, |row| term(row, Some(lock_delay_us)))
}

static FIRST_TERMS: Query = Query::new(&LEASE, || {
    format!(
        "SELECT {TERM} FROM idgen.lease WHERE lease.name OPERATOR(pg_catalog.=) $1 \
         ORDER BY lease.slot LIMIT $3"
    )
});

/// The rows of the lowest slots.
pub fn first_terms(name: &str, count: i64) -> Vec<Term> {
    FIRST_TERMS.read_latest(&[name.into(), clock().into(), count.into()], |row| term(row, None))
}

/// The columns of a row of `idgen.lease` that its state depends on.
pub struct StoredTerm<'a> {
    pub depth: i32,
    pub ends_us: i64,
    pub ttl_us: i64,
    pub revoked: bool,
    pub clock: &'a str,
    pub session: Option<(i64, i64)>,
}

impl StoredTerm<'_> {
    /// The slot and the token are not known, and do not matter for the state.
    pub fn term(&self) -> Term {
        Term {
            slot: 0,
            token: 0,
            depth: self.depth,
            ends_us: self.ends_us,
            ttl_us: self.ttl_us,
            revoked: self.revoked,
            by_this_clock: self.clock == clock(),
            session: self.session.map_or(Session::None, |session| session_lock::state(session, None)),
        }
    }
}
