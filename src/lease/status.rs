//! What observers see of leases: the states of slots, counters over all databases, notifications on the channel `idgen_lease`
//! about leases that are defined with `notify`, and the checks of `idgen.checks`. Like every NOTIFY, these are sent when the
//! transaction commits. The checks read statistics and catalogs, and wait for no lock.
//!
//! No code depends on the order of counters, so every access is relaxed.

use super::rows::column::*;
use super::rows::{self, LeaseRow, ROWS, term};
use super::{definitions, locks};
use crate::args;
use crate::error::{Check, listed};
use crate::pg::datum::{self, Composite, Text};
use crate::pg::effects::notify;
use crate::pg::row::Key;
use crate::pg::spi::{self, Query, text, value};
use crate::pg::{recovery, system_clock};
use crate::shmem::Part;
use idgen_core::lease::{Availability, Now, Session, Term};
use idgen_core::lock::{MAX_OWNER_BYTES, NameHash};
use pgrx::datum::DatumWithOid;
use pgrx::datum::Interval;
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
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

/// What has happened to a term: "granted", "released", "revoked" or "expired".
pub fn notify_event(name: &str, slot: i32, event: &str, owner: Option<&str>) {
    if !definitions::of(name).notify {
        return;
    }
    // A payload has less than 8,000 bytes. JSON escapes a character with at most 6 bytes, and a name has at most 255. An
    // earlier release may have written a longer owner.
    let owner = owner.map(|owner| owner.chars().take(MAX_OWNER_BYTES).collect::<String>());
    let [name, owner] = [Value::from(name), Value::from(owner)];
    notify(CHANNEL, &format!(r#"{{"name": {name}, "slot": {slot}, "event": "{event}", "owner": {owner}}}"#));
}

/// A slot is about to be taken over or freed. If its term was not released, it has expired.
pub fn notify_expired(name: &str, row: &LeaseRow) {
    if row.value::<i32>(DEPTH) > 0 {
        notify_event(name, row.value(SLOT), "expired", row.text(OWNER).as_deref());
    }
}

/// Sessions that have waited for 10 s for a lock that a transaction holds on the row of a lease, or on the whole table. Who waits
/// for a row holds the lock of its tuple. The head of a queue (27761 is the kind of its locks) waits again and again, so its
/// statement says since when. The others wait for a renewal, a release or a fence. 0 is a prepared transaction.
static BLOCKED: Query = Query::of_statistics(
    "WITH every AS MATERIALIZED (SELECT * FROM pg_catalog.pg_locks), \
          here AS (SELECT pg_catalog.to_regclass('idgen.lease')::pg_catalog.oid AS lease, oid AS database FROM pg_catalog.pg_database \
                   WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()), \
          waiting AS (SELECT pid, waitstart, pg_catalog.bool_or(is_head) AS is_head FROM ( \
              SELECT waiting.pid, waiting.waitstart, EXISTS (SELECT FROM every AS queue \
                  WHERE queue.pid OPERATOR(pg_catalog.=) waiting.pid AND queue.granted \
                    AND queue.locktype OPERATOR(pg_catalog.=) 'advisory' AND queue.objsubid OPERATOR(pg_catalog.=) 27761) AS is_head \
              FROM here, every AS waiting JOIN every AS held ON held.pid OPERATOR(pg_catalog.=) waiting.pid \
              WHERE NOT waiting.granted AND waiting.locktype OPERATOR(pg_catalog.<>) 'advisory' AND held.granted \
                AND held.locktype OPERATOR(pg_catalog.=) 'tuple' AND held.relation OPERATOR(pg_catalog.=) here.lease \
                AND held.database OPERATOR(pg_catalog.=) here.database \
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
    vec![blocked(), old_snapshot(), multixacts()]
}

const END_IT: &str =
    "End it: SELECT pg_terminate_backend(pid), or COMMIT or ROLLBACK PREPARED by its gid in pg_prepared_xacts.";

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
        END_IT,
    )
    .since_ms(Some(since_us / 1000))
    .affects(listed(&waiters))
}

/// The oldest transaction of the server that has lasted for a minute, and since when. With `$1`, only one with a snapshot that
/// keeps more than 10,000 dead versions of rows of leases. A change of a row goes through those before it on the page, and from
/// page to page: 100,000 of them make it about ten times as slow. Neither a standby's feedback nor a replication slot says since
/// when it is there.
static OLDEST: Query = Query::of_statistics(
    "SELECT holder, since FROM ( \
         SELECT pg_catalog.format('process %s', pid) AS holder, xact_start AS since, backend_xmin IS NOT NULL AS has_snapshot, \
             datid OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database \
                 WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()) AS is_here \
         FROM pg_catalog.pg_stat_get_activity(NULL) WHERE backend_xid IS NOT NULL OR backend_xmin IS NOT NULL \
         UNION ALL SELECT pg_catalog.format('prepared transaction \"%s\"', gid), prepared, true, \
             database OPERATOR(pg_catalog.=) pg_catalog.current_database() FROM pg_catalog.pg_prepared_xacts) AS held \
     WHERE since OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '1 min'::pg_catalog.interval) \
       AND (NOT $1 OR has_snapshot AND is_here AND pg_catalog.pg_stat_get_dead_tuples( \
            pg_catalog.to_regclass('idgen.lease')::pg_catalog.oid) OPERATOR(pg_catalog.>) 10000) \
     ORDER BY since LIMIT 1",
);

