//! Acquiring a worker id of a pool, with the rectangle of id times that its holder may use.

use super::pool::{self, Database, SHARE_POOL, WORKER_ID, of_range};
use super::{errors, require_own_transaction};
use crate::args;
use crate::pg::datum::{self, Composite, Text};
use crate::pg::session;
use crate::pg::spi::{Query, user, value};
use crate::pg::xact::{self, Durability};
use crate::settings;
use idgen_core::worker::granting::{self, Free, Grant, GrantRows, PoolDefinition, Request};
use idgen_core::worker::search::{Condition, Order, PARTS, Part, Search};
use pgrx::datum::{DatumWithOid, Interval};
use pgrx::prelude::*;
use pgrx::spi::SpiHeapTupleData;

/// Acquires a worker id of a pool, and an interval of id time, as [`granting::acquire`]. `ttl` NULL: the pool's. `reached` is the
/// latest time of the caller's ids and clock; NULL: this server's clock. Raises 22008 for an infinite `reached`, 22023 for a
/// longer ttl than the pool's and for an owner that is too long, 25001 in a transaction block, 42704 for an unknown pool, 53400
/// if no worker id is free, and 55000 if the caller is too far ahead, or this database is a copy.
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
    let (name, owner) = (args::name(pool.as_deref(), "pool"), args::owner(owner));
    // SAFETY: the call's own fcinfo.
    unsafe { require_own_transaction(c"worker_acquire()", fcinfo) };
    let request = Request {
        owner: owner.as_deref(),
        // One that is longer than all is out of range.
        ttl_us: ttl.map(|ttl| ttl.as_micros().try_into().unwrap_or(i64::MAX)),
        ttl_limits_us: settings::lease_ttl_limits_us(),
        reached_us,
        prefer,
    };
    let granted = granting::acquire(&mut Database, name, &request);
    let (Grant { worker_id, token, rectangle, .. }, wait_us) =
        granted.unwrap_or_else(|refusal| errors::refused(name, refusal));
    // A caller that has to wait before its first id hears for how long.
    if wait_us > 0 {
        errors::not_yet(name, worker_id, wait_us).notice();
    }
    let [not_before, not_after] = [rectangle.not_before_us, rectangle.not_after_us].map(datum::from_us_or_infinity);
    Composite([worker_id.into(), token.into(), not_before.into(), not_after.into(), not_after.into()])
}

/// Picks one row. The arguments: the pool, its lowest and its highest worker id, now, the earliest start of a rectangle, the
/// preferred worker id, the owner, and the epoch. The times are arguments, because an index does not compare with
/// `clock_timestamp()`.
fn pick_text(locking: &str) -> String {
    let mut found: Vec<String> = Vec::new();
    let mut texts = Vec::new();
    for Part { name, conditions, order } in &PARTS {
        let conditions =
            conditions.iter().map(|condition| condition_text(*condition)).collect::<Vec<_>>().join(" AND ");
        let unless: String = found.iter().map(|earlier| format!(" AND NOT EXISTS ({earlier})")).collect();
        let order = match order {
            Order::WorkerId => "worker_id",
            Order::LastEndFirst => "not_after DESC",
            Order::FirstEndFirst => "not_after, worker_id",
        };
        texts.push(format!(
            "{name} AS MATERIALIZED (SELECT worker_id, not_after FROM idgen.worker_id \
             WHERE pool OPERATOR(pg_catalog.=) $1 AND worker_id OPERATOR(pg_catalog.>=) $2 \
             AND worker_id OPERATOR(pg_catalog.<=) $3 AND {conditions}{unless} ORDER BY {order} LIMIT 1 {locking})"
        ));
        found.push(format!("SELECT worker_id, not_after FROM {name}"));
    }
    format!("WITH {} {}", texts.join(", "), found.join(" UNION ALL "))
}

