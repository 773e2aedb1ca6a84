//! Acquiring a worker id of a pool, with the rectangle of id times that its holder may use; and which worker ids a new
//! holder prefers, by the rectangles of their last holders.

use super::errors;
use super::history::{self, HistoryBounds};
use super::store::{HeldWorkerId, WORKER_NUMBER, finite_us, require_own_transaction, used_until_us};
use crate::args;
use crate::lease;
use crate::lease::{AcquireRequest, Candidates, HeldTerm, LEASE, NewHolder, SlotPreference, Unused};
use crate::pg::advisory_lock::Limit;
use crate::pg::datum::{self, Composite, Text};
use crate::pg::spi::{Query, value};
use crate::pg::{system_clock, xact};
use idgen_core::worker::{PoolBounds, Rectangle};
use pgrx::datum::Interval;
use pgrx::prelude::*;
use std::collections::HashSet;
use std::time::Duration;

/// The arguments after the pool.
struct Request<'a> {
    owner: Option<&'a str>,
    ttl: Option<Interval>,
    reached_us: Option<i64>,
    prefer: Option<i32>,
}

/// Acquires a worker id of a pool, and an interval of id time. Grants `prefer` if it is free, else the last worker id
/// of `owner` if its id times are over, else any other. `ttl` is at most the pool's; NULL binds the lease to the
/// session. `reached` is the latest time of the caller's ids and clock; NULL: this server's clock. Raises 22008 for an
/// infinite `reached`, 22023 for a longer ttl, 25001 in a transaction block, 42704 for an unknown pool, 53400 if no
/// worker id is free, and 55000 if the caller is too far ahead.
#[pg_extern(sql = false)]
fn worker_acquire(
    pool: Option<Text>,
    owner: Option<Text>,
    ttl: Option<Interval>,
    reached: Option<TimestampWithTimeZone>,
    prefer: Option<i32>,
    fcinfo: pg_sys::FunctionCallInfo,
) -> Composite<5> {
    let reached_us = reached.map(|reached| finite_us("reached", reached));
    let request = Request { owner: owner.as_deref(), ttl, reached_us, prefer };
    let pool = args::name(pool.as_deref(), "pool");
    // SAFETY: the call's own fcinfo.
    unsafe { require_own_transaction(c"worker_acquire()", fcinfo) };
    let history = history::for_grant(pool_ttl_us(pool));
    let (lease_ttl_us, lead_us) = checked_ttl(pool, &request, history);
    let (granted, bounds) = acquire_slot(pool, &request, lease_ttl_us, history);
    let holder = HeldWorkerId { pool, worker_id: granted.slot, token: granted.token };
    let reached_us = request.reached_us.unwrap_or_else(|| bounds.now_us.saturating_add(lead_us));
    let ttl_us = lease_ttl_us.unwrap_or(bounds.ttl_us).min(bounds.ttl_us);
    let rectangle = Rectangle::grant(used_until_us(pool, granted.slot), reached_us, ttl_us, &bounds)
        .unwrap_or_else(|not_before_us| errors::begins_too_far(pool, granted.slot, not_before_us, &bounds).raise());
    holder.begin(rectangle, request.owner);
    announce_wait(&holder, rectangle, reached_us);
    Composite([
        granted.slot.into(),
        granted.token.into(),
        datum::from_us_or_infinity(rectangle.not_before_us).into(),
        datum::from_us_or_infinity(rectangle.not_after_us).into(),
        granted.expires_at().into(),
    ])
}

