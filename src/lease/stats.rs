//! What the views of leases show: the states of slots, and counters over all databases.
//!
//! No code depends on the order of counters, so every access is relaxed.

use super::store::{self, definitions, slots};
use crate::args;
use crate::pg::datum::{Composite, Text, form_row, form_rows};
use crate::pg::{system_clock, timestamp};
use crate::shmem::Part;
use idgen_core::lease::{Availability, Now, Session, Term};
use idgen_core::lock::NameHash;
use pgrx::datum::Interval;
use pgrx::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
#[pg_extern(sql = false)]
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
fn state(term: &Term, lock_delay_us: i64, now: Now) -> &'static str {
    match term.availability(lock_delay_us, now) {
        _ if term.is_held(now) => "held",
        Availability::Since(_) if term.depth > 0 => "expired",
        Availability::Since(_) => "free",
        Availability::From(_) | Availability::WithSession => "resting",
    }
}

/// The state of a slot, given its row and the definition's lock delay. Reads no table, so that a query for one name of
/// the view reads the rows of that name.
#[pg_extern(sql = false)]
#[allow(clippy::too_many_arguments, reason = "columns of a row")]
fn lease_get_state(
    name: Option<Text>,
    depth: Option<i32>,
    ends_us: Option<i64>,
    ttl_us: Option<i64>,
    revoked: Option<bool>,
    clock: Option<Text>,
    session: Option<i64>,
    session_key: Option<i64>,
    lock_delay: Option<Interval>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Composite {
    let name = args::name(name.as_deref(), "name");
    let stored = slots::StoredTerm {
        depth: args::required(depth, "depth"),
        ends_us: args::required(ends_us, "ends_us"),
        ttl_us: args::required(ttl_us, "ttl_us"),
        revoked: args::required(revoked, "revoked"),
        clock: args::required(clock.as_deref(), "clock"),
        session: session.zip(session_key),
    };
    let lock_delay_us = lock_delay.map_or(0, |delay| i64::try_from(delay.as_micros()).unwrap_or(i64::MAX));
    let term = stored.term();
    let now = store::now_for(std::slice::from_ref(&term));
    let ends_us = term.held_until_us(now).filter(|_| term.depth > 0);
    let columns = [
        state(&term, lock_delay_us, now).into_datum(),
        ends_us.and_then(system_clock::wall_time_of_boot_us).into_datum(),
        (term.session == Session::Lives).into_datum(),
        NameHash::of(name).key.into_datum(),
    ];
    // SAFETY: the call's own fcinfo; the types are those of the OUT parameters.
    unsafe { form_row(fcinfo, columns) }
}

/// The states of the first slots of a lease, one sentence each, for the DETAIL of an error.
pub fn states_text(name: &str) -> String {
    const MOST: i64 = 5;
    let lock_delay_us = slots::defined(name).map_or(0, |defined| defined.definition.lock_delay_us);
    let terms = slots::first_terms(name, MOST);
    let now = store::now_for(&terms);
    let holders = definitions::holders(name, MOST);
    let sentence = |term: &Term| {
        let state = state(term, lock_delay_us, now);
        let holder = holders.iter().find(|holder| holder.slot == term.slot).filter(|_| term.depth > 0);
        match holder {
            Some(holder) => format!("Slot {} is {state} by {}.", term.slot, holder.text),
            None => format!("Slot {} is {state}.", term.slot),
        }
    };
    let sentences: Vec<String> = terms.iter().map(sentence).collect();
    if sentences.is_empty() { "It has no holder.".to_owned() } else { sentences.join(" ") }
}