fn condition_text(condition: Condition) -> &'static str {
    match condition {
        Condition::Preferred => "worker_id OPERATOR(pg_catalog.=) $6",
        // By the hash of the owner, because one of an earlier release can be longer than an index allows.
        Condition::Owned => {
            "pg_catalog.hashtext(owner) OPERATOR(pg_catalog.=) pg_catalog.hashtext($7) AND owner OPERATOR(pg_catalog.=) $7"
        }
        Condition::HasToken => "token IS NOT NULL",
        Condition::HasNoToken => "token IS NULL",
        Condition::Over => {
            "not_after OPERATOR(pg_catalog.<=) $5 \
             AND (token IS NULL OR epoch OPERATOR(pg_catalog.<>) $8 OR not_after OPERATOR(pg_catalog.<=) $4)"
        }
        Condition::Ahead => "not_after OPERATOR(pg_catalog.>) $5",
    }
}

static PICK: Query = Query::new(&WORKER_ID, || pick_text("FOR UPDATE SKIP LOCKED"));
/// After [`PICK`] has found none: a row that another transaction is about to grant, or about to leave as it is.
static LOCKED: Query = Query::new(&WORKER_ID, || pick_text(""));
static WAIT: Query = WORKER_ID.query(
    "SELECT worker_id FROM idgen.worker_id \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND worker_id OPERATOR(pg_catalog.=) $2 FOR UPDATE",
);

fn free(row: &SpiHeapTupleData) -> Free {
    let used_until_us = datum::to_us(value(row, 2));
    Free { worker_id: value(row, 1), used_until_us: (used_until_us != i64::MIN).then_some(used_until_us) }
}

fn arguments<'a>(search: &Search<'a>) -> Vec<DatumWithOid<'a>> {
    let times = [search.now_us, search.earliest_start_us];
    let mut arguments = Vec::from(of_range(search.pool, &search.range));
    arguments.extend(times.map(|us| datum::from_us_or_infinity(us).into()));
    arguments.extend([search.prefer.into(), search.owner.into(), search.epoch.into()]);
    arguments
}

static GRANT: Query = WORKER_ID.query(
    "UPDATE idgen.worker_id SET token = $3, owner = $4, role = $5::pg_catalog.regrole, \
         acquired_at = pg_catalog.clock_timestamp(), not_before = $6, not_after = $7, epoch = $8 \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND worker_id OPERATOR(pg_catalog.=) $2",
);

impl GrantRows for Database {
    fn share_pool(&mut self, pool: &str) -> Option<PoolDefinition> {
        let found = SHARE_POOL.write_losable(&[pool.into(), user().into()], pool::pool).pop();
        found.map(|(definition, _)| definition)
    }

    fn undo_unless_found<R>(&mut self, work: impl FnOnce(&mut Self) -> Option<R>) -> Option<R> {
        xact::in_subtransaction(|| work(self)).unwrap_or_else(|cause| cause.rethrow())
    }

    fn lock_free(&mut self, search: &Search) -> Option<Free> {
        PICK.write_losable(&arguments(search), free).pop()
    }

    fn find(&mut self, search: &Search) -> Option<i32> {
        LOCKED.read_latest(&arguments(search), free).pop().map(|locked| locked.worker_id)
    }

    fn wait_for(&mut self, pool: &str, worker_id: i32) {
        xact::rolled_back(|| WAIT.write_losable(&[pool.into(), worker_id.into()], |_| ()));
        check_for_interrupts!();
    }

    fn random(&mut self) -> u64 {
        session::random_i64() as u64
    }

    fn grant(&mut self, pool: &str, grant: &Grant) {
        let Grant { worker_id, token, owner, rectangle, epoch } = *grant;
        let [from, until] = [rectangle.not_before_us, rectangle.not_after_us].map(datum::from_us_or_infinity);
        let (owner, role, from, until) = (owner.into(), user().into(), from.into(), until.into());
        let args = [pool.into(), worker_id.into(), token.into(), owner, role, from, until, epoch.into()];
        GRANT.write_latest(&args, |_| ());
        crate::pg::crash_point!("pool: grant written");
    }

    fn survive_failover(&mut self) {
        xact::require_durability(Durability::Failover);
    }
}
