//! What observers see of leases: the states of slots, counters over all databases, and notifications on the channel
//! `idgen_lease` about leases that are defined with `notify`. Like every NOTIFY, these are sent when the transaction commits.
//!
//! No code depends on the order of counters, so every access is relaxed.

use super::rows::column::*;
use super::rows::{self, LeaseRow, ROWS, term};
use super::{definitions, locks};
use crate::args;
use crate::pg::datum::{self, Composite, Text};
use crate::pg::effects::notify;
use crate::pg::row::Key;
use crate::pg::spi;
use crate::pg::system_clock;
use crate::shmem::Part;
use idgen_core::lease::{Availability, Now, Session, Term};
use idgen_core::lock::NameHash;
use pgrx::datum::DatumWithOid;
use pgrx::datum::Interval;
use pgrx::prelude::*;
use serde_json::Value;
use std::ffi::CStr;
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

impl Counters {
    /// In the order of the columns of `idgen.stat_lease`.
    fn all(&self) -> [&AtomicU64; 8] {
        let Self { grants, take_overs, renewals, releases, fences, refused, probes, wait_us } = self;
        [grants, take_overs, renewals, releases, fences, refused, probes, wait_us]
    }
}

/// The counters: one row, or none unless the library was preloaded.
#[pg_extern(sql = false)]
fn stat_get_lease() -> SetOfIterator<'static, Composite<8>> {
    let row = COUNTERS.get().map(|counters| {
        let mut columns = counters.all().map(|counter| DatumWithOid::from(counter.load(Relaxed) as i64));
        columns[7] = datum::interval_of_us(counters.wait_us.load(Relaxed) as i64).into();
        Composite(columns)
    });
    SetOfIterator::new(row)
}

/// Sets the counters to zero.
pub fn reset() {
    COUNTERS.get().into_iter().flat_map(Counters::all).for_each(|counter| counter.store(0, Relaxed));
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
) -> Composite<4> {
    let name = args::name(name.as_deref(), "name");
    let term = Term {
        // These do not matter for the state.
        slot: 0,
        token: 0,
        depth: args::required(depth, "depth"),
        ends_us: args::required(ends_us, "ends_us"),
        ttl_us: args::required(ttl_us, "ttl_us"),
        revoked: args::required(revoked, "revoked"),
        by_this_clock: args::required(clock.as_deref(), "clock") == rows::clock(),
        session: locks::session_state(session.zip(session_key), None),
    };
    let lock_delay_us = lock_delay.map_or(0, |delay| i64::try_from(delay.as_micros()).unwrap_or(i64::MAX));
    let now = rows::now_for(std::slice::from_ref(&term));
    let ends_us = term.held_until_us(now).filter(|_| term.depth > 0);
    Composite([
        state(&term, lock_delay_us, now).into(),
        ends_us.and_then(system_clock::wall_time_of_boot_us).into(),
        (term.session == Session::Lives).into(),
        NameHash::of(name).key.into(),
    ])
}

/// The states of the first slots of a lease, one sentence each, for the DETAIL of an error.
pub fn states_text(name: &str) -> String {
    const MOST: usize = 5;
    let lock_delay_us = definitions::of(name).definition.map_or(0, |definition| definition.lock_delay_us);
    let mut sentences: Vec<String> = Vec::new();
    let describe = |row: &LeaseRow| {
        let term = term(row, None);
        let state = state(&term, lock_delay_us, rows::now_for(&[term]));
        let by = if term.depth > 0 { format!(" by {}", holder(row)) } else { String::new() };
        sentences.push(format!("Slot {} is {state}{by}.", term.slot));
        (sentences.len() == MOST).then_some(())
    };
    ROWS.read(|rows| rows.latest(|latest| latest.find(&[Key::Text(name)], describe)));
    if sentences.is_empty() { "It has no holder.".to_owned() } else { sentences.join(" ") }
}

fn holder(row: &LeaseRow) -> String {
    let role = spi::role_name(row.value(ROLE));
    let since = datum::text_to_second(row.value(ACQUIRED_AT));
    match row.text(OWNER) {
        Some(owner) => format!("\"{owner}\" (role {role}) since {since}"),
        None => format!("role {role} since {since}"),
    }
}

const CHANNEL: &CStr = c"idgen_lease";

/// A payload has less than 8,000 bytes. JSON escapes a character with at most 6 bytes, and a name has at most 255.
const OWNER_CHARACTERS: usize = 1000;

/// What has happened to a term: "granted", "released", "revoked" or "expired".
pub fn notify_event(name: &str, slot: i32, event: &str, owner: Option<&str>) {
    if !definitions::of(name).notify {
        return;
    }
    let owner = owner.map(|owner| owner.chars().take(OWNER_CHARACTERS).collect::<String>());
    let [name, owner] = [Value::from(name), Value::from(owner)];
    notify(CHANNEL, &format!(r#"{{"name": {name}, "slot": {slot}, "event": "{event}", "owner": {owner}}}"#));
}

/// A slot is about to be taken over or freed. If its term was not released, it has expired.
pub fn notify_expired(name: &str, row: &LeaseRow) {
    if row.value::<i32>(DEPTH) > 0 {
        notify_event(name, row.value(SLOT), "expired", row.text(OWNER).as_deref());
    }
}