fn oldest_transaction(keeps_dead_rows: bool) -> Option<(String, i64)> {
    OLDEST.read_latest(&[keeps_dead_rows.into()], |row| (text(row, 1), datum::to_us(value(row, 2)))).pop()
}

fn old_snapshot() -> Check {
    const NAME: &str = "old snapshots";
    let Some((holder, since_us)) = oldest_transaction(true) else {
        return Check::ok(NAME, "no old snapshot keeps dead versions of rows of leases");
    };
    Check::warning(
        NAME,
        format!("the snapshot of {holder} keeps dead versions of rows of leases, so acquiring and renewing get slower"),
        END_IT,
    )
    .since_ms(Some(since_us / 1000))
}

/// The age of the oldest multixact in the table, whether autovacuum vacuums it, and from which age on it freezes it, if the table
/// has an age of its own.
static FREEZING: Query = Query::of_statistics(
    "SELECT pg_catalog.mxid_age(relminmxid), \
            pg_catalog.current_setting('autovacuum')::pg_catalog.bool AND pg_catalog.current_setting('track_counts')::pg_catalog.bool \
                AND COALESCE((SELECT option_value::pg_catalog.bool FROM pg_catalog.pg_options_to_table(reloptions) \
                              WHERE option_name OPERATOR(pg_catalog.=) 'autovacuum_enabled'), true), \
            COALESCE((SELECT option_value::int FROM pg_catalog.pg_options_to_table(reloptions) \
                      WHERE option_name OPERATOR(pg_catalog.=) 'autovacuum_multixact_freeze_max_age'), 2147483647) \
     FROM pg_catalog.pg_class WHERE oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('idgen.lease')::pg_catalog.oid",
);

/// The least `autovacuum_multixact_freeze_max_age`. With few members left, PostgreSQL would freeze younger ones too, but those
/// that use up the members are elsewhere then.
const LEAST_FREEZE_AGE: i32 = 10_000;

/// A renewal beside a fence makes a multixact. VACUUM freezes them, and autovacuum does so in time by itself. So this fails only
/// where it cannot, from half of the age on at which PostgreSQL forces it, or where it has not.
fn multixacts() -> Check {
    const NAME: &str = "multixacts";
    let ok = Check::ok(NAME, "the multixacts of rows of leases are frozen in time");
    let read = |row: &SpiHeapTupleData| (value::<i32>(row, 1), value::<bool>(row, 2), value::<i32>(row, 3));
    // A standby freezes what its primary freezes.
    let table = if recovery::is_in_progress() { None } else { FREEZING.read_latest(&[], read).pop() };
    let Some((age, is_vacuumed, own_limit)) = table else { return ok };
    // SAFETY: reads shared memory. The second is the age from which on autovacuum freezes, less than the setting if many members
    // are in use.
    let (kept_age, limit) = unsafe {
        let kept = u32::from(pg_sys::ReadNextMultiXactId()).wrapping_sub(pg_sys::GetOldestMultiXactId().into());
        (kept as i32, pg_sys::MultiXactMemberFreezeThreshold().min(own_limit).max(LEAST_FREEZE_AGE))
    };
    let ages = format!("the oldest has an age of {age}, and at {limit} PostgreSQL forces a freeze");
    if age <= limit / 2 {
        ok
    } else if kept_age > limit / 2 {
        // Locks of the rows of all databases that a transaction could be a member of are kept for it.
        let (holder, since_us) = oldest_transaction(false).unzip();
        let holder = holder.unwrap_or_else(|| "a transaction".to_owned());
        let message = format!("{holder} keeps multixacts of rows of leases from being frozen: {ages}");
        Check::warning(NAME, message, format!("{END_IT} Then run VACUUM (FREEZE) idgen.lease."))
            .since_ms(since_us.map(|since_us| since_us / 1000))
    } else if !is_vacuumed {
        let message = format!("autovacuum is off, and nothing has frozen the multixacts of rows of leases: {ages}");
        Check::warning(NAME, message, "Run VACUUM (FREEZE) idgen.lease, and turn autovacuum on, with track_counts.")
    } else if age > limit.saturating_add(limit / 10) {
        let message = format!("autovacuum has not frozen the multixacts of rows of leases: {ages}");
        Check::warning(
            NAME,
            message,
            "Run VACUUM (FREEZE) idgen.lease, and see in the log of the server what keeps autovacuum from it.",
        )
    } else {
        ok
    }
}