/// The ttl of the lease, `None` to bind it to the session; and how far the caller is ahead of this clock, if it does
/// not pass `reached`.
fn checked_ttl(pool: &str, request: &Request, history: HistoryBounds) -> (Option<i64>, i64) {
    let bounds = history.of_pool(pool_ttl_us(pool));
    // The limits of ttl apply to new definitions only: a pool that was defined before goes on.
    let is_the_pools = |ttl: &Interval| ttl.as_micros() == i128::from(bounds.ttl_us);
    let ttl_us = match request.ttl {
        Some(ttl) if is_the_pools(&ttl) => Some(bounds.ttl_us),
        ttl => lease::checked_ttl_us(ttl),
    };
    match (ttl_us, request.reached_us) {
        (Some(ttl_us), None) => {
            let (lease_us, reached_us) = bounds.split(ttl_us);
            (Some(lease_us), reached_us.saturating_sub(bounds.now_us))
        }
        (Some(ttl_us), Some(_)) if ttl_us > bounds.ttl_us => errors::ttl_beyond_the_pools(pool, bounds.ttl_us).raise(),
        (ttl_us, reached_us) => {
            if let Some(excess_us) = reached_us.and_then(|reached_us| bounds.excess_us(reached_us)) {
                errors::too_far_ahead(excess_us, bounds.max_lead_us).raise();
            }
            (ttl_us, 0)
        }
    }
}

/// Acquires a slot of the pool, and reads the bounds of its rectangle.
fn acquire_slot(
    pool: &str,
    request: &Request,
    lease_ttl_us: Option<i64>,
    history: HistoryBounds,
) -> (HeldTerm, PoolBounds) {
    let latest_us = history.of_pool(pool_ttl_us(pool)).latest_start_us();
    let is_usable = |id: &i32| used_until_us(pool, *id).is_none_or(|until_us| until_us <= latest_us);
    let owner = request.owner;
    let acquire = AcquireRequest {
        name: pool,
        ttl_us: lease_ttl_us,
        holder: NewHolder { owner, data: None, bind_session: lease_ttl_us.is_none() },
        shared: false,
        only_if_free: true,
        preference: Some(&WorkerPreference { pool, owner, wanted: request.prefer.filter(is_usable) }),
        shares_snapshot: false,
    };
    let take = || lease::acquire(&acquire, Limit::by_lock_timeout());
    // Callers that do not pass `reached` need not call worker_confirm(): their commit waits for the standbys.
    let granted = if request.reached_us.is_some() { xact::deferring_standbys(take) } else { take() };
    let Some(granted) = granted else {
        let slots = lease::defined(pool).map_or(0, |defined| defined.definition.slots);
        errors::exhausted(pool, slots, &lease::idle_holders(pool)).raise()
    };
    // Read again: during the wait the pool may have been moved, dropped or changed, and the history interrupted.
    let ttl_us = pool_ttl_us(pool);
    let bounds = history::for_holder(pool, granted.token, ttl_us).of_pool(ttl_us);
    (granted, bounds)
}

/// Tells a caller that has to wait before its first id for how long.
fn announce_wait(holder: &HeldWorkerId, rectangle: Rectangle, reached_us: i64) {
    let wait_us = rectangle.not_before_us.saturating_sub(reached_us.max(system_clock::now_us()));
    if wait_us > 0 {
        errors::not_yet(holder.pool, holder.worker_id, Duration::from_micros(wait_us as u64)).notice();
    }
}

/// The ttl of a pool. Raises 42704 if it is not defined.
fn pool_ttl_us(pool: &str) -> i64 {
    lease::defined(pool).unwrap_or_else(|| errors::unknown_pool(pool).raise()).definition.ttl_us
}

/// The preference of one request.
struct WorkerPreference<'a> {
    pool: &'a str,
    owner: Option<&'a str>,
    /// The worker id that the caller asks for.
    wanted: Option<i32>,
}

