//! What observers see of leases: the states of slots, counters over all databases, the checks of `idgen.checks`, and
//! notifications on the channel `idgen_lease` about leases that are defined with `notify`. Like every NOTIFY, these are sent
//! when the transaction commits.
//!
//! No code depends on the order of counters, so every access is relaxed.

use super::rows::column::*;
use super::rows::{self, LeaseRow, ROWS, clock, term};
use super::{definitions, locks};
use crate::args;
use crate::error::{Check, listed};
use crate::pg::datum::{self, Composite, Text};
use crate::pg::effects::notify;
use crate::pg::row::Key;
use crate::pg::spi::{self, Query, text, value};
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

/// The counters: one row, or none unless the library was preloaded.
#[pg_extern(sql = false)]
fn stat_get_lease() -> SetOfIterator<'static, Composite<8>> {
    let row = COUNTERS.get().map(|counters| {
        let of = |counter: &AtomicU64| DatumWithOid::from(counter.load(Relaxed) as i64);
        let Counters { grants, take_overs, renewals, releases, fences, refused, probes, wait_us } = counters;
        let wait_time = datum::interval_of_us(wait_us.load(Relaxed) as i64).into();
        Composite([
            of(grants),
            of(take_overs),
            of(renewals),
            of(releases),
            of(fences),
            of(refused),
            of(probes),
            wait_time,
        ])
    });
    SetOfIterator::new(row)
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
) -> Composite<4> {
    let name = args::name(name.as_deref(), "name");
    let stored = StoredTerm {
        depth: args::required(depth, "depth"),
        ends_us: args::required(ends_us, "ends_us"),
        ttl_us: args::required(ttl_us, "ttl_us"),
        revoked: args::required(revoked, "revoked"),
        clock: args::required(clock.as_deref(), "clock"),
        session: session.zip(session_key),
    };
    let lock_delay_us = lock_delay.map_or(0, |delay| i64::try_from(delay.as_micros()).unwrap_or(i64::MAX));
    let term = stored.term();
    let now = rows::now_for(std::slice::from_ref(&term));
    let ends_us = term.held_until_us(now).filter(|_| term.depth > 0);
    Composite([
        state(&term, lock_delay_us, now).into(),
        ends_us.and_then(system_clock::wall_time_of_boot_us).into(),
        (term.session == Session::Lives).into(),
        NameHash::of(name).key.into(),
    ])
}

/// The columns of a row of `idgen.lease` that its state depends on.
struct StoredTerm<'a> {
    depth: i32,
    ends_us: i64,
    ttl_us: i64,
    revoked: bool,
    clock: &'a str,
    session: Option<(i64, i64)>,
}

impl StoredTerm<'_> {
    /// The slot and the token are not known, and do not matter for the state.
    fn term(&self) -> Term {
        Term {
            slot: 0,
            token: 0,
            depth: self.depth,
            ends_us: self.ends_us,
            ttl_us: self.ttl_us,
            revoked: self.revoked,
            by_this_clock: self.clock == clock(),
            session: self.session.map_or(Session::None, |session| locks::session_state(session, None)),
        }
    }
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

