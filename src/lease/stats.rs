//! What the views of leases show: the states of slots, and counters over all databases.
//!
//! No code depends on the order of counters, so every access is relaxed.

use super::store::{LeaseState, definitions};
use crate::pg::datum::{Composite, Text, form_rows};
use crate::pg::{system_clock, timestamp};
use crate::shmem::Part;
use idgen_core::lease::{Availability, LeaseDefinition, Now, Session, Term};
use idgen_core::lock::NameHash;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

extension_sql_file!(
    "views.sql",
    name = "lease_views",
    requires = [lease_get_states, stat_get_lease, stat_get_reset_time]
);

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

/// The counters: one row, or none unless the library was preloaded.
#[pg_extern(
    sql = "CREATE FUNCTION idgen.stat_get_lease(OUT grants bigint, OUT take_overs bigint, OUT renewals bigint, \
           OUT releases bigint, OUT fences bigint, OUT refused bigint, OUT probes bigint, OUT wait_time interval) \
           RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', '@FUNCTION_NAME@';"
)]
fn stat_get_lease(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, Composite> {
    let row = COUNTERS.get().map(|counters| {
        let of = |counter: &AtomicU64| (counter.load(Relaxed) as i64).into_datum();
        let Counters { grants, take_overs, renewals, releases, fences, refused, probes, wait_us } = counters;
        let wait_time = timestamp::interval_of_us(wait_us.load(Relaxed) as i64).into_datum();
        [of(grants), of(take_overs), of(renewals), of(releases), of(fences), of(refused), of(probes), wait_time]
    });
    // SAFETY: the call's own fcinfo; the types are those of the OUT parameters.
    unsafe { form_rows(fcinfo, row) }
}

/// Sets the counters to zero.
pub fn reset() {
    if let Some(Counters { grants, take_overs, renewals, releases, fences, refused, probes, wait_us }) = COUNTERS.get()
    {
        for counter in [grants, take_overs, renewals, releases, fences, refused, probes, wait_us] {
            counter.store(0, Relaxed);
        }
    }
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
fn lease_get_states(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, Composite> {
    let rows = definitions::names().into_iter().flat_map(|name| {
        let lease = LeaseState::read(&name);
        let (now, definition) = (lease.now(), lease.definition);
        lease.terms.into_iter().map(move |term| {
            let ends_us = term.held_until_us(now).filter(|_| term.depth > 0);
            [
                Text::from(&*name).into_datum(),
                term.slot.into_datum(),
                state(&term, &definition, now).into_datum(),
                ends_us.and_then(system_clock::wall_time_of_boot_us).into_datum(),
                (term.session == Session::Lives).into_datum(),
                NameHash::of(&name).key.into_datum(),
            ]
        })
    });
    // SAFETY: the call's own fcinfo; the types are those of the OUT parameters.
    unsafe { form_rows(fcinfo, rows) }
}

/// The states of the first slots of a lease, one sentence each, for the DETAIL of an error.
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
