//! How leases stand, for the view `idgen.leases` and for errors.

use super::{machine, names, row, term};
use crate::pg::encoding::Text;
use idgen_core::lease::{Availability, Definition, Now, Session, Term};
use idgen_core::lock::NameHash;
use pgrx::prelude::*;

/// What stands in the column `state`.
fn state(term: &Term, definition: &Definition, now: Now) -> &'static str {
    match term.availability(definition.lock_delay_us, now) {
        _ if term.is_held(now) => "held",
        Availability::Since(_) if term.depth > 0 => "expired",
        Availability::Since(_) => "free",
        Availability::From(_) | Availability::WithSession => "resting",
    }
}

/// One row for each slot that was ever taken: how it stands now.
#[pg_extern(
    sql = "CREATE FUNCTION idgen.lease_get_states(OUT name text, OUT slot int, OUT state text, OUT expires_at timestamptz, \
           OUT bound boolean, OUT key bigint) RETURNS SETOF record \
           VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity, reason = "the columns of a view")]
fn lease_get_states() -> TableIterator<
    'static,
    (
        name!(name, Text<'static>),
        name!(slot, i32),
        name!(state, &'static str),
        name!(expires_at, Option<TimestampWithTimeZone>),
        name!(bound, bool),
        name!(key, i64),
    ),
> {
    let names = names::names();
    TableIterator::new(names.into_iter().flat_map(|name| {
        let lease = row::look(&name);
        let now = machine::now(lease.needs_the_beginning());
        let definition = lease.definition;
        lease.terms.into_iter().map(move |found| {
            let is_bound = found.session == Session::Lives;
            let ends_at = |us| term::expires_at(None, us);
            let over_us = found.is_over_at_us(now);
            let expires_at = over_us.filter(|_| found.depth > 0).and_then(ends_at);
            let key = NameHash::of(&name).key;
            (name.clone().into(), found.slot, state(&found, &definition, now), expires_at, is_bound, key)
        })
    }))
}

/// How the slots of a name stand, one sentence each, and of many the first.
pub fn states_of(name: &str) -> String {
    const MOST: usize = 5;
    let lease = row::look(name);
    let now = machine::now(lease.needs_the_beginning());
    let holders = names::holders(name);
    let sentence = |found: &Term| {
        let state = state(found, &lease.definition, now);
        let holder = holders.iter().find(|holder| holder.slot == found.slot).filter(|_| found.depth > 0);
        match holder {
            Some(holder) => format!("Slot {} is {state} by {}.", found.slot, holder.text),
            None => format!("Slot {} is {state}.", found.slot),
        }
    };
    let mut sentences: Vec<String> = lease.terms.iter().take(MOST).map(sentence).collect();
    if sentences.is_empty() {
        sentences.push("Nobody holds it.".to_owned());
    }
    sentences.join(" ")
}