/// Sessions that have waited for 10 s for a lock that a transaction holds on the row of a lease, or on the whole table. The head
/// of a queue (27761 is the kind of its locks) waits again and again, so its statement says since when. The others wait for a
/// renewal, a release or a fence. 0 is a prepared transaction.
static BLOCKED: Query = Query::of_statistics(
    "WITH every AS MATERIALIZED (SELECT * FROM pg_catalog.pg_locks), \
          here AS (SELECT pg_catalog.to_regclass('idgen.lease')::pg_catalog.oid AS lease, oid AS database FROM pg_catalog.pg_database \
                   WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()), \
          waiting AS (SELECT pid, waitstart, pg_catalog.bool_or(is_head) AS is_head FROM ( \
              SELECT waiting.pid, waiting.waitstart, held.locktype OPERATOR(pg_catalog.=) 'advisory' AS is_head \
              FROM here, every AS waiting JOIN every AS held ON held.pid OPERATOR(pg_catalog.=) waiting.pid \
              WHERE NOT waiting.granted AND waiting.locktype OPERATOR(pg_catalog.<>) 'advisory' AND held.granted \
                AND (held.locktype OPERATOR(pg_catalog.=) 'advisory' AND held.objsubid OPERATOR(pg_catalog.=) 27761 \
                     OR held.locktype OPERATOR(pg_catalog.=) 'tuple' AND held.relation OPERATOR(pg_catalog.=) here.lease \
                        AND held.database OPERATOR(pg_catalog.=) here.database) \
              UNION ALL SELECT waiting.pid, waiting.waitstart, false FROM here, every AS waiting \
              WHERE NOT waiting.granted AND waiting.relation OPERATOR(pg_catalog.=) here.lease \
                AND waiting.database OPERATOR(pg_catalog.=) here.database) AS waiter GROUP BY pid, waitstart), \
          since AS (SELECT waiting.pid, CASE WHEN is_head THEN GREATEST(activity.xact_start, activity.query_start) \
                                             ELSE waiting.waitstart END AS since \
                    FROM waiting CROSS JOIN LATERAL pg_catalog.pg_stat_get_activity(waiting.pid) AS activity) \
     SELECT pid, since, pg_catalog.array_to_string(pg_catalog.pg_blocking_pids(pid), ', ') FROM since \
     WHERE since OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '10 s'::pg_catalog.interval) \
     ORDER BY since",
);

pub fn checks() -> Vec<Check> {
    vec![blocked(), old_snapshot()]
}

fn blocked() -> Check {
    const NAME: &str = "leases";
    let waiting = BLOCKED.read_latest(&[], |row| (value::<i32>(row, 1), datum::to_us(value(row, 2)), text(row, 3)));
    let Some((_, since_us, blockers)) = waiting.first() else {
        return Check::ok(NAME, "no session waits for a lease because of a transaction that has not ended");
    };
    let waiters: Vec<String> = waiting.iter().map(|(pid, ..)| format!("process {pid}")).collect();
    let blocker = if blockers == "0" {
        "a prepared transaction".to_owned()
    } else {
        format!("the transaction of process {blockers}")
    };
    Check::warning(
        NAME,
        format!("sessions wait for a lease, because {blocker} has locked it, by a fence, an acquisition or a release, and has not ended"),
        "End it: SELECT pg_terminate_backend(pid), or COMMIT or ROLLBACK PREPARED by its gid in pg_prepared_xacts.",
    )
    .since_ms(Some(since_us / 1000))
    .affects(listed(&waiters))
}

/// The oldest snapshot of this database that has lasted for a minute, if it keeps more than 10,000 dead versions of rows of
/// leases. A change of a row goes through those before it on the page, and from page to page: 100,000 of them make it about ten
/// times as slow. Neither a standby's feedback nor a replication slot says since when it is there.
static OLD_SNAPSHOT: Query = Query::of_statistics(
    "SELECT holder, since FROM ( \
         SELECT pg_catalog.format('process %s', pid) AS holder, xact_start AS since \
         FROM pg_catalog.pg_stat_get_activity(NULL) \
         WHERE backend_xmin IS NOT NULL AND datid OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database \
             WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()) \
         UNION ALL SELECT pg_catalog.format('prepared transaction \"%s\"', gid), prepared FROM pg_catalog.pg_prepared_xacts \
         WHERE database OPERATOR(pg_catalog.=) pg_catalog.current_database()) AS held \
     WHERE since OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '1 min'::pg_catalog.interval) \
       AND pg_catalog.pg_stat_get_dead_tuples(pg_catalog.to_regclass('idgen.lease')::pg_catalog.oid) OPERATOR(pg_catalog.>) 10000 \
     ORDER BY since LIMIT 1",
);

fn old_snapshot() -> Check {
    const NAME: &str = "old snapshots";
    let oldest = OLD_SNAPSHOT.read_latest(&[], |row| (text(row, 1), datum::to_us(value(row, 2)))).pop();
    let Some((holder, since_us)) = oldest else {
        return Check::ok(NAME, "no old snapshot keeps dead versions of rows of leases");
    };
    Check::warning(
        NAME,
        format!("the snapshot of {holder} keeps dead versions of rows of leases, so acquiring and renewing get slower"),
        "End it: SELECT pg_terminate_backend(pid), or COMMIT or ROLLBACK PREPARED by its gid in pg_prepared_xacts.",
    )
    .since_ms(Some(since_us / 1000))
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
