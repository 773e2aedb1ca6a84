//! What the views of leases show: the states of slots, and counters over all databases.
//!
//! No code depends on the order of counters, so every access is relaxed.

use super::boot_clock;
use super::store::definitions;
use super::store::slots::LeaseState;
use crate::pg::encoding::Text;
use crate::pg::timestamp;
use crate::shmem::Part;
use idgen_core::lease::{Availability, LeaseDefinition, Now, Session, Term};
use idgen_core::lock::NameHash;
use pgrx::datum::Interval;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

extension_sql_file!("views.sql", name = "lease_views", requires = [lease_get_states, stat_get_lease]);

pub static COUNTERS: Part<Counters> = Part::new(c"idgen lease counters", |_| Counters::default());

#[repr(align(64))]
#[derive(Default)]
pub struct Counters {
    /// Terms that began in a free slot.
    pub grants: AtomicU64,
    /// Terms that began in a slot whose last holder had not released it.
    pub take_overs: AtomicU64,
    pub renewals: AtomicU64,
    pub releases: AtomicU64,
    pub fences: AtomicU64,
    /// Calls with a token that had no term.
    pub refused: AtomicU64,
    /// Attempts of heads of queues, each of which reads the rows.
    pub probes: AtomicU64,
    pub wait_us: AtomicU64,
}

impl Counters {
    fn reset(&self) {
        let Self { grants, take_overs, renewals, releases, fences, refused, probes, wait_us } = self;
        for counter in [grants, take_overs, renewals, releases, fences, refused, probes, wait_us] {
            counter.store(0, Relaxed);
        }
    }
}

pub fn count(counter: impl FnOnce(&Counters) -> &AtomicU64) {
    if let Some(counters) = COUNTERS.get() {
        counter(counters).fetch_add(1, Relaxed);
    }
}

/// Counts the time from a request to its answer.
pub fn count_wait(time: Duration) {
    if let Some(counters) = COUNTERS.get() {
        counters.wait_us.fetch_add(time.as_micros() as u64, Relaxed);
    }
}

/// The counters: one row, or none unless the library was preloaded.
#[pg_extern(
    sql = "CREATE FUNCTION idgen.stat_get_lease(OUT grants bigint, OUT take_overs bigint, OUT renewals bigint, \
           OUT releases bigint, OUT fences bigint, OUT refused bigint, OUT probes bigint, OUT wait_time interval) \
           RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
#[allow(clippy::type_complexity, reason = "the columns of a view")]
fn stat_get_lease() -> TableIterator<
    'static,
    (
        name!(grants, i64),
        name!(take_overs, i64),
        name!(renewals, i64),
        name!(releases, i64),
        name!(fences, i64),
        name!(refused, i64),
        name!(probes, i64),
        name!(wait_time, Option<Interval>),
    ),
> {
    let row = COUNTERS.get().map(|counters| {
        let of = |counter: fn(&Counters) -> &AtomicU64| counter(counters).load(Relaxed) as i64;
        (
            of(|c| &c.grants),
            of(|c| &c.take_overs),
            of(|c| &c.renewals),
            of(|c| &c.releases),
            of(|c| &c.fences),
            of(|c| &c.refused),
            of(|c| &c.probes),
            timestamp::interval_of_us(of(|c| &c.wait_us)),
        )
    });
    TableIterator::new(row)
}

/// Sets the counters to zero.
pub fn reset() {
    COUNTERS.get().into_iter().for_each(Counters::reset);
}

/// The column `state`.
fn state(term: &Term, definition: &LeaseDefinition, now: Now) -> &'static str {
    match term.availability(definition.lock_delay_us, now) {
        _ if term.is_held(now) => "held",
        Availability::Since(_) if term.depth > 0 => "expired",
        Availability::Since(_) => "free",
        Availability::From(_) | Availability::WithSession => "resting",
    }
}

/// The states of all slots, one row each.
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
    let names = definitions::names();
    TableIterator::new(names.into_iter().flat_map(|name| {
        let lease = LeaseState::read(&name);
        let (now, definition) = (lease.now(), lease.definition);
        lease.terms.into_iter().map(move |term| {
            let ends_us = term.held_until_us(now).filter(|_| term.depth > 0);
            let expires_at = ends_us.and_then(boot_clock::to_wall_time);
            let is_bound = term.session == Session::Lives;
            let key = NameHash::of(&name).key;
            (name.clone().into(), term.slot, state(&term, &definition, now), expires_at, is_bound, key)
        })
    }))
}

/// The states of the first slots of a name, one sentence each, for the DETAIL of an error.
pub fn states_text(name: &str) -> String {
    const MOST: usize = 5;
    let lease = LeaseState::read(name);
    let now = lease.now();
    let holders = definitions::holders(name);
    let sentence = |term: &Term| {
        let state = state(term, &lease.definition, now);
        let holder = holders.iter().find(|holder| holder.slot == term.slot).filter(|_| term.depth > 0);
        match holder {
            Some(holder) => format!("Slot {} is {state} by {}.", term.slot, holder.text),
            None => format!("Slot {} is {state}.", term.slot),
        }
    };
    let sentences: Vec<String> = lease.terms.iter().take(MOST).map(sentence).collect();
    if sentences.is_empty() { "It has no holder.".to_owned() } else { sentences.join(" ") }
}