impl SlotPreference for WorkerPreference<'_> {
    fn first(&self) -> Vec<i32> {
        self.wanted_or_last_of_owner().slots
    }

    fn last(&self) -> Vec<i32> {
        AHEAD.read_latest(&[self.pool.into()], |row| value(row, 1))
    }

    fn ended(&self) -> HashSet<i32> {
        OVER.read_latest(&[self.pool.into()], |row| value(row, 1)).into_iter().collect()
    }

    /// The preferred worker ids and one that was never granted, then those whose rectangles are over: released ones, the
    /// longest over first, then expired ones. Then one that a request for a higher one has left out, then released ones
    /// whose next holder has to wait. A holder that neither
    /// renews nor releases, or a slot that was freed as a lease, is found once its rectangle is over.
    fn candidates(&self, unused: Unused) -> Box<dyn Iterator<Item = Candidates> + '_> {
        let first = move || {
            let mut first = self.wanted_or_last_of_owner();
            first.slots.extend(unused.above);
            first
        };
        let over = |query: &Query| {
            let slots = self.at_now(query);
            Candidates { ended: slots.iter().copied().collect(), slots, only_unused: false }
        };
        let batches: [Box<dyn FnOnce() -> Candidates + '_>; 5] = [
            Box::new(first),
            Box::new(move || over(&RELEASED)),
            Box::new(move || over(&EXPIRED)),
            Box::new(|| Candidates { slots: unused.spread, only_unused: true, ..Candidates::default() }),
            Box::new(|| Candidates { slots: self.at_now(&RELEASED_AHEAD), ..Candidates::default() }),
        ];
        Box::new(batches.into_iter().map(|batch| batch()))
    }
}

impl WorkerPreference<'_> {
    /// The wanted worker id, then the last one of the owner: each only if its rectangle is over.
    fn wanted_or_last_of_owner(&self) -> Candidates {
        let last_of_owner = || self.owner.and_then(|owner| last_of_owner(self.pool, owner));
        let now_us = system_clock::now_us();
        let mut preferred = Candidates::default();
        for worker_id in self.wanted.into_iter().chain(last_of_owner()) {
            let used_until_us = used_until_us(self.pool, worker_id);
            if used_until_us.is_none_or(|used_until_us| used_until_us <= now_us) {
                preferred.slots.push(worker_id);
                preferred.ended.extend(used_until_us.map(|_| worker_id));
            }
        }
        preferred
    }

    fn at_now(&self, query: &Query) -> Vec<i32> {
        let now = datum::from_us_or_infinity(system_clock::now_us());
        query.read_latest(&[self.pool.into(), now.into()], |row| value(row, 1))
    }
}

/// By the hash, because an owner can be longer than an index allows.
static LAST_OF_OWNER: Query = WORKER_NUMBER.query(
    "SELECT number FROM idgen.worker_number WHERE pool OPERATOR(pg_catalog.=) $1 \
     AND pg_catalog.hashtext(owner) OPERATOR(pg_catalog.=) pg_catalog.hashtext($2) AND owner OPERATOR(pg_catalog.=) $2 \
     ORDER BY token DESC LIMIT 1",
);

/// The last worker id of an owner, unless another owner has had it since.
fn last_of_owner(pool: &str, owner: &str) -> Option<i32> {
    LAST_OF_OWNER.read_latest(&[pool.into(), owner.into()], |row| value(row, 1)).pop()
}

/// With the time as an argument: an index does not compare with clock_timestamp().
static RELEASED: Query = WORKER_NUMBER.query(
    "SELECT number FROM idgen.worker_number WHERE pool OPERATOR(pg_catalog.=) $1 AND released \
     AND not_after OPERATOR(pg_catalog.<=) $2 ORDER BY not_after LIMIT 16",
);
static EXPIRED: Query = WORKER_NUMBER.query(
    "SELECT number FROM idgen.worker_number WHERE pool OPERATOR(pg_catalog.=) $1 AND NOT released \
     AND not_after OPERATOR(pg_catalog.<=) $2 ORDER BY not_after LIMIT 16",
);
static RELEASED_AHEAD: Query = WORKER_NUMBER.query(
    "SELECT number FROM idgen.worker_number WHERE pool OPERATOR(pg_catalog.=) $1 AND released \
     AND not_after OPERATOR(pg_catalog.>) $2 ORDER BY not_after LIMIT 16",
);

/// Worker ids whose next holder has to wait, the shortest wait first.
static AHEAD: Query = LEASE.query(
    "SELECT number FROM idgen.worker_number \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND not_after OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() \
     ORDER BY not_after",
);

/// Worker ids whose rectangles are over: their holders can issue nothing more.
static OVER: Query = LEASE.query(
    "SELECT number FROM idgen.worker_number \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND not_after OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()",
);
