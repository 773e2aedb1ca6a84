//! Acquiring a worker id of a pool, with the rectangle of id times that its holder may use.

use super::pool::{Pool, WORKER_ID, of_range, share_pool};
use super::{errors, history, require_own_transaction};
use crate::args;
use crate::pg::datum::{self, Composite, Text};
use crate::pg::spi::{Query, text, user, value};
use crate::pg::xact::{self, Durability};
use crate::pg::{session, system_clock};
use crate::settings;
use idgen_core::worker::{PoolBounds, Rectangle};
use pgrx::datum::{DatumWithOid, Interval};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;
use std::time::Duration;

/// The arguments after the pool.
struct Request<'a> {
    owner: Option<&'a str>,
    ttl: Option<Interval>,
    reached_us: Option<i64>,
    prefer: Option<i32>,
}

/// Acquires a worker id of a pool, and an interval of id time. Grants `prefer` if its id times are over, else the last worker
/// id of `owner` if its id times are over, else the one whose id times ended first, those that nobody can renew before
/// others. `ttl` is at most the pool's; NULL: the pool's. `reached` is the latest time of the caller's ids and clock; NULL:
/// this server's clock. Raises 22008 for an infinite `reached`, 22023 for a longer ttl, 25001 in a transaction block, 42704 for an unknown pool,
/// 53400 if no worker id is free, and 55000 if the caller is too far ahead, or this database is a copy.
#[pg_extern(sql = false)]
fn worker_acquire(
    pool: Option<Text>,
    owner: Option<Text>,
    ttl: Option<Interval>,
    reached: Option<TimestampWithTimeZone>,
    prefer: Option<i32>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Composite<5> {
    let reached_us = reached.map(|reached| args::finite_us(reached, "reached"));
    let request = Request { owner: owner.as_deref(), ttl, reached_us, prefer };
    let name = args::name(pool.as_deref(), "pool");
    // SAFETY: the call's own fcinfo.
    unsafe { require_own_transaction(c"worker_acquire()", fcinfo) };
    let pool = share_pool(name);
    let (free, now) = pick(name, &pool, &request);
    let (ttl_us, reached_us) = checked_ttl(name, &request, &now.bounds);
    let rectangle =
        Rectangle::grant(free.used_until_us, reached_us, ttl_us, &now.bounds).unwrap_or_else(|not_before_us| {
            errors::begins_too_far(name, free.worker_id, not_before_us, &now.bounds).raise()
        });
    let token = grant(name, free.worker_id, request.owner, rectangle, now.epoch);
    if request.reached_us.is_none() {
        // Callers that pass `reached` call worker_confirm() after the commit. The commit of others waits for the standbys.
        xact::require_durability(Durability::Failover);
    }
    // A caller that has to wait before its first id hears for how long.
    let wait_us = rectangle.not_before_us.saturating_sub(reached_us.max(system_clock::now_us()));
    if wait_us > 0 {
        errors::not_yet(name, free.worker_id, Duration::from_micros(wait_us as u64)).notice();
    }
    let [not_before, not_after] = [rectangle.not_before_us, rectangle.not_after_us].map(datum::from_us_or_infinity);
    Composite([free.worker_id.into(), token.into(), not_before.into(), not_after.into(), not_after.into()])
}

/// The ttl of the grant, and the time that the caller has reached.
fn checked_ttl(pool: &str, request: &Request, bounds: &PoolBounds) -> (i64, i64) {
    // The limits of ttl apply to new definitions only: a pool that was defined before goes on.
    let is_another = |ttl: &Interval| ttl.as_micros() != i128::from(bounds.ttl_us);
    let ttl_us =
        request.ttl.filter(is_another).map_or(bounds.ttl_us, |ttl| args::ttl_us(ttl, settings::lease_ttl_limits_us()));
    let Some(reached_us) = request.reached_us else { return bounds.split(ttl_us) };
    if ttl_us > bounds.ttl_us {
        errors::ttl_beyond_the_pools(pool, bounds.ttl_us).raise();
    }
    if let Some(excess_us) = bounds.excess_us(reached_us) {
        errors::too_far_ahead(excess_us, bounds.max_lead_us).raise();
    }
    (ttl_us, reached_us)
}

/// A worker id that is locked, and can be granted.
struct Free {
    worker_id: i32,
    /// The end of its last rectangle; `None` if it was never granted.
    used_until_us: Option<i64>,
}

/// Picks one row. The arguments: the pool, its lowest and its highest worker id, now, the earliest and the latest start of a
/// rectangle, the preferred worker id, the owner, and the epoch. Each part runs only if those before it have found none, and
/// reads an index in its order. By the hash of the owner, because an owner can be longer than an index allows. The times are
/// arguments, because an index does not compare with `clock_timestamp()`.
fn pick_text(locking: &str) -> String {
    // A row without a token, or of an earlier epoch, cannot be renewed: its rectangle is final.
    const OVER: &str = "not_after OPERATOR(pg_catalog.<=) $5 \
                        AND (token IS NULL OR epoch OPERATOR(pg_catalog.<>) $9 OR not_after OPERATOR(pg_catalog.<=) $4)";
    let of_owner = format!(
        "pg_catalog.hashtext(owner) OPERATOR(pg_catalog.=) pg_catalog.hashtext($8) AND owner OPERATOR(pg_catalog.=) $8 AND {OVER}"
    );
    // The next holders of the last ones have to wait.
    let parts = [
        ("preferred", format!("worker_id OPERATOR(pg_catalog.=) $7 AND {OVER}"), "worker_id"),
        ("owned", of_owner, "not_after DESC"),
        ("ended", format!("token IS NULL AND {OVER}"), "not_after, worker_id"),
        ("expired", format!("token IS NOT NULL AND {OVER}"), "not_after, worker_id"),
        (
            "ahead",
            "token IS NULL AND not_after OPERATOR(pg_catalog.>) $5 AND not_after OPERATOR(pg_catalog.<=) $6".to_owned(),
            "not_after, worker_id",
        ),
    ];
    let mut found: Vec<String> = Vec::new();
    let mut texts = Vec::new();
    for (part, condition, order) in parts {
        let unless: String = found.iter().map(|earlier| format!(" AND NOT EXISTS ({earlier})")).collect();
        texts.push(format!(
            "{part} AS MATERIALIZED (SELECT worker_id, not_after, acquired_at IS NOT NULL AS was_granted \
             FROM idgen.worker_id WHERE pool OPERATOR(pg_catalog.=) $1 AND worker_id OPERATOR(pg_catalog.>=) $2 \
             AND worker_id OPERATOR(pg_catalog.<=) $3 AND {condition}{unless} ORDER BY {order} LIMIT 1 {locking})"
        ));
        found.push(format!("SELECT worker_id, not_after, was_granted FROM {part}"));
    }
    format!("WITH {} {}", texts.join(", "), found.join(" UNION ALL "))
}

static PICK: Query = Query::new(&WORKER_ID, || pick_text("FOR UPDATE SKIP LOCKED"));
/// After [`PICK`] has found none: a row that another transaction is about to grant, or about to leave as it is.
static LOCKED: Query = Query::new(&WORKER_ID, || pick_text(""));
static WAIT: Query = WORKER_ID.query(
    "SELECT worker_id FROM idgen.worker_id \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND worker_id OPERATOR(pg_catalog.=) $2 FOR UPDATE",
);

/// What bounds a grant, as it was when a row was picked.
struct Now {
    bounds: PoolBounds,
    epoch: i32,
}

/// Picks a row and locks it. Waits for rows that are locked if no other is free.
fn pick(name: &str, pool: &Pool, request: &Request) -> (Free, Now) {
    let read = |row: &SpiHeapTupleData| {
        let (worker_id, not_after, was_granted) = (value(row, 1), value(row, 2), value::<bool>(row, 3));
        Free { worker_id, used_until_us: was_granted.then(|| datum::to_us(not_after)) }
    };
    loop {
        let mut now = None;
        // Without a row that is free, this unlocks the history, and rows that turned out to be granted already: to wait with
        // them locked would be a deadlock, and would keep all pools from a new history. After a wait, both are read again.
        let picked = xact::in_subtransaction(|| {
            let history = history::for_grant(pool.ttl_us);
            let bounds = history::bounds(&history, pool.ttl_us);
            checked_ttl(name, request, &bounds);
            let now = now.insert(Now { bounds, epoch: history.epoch });
            PICK.write_losable(&arguments(name, pool, request, now), read).pop()
        });
        let picked = picked.unwrap_or_else(|cause| cause.rethrow());
        let now = now.expect("it was read");
        if let Some(free) = picked {
            return (free, now);
        }
        match LOCKED.read_latest(&arguments(name, pool, request, &now), read).pop() {
            Some(locked) => {
                xact::rolled_back(|| WAIT.write_losable(&[name.into(), locked.worker_id.into()], |_| ()));
            }
            None => refuse_if_exhausted(name, pool, &now.bounds),
        }
        check_for_interrupts!();
    }
}

/// Of [`pick_text`].
fn arguments<'a>(name: &'a str, pool: &Pool, request: &Request<'a>, now: &Now) -> Vec<DatumWithOid<'a>> {
    let bounds = &now.bounds;
    let times = [bounds.now_us, bounds.earliest_start_us(), bounds.latest_start_us()];
    let mut arguments = Vec::from(of_range(name, &pool.range()));
    arguments.extend(times.map(|us| datum::from_us_or_infinity(us).into()));
    arguments.extend([request.prefer.into(), request.owner.into(), now.epoch.into()]);
    arguments
}

static GRANT: Query = WORKER_ID.query(
    "UPDATE idgen.worker_id SET token = $3, owner = $4, role = $5::pg_catalog.regrole, \
         acquired_at = pg_catalog.clock_timestamp(), not_before = $6, not_after = $7, epoch = $8 \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND worker_id OPERATOR(pg_catalog.=) $2",
);

/// A number of JavaScript is exact up to there. That no token is drawn twice for a worker id is a matter of chance: 2^-53.
const TOKEN_BITS: u32 = 53;

/// Grants a worker id whose row is locked. Returns the token.
fn grant(pool: &str, worker_id: i32, owner: Option<&str>, rectangle: Rectangle, epoch: i32) -> i64 {
    let token = ((session::random_i64() as u64 >> (u64::BITS - TOKEN_BITS)) as i64).max(1);
    let [not_before, not_after]: [DatumWithOid; 2] =
        [rectangle.not_before_us, rectangle.not_after_us].map(|us| datum::from_us_or_infinity(us).into());
    let args =
        [pool.into(), worker_id.into(), token.into(), owner.into(), user().into(), not_before, not_after, epoch.into()];
    GRANT.write_latest(&args, |_| ());
    token
}

static FIRST_RELEASED: Query = WORKER_ID.query(
    "SELECT worker_id, not_after FROM idgen.worker_id WHERE pool OPERATOR(pg_catalog.=) $1 AND token IS NULL \
     AND worker_id OPERATOR(pg_catalog.>=) $2 AND worker_id OPERATOR(pg_catalog.<=) $3 ORDER BY not_after LIMIT 1",
);

static HOLDERS: Query = WORKER_ID.query(
    "SELECT pg_catalog.format('%s by %s since %s', worker_id, \
            CASE WHEN owner IS NULL THEN pg_catalog.format('role %s', role) \
                 ELSE pg_catalog.format('\"%s\" (role %s)', owner, role) END, \
            pg_catalog.date_trunc('second', acquired_at)) \
     FROM idgen.worker_id WHERE pool OPERATOR(pg_catalog.=) $1 AND token IS NOT NULL \
       AND worker_id OPERATOR(pg_catalog.>=) $2 AND worker_id OPERATOR(pg_catalog.<=) $3 ORDER BY not_after LIMIT 5",
);

/// Raises 53400 if no worker id is free, and 55000 if the next one begins too far ahead.
fn refuse_if_exhausted(name: &str, pool: &Pool, bounds: &PoolBounds) {
    let args = of_range(name, &pool.range());
    let released = FIRST_RELEASED.read_latest(&args, |row| (value(row, 1), datum::to_us(value(row, 2)))).pop();
    if let Some((worker_id, not_after_us)) = released {
        if not_after_us > bounds.latest_start_us() {
            errors::begins_too_far(name, worker_id, not_after_us, bounds).raise();
        }
        return;
    }
    let holders = HOLDERS.read_latest(&args, |row| text(row, 1));
    errors::exhausted(name, pool.count, &holders.join("; ")).raise()
}
