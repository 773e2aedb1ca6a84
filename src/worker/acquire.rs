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
/// this server's clock. Raises 22008 for an infinite `reached`, 22023 for a longer ttl, 25001 in a transaction block, 42704 for an
/// unknown pool, 53400 if no worker id is free, and 55000 if the caller is too far ahead, or this database is a copy.
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
    let ((worker_id, used_until_us), Now { bounds, epoch }) = pick(name, &pool, &request);
    let (ttl_us, reached_us) = checked_ttl(name, &request, &bounds);
    let rectangle = Rectangle::grant(used_until_us, reached_us, ttl_us, &bounds)
        .unwrap_or_else(|not_before_us| errors::begins_too_far(name, worker_id, not_before_us, &bounds).raise());
    let [not_before, not_after] = [rectangle.not_before_us, rectangle.not_after_us].map(datum::from_us_or_infinity);
    let token = ((session::random_i64() as u64 >> (u64::BITS - TOKEN_BITS)) as i64).max(1);
    let (owner, role) = (request.owner.into(), user().into());
    let args =
        [name.into(), worker_id.into(), token.into(), owner, role, not_before.into(), not_after.into(), epoch.into()];
    GRANT.write_latest(&args, |_| ());
    if request.reached_us.is_none() {
        // Callers that pass `reached` call worker_confirm() after the commit. The commit of others waits for the standbys.
        xact::require_durability(Durability::Failover);
    }
    // A caller that has to wait before its first id hears for how long.
    let wait_us = rectangle.not_before_us.saturating_sub(reached_us.max(system_clock::now_us()));
    if wait_us > 0 {
        errors::not_yet(name, worker_id, wait_us).notice();
    }
    Composite([worker_id.into(), token.into(), not_before.into(), not_after.into(), not_after.into()])
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

/// Picks one row. The arguments: the pool, its lowest and its highest worker id, now, the earliest start of a rectangle, the
/// preferred worker id, the owner, and the epoch. Each part runs only if those before it have found none, and reads an index in
/// its order. By the hash of the owner, because an owner can be longer than an index allows. The times are arguments, because an
/// index does not compare with `clock_timestamp()`.
fn pick_text(locking: &str) -> String {
    // A row without a token, or of an earlier epoch, cannot be renewed: its rectangle is final.
    const OVER: &str = "not_after OPERATOR(pg_catalog.<=) $5 \
                        AND (token IS NULL OR epoch OPERATOR(pg_catalog.<>) $8 OR not_after OPERATOR(pg_catalog.<=) $4)";
    let of_owner = format!(
        "pg_catalog.hashtext(owner) OPERATOR(pg_catalog.=) pg_catalog.hashtext($7) AND owner OPERATOR(pg_catalog.=) $7 AND {OVER}"
    );
    let parts = [
        ("preferred", format!("worker_id OPERATOR(pg_catalog.=) $6 AND {OVER}"), "worker_id"),
        ("owned", of_owner, "not_after DESC"),
        ("ended", format!("token IS NULL AND {OVER}"), "not_after, worker_id"),
        ("expired", format!("token IS NOT NULL AND {OVER}"), "not_after, worker_id"),
        // Its next holder has to wait, or is refused: none begins earlier.
        ("ahead", "token IS NULL AND not_after OPERATOR(pg_catalog.>) $5".to_owned(), "not_after, worker_id"),
    ];
    let mut found: Vec<String> = Vec::new();
    let mut texts = Vec::new();
    for (part, condition, order) in parts {
        let unless: String = found.iter().map(|earlier| format!(" AND NOT EXISTS ({earlier})")).collect();
        texts.push(format!(
            "{part} AS MATERIALIZED (SELECT worker_id, not_after FROM idgen.worker_id \
             WHERE pool OPERATOR(pg_catalog.=) $1 AND worker_id OPERATOR(pg_catalog.>=) $2 \
             AND worker_id OPERATOR(pg_catalog.<=) $3 AND {condition}{unless} ORDER BY {order} LIMIT 1 {locking})"
        ));
        found.push(format!("SELECT worker_id, not_after FROM {part}"));
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

/// Picks a row and locks it: the worker id, and the end of its last rectangle, or `None` if it was never granted. Waits for rows
/// that are locked if no other is free.
fn pick(name: &str, pool: &Pool, request: &Request) -> ((i32, Option<i64>), Now) {
    let read = |row: &SpiHeapTupleData| {
        let used_until_us = datum::to_us(value(row, 2));
        (value::<i32>(row, 1), (used_until_us != i64::MIN).then_some(used_until_us))
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
            Some((locked, _)) => drop(xact::rolled_back(|| WAIT.write_losable(&[name.into(), locked.into()], |_| ()))),
            None => {
                let holders = HOLDERS.read_latest(&of_range(name, &pool.range), |row| text(row, 1));
                errors::exhausted(name, pool.range.clone().count(), &holders.join("; ")).raise()
            }
        }
        check_for_interrupts!();
    }
}

/// Of [`pick_text`].
fn arguments<'a>(name: &'a str, pool: &Pool, request: &Request<'a>, now: &Now) -> Vec<DatumWithOid<'a>> {
    let times = [now.bounds.now_us, now.bounds.earliest_start_us()];
    let mut arguments = Vec::from(of_range(name, &pool.range));
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

static HOLDERS: Query = WORKER_ID.query(
    "SELECT pg_catalog.format('%s by %s since %s', worker_id, \
            CASE WHEN owner IS NULL THEN pg_catalog.format('role %s', role) \
                 ELSE pg_catalog.format('\"%s\" (role %s)', owner, role) END, \
            pg_catalog.date_trunc('second', acquired_at)) \
     FROM idgen.worker_id WHERE pool OPERATOR(pg_catalog.=) $1 AND token IS NOT NULL \
       AND worker_id OPERATOR(pg_catalog.>=) $2 AND worker_id OPERATOR(pg_catalog.<=) $3 ORDER BY not_after LIMIT 5",
);
