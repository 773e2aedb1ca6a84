//! How a coordinator grants a worker id of a pool: it finds a row, extends the history if it has to, and writes a rectangle.

use super::recording::{self, HistoryStore};
use super::search::Search;
use super::{PoolBounds, Rectangle, Refusal};
use std::ops::RangeInclusive;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDefinition {
    pub range: RangeInclusive<i32>,
    pub ttl_us: i64,
}

/// The rows that a grant reads and writes, within its transaction.
pub trait GrantRows: HistoryStore {
    /// A pool that grants go on from until the transaction ends, and that nobody changes until then.
    fn share_pool(&mut self, pool: &str) -> Option<PoolDefinition>;
    /// Undoes the work, with its locks, unless it returns something.
    fn undo_unless_found<R>(&mut self, work: impl FnOnce(&mut Self) -> Option<R>) -> Option<R>;
    /// Finds a row that no other transaction has locked, and locks it.
    fn lock_free(&mut self, search: &Search) -> Option<Free>;
    /// Finds a row, also a locked one. Returns the worker id.
    fn find(&mut self, search: &Search) -> Option<i32>;
    /// Waits until no other transaction has locked the row. Keeps no lock.
    fn wait_for(&mut self, pool: &str, worker_id: i32);
    fn random(&mut self) -> u64;
    fn grant(&mut self, pool: &str, grant: &Grant);
    /// The commit waits until a failover keeps it.
    fn survive_failover(&mut self);
}

/// A worker id that can be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Free {
    pub worker_id: i32,
    /// The end of its last rectangle; `None` if it was never granted.
    pub used_until_us: Option<i64>,
}

#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub owner: Option<&'a str>,
    /// `None`: that of the pool.
    pub ttl_us: Option<i64>,
    /// The limits of a ttl, by the settings.
    pub ttl_limits_us: RangeInclusive<i64>,
    /// The latest time of the caller's ids and clock. `None`: this clock.
    pub reached_us: Option<i64>,
    pub prefer: Option<i32>,
}

/// The new values of the row of a worker id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant<'a> {
    pub worker_id: i32,
    pub token: i64,
    pub owner: Option<&'a str>,
    pub rectangle: Rectangle,
    pub epoch: i32,
}

/// A number of JavaScript is exact up to there. That no token is drawn twice for a worker id is a matter of chance: 2^-53.
const TOKEN_BITS: u32 = 53;

/// Grants `prefer` if its id times are over, else the last worker id of `owner` if its id times are over, else as [`Search`]
/// finds it. Returns how long the holder has to wait before its first id, too.
pub fn acquire<'a>(rows: &mut impl GrantRows, pool: &str, request: &Request<'a>) -> Result<(Grant<'a>, i64), Refusal> {
    let definition = rows.share_pool(pool).ok_or(Refusal::UnknownPool)?;
    let (Free { worker_id, used_until_us }, bounds, epoch) = pick(rows, pool, &definition, request)?;
    let (ttl_us, reached_us) = request.check(&bounds)?;
    let rectangle = Rectangle::grant(used_until_us, reached_us, ttl_us, &bounds)
        .map_err(|not_before_us| Refusal::BeginsTooFar { worker_id, not_before_us, bounds })?;
    let token = ((rows.random() >> (u64::BITS - TOKEN_BITS)) as i64).max(1);
    let grant = Grant { worker_id, token, owner: request.owner, rectangle, epoch };
    rows.grant(pool, &grant);
    if request.reached_us.is_none() {
        // Callers that report the time confirm after the commit. The commit of others waits for the standbys.
        rows.survive_failover();
    }
    Ok((grant, rectangle.not_before_us.saturating_sub(reached_us.max(rows.now_us()))))
}

impl Request<'_> {
    /// The ttl of the grant, and the time that the caller has reached.
    fn check(&self, bounds: &PoolBounds) -> Result<(i64, i64), Refusal> {
        let ttl_us = self.ttl_us.unwrap_or(bounds.ttl_us);
        // The limits of ttl apply to new definitions only: a pool that was defined before goes on.
        if ttl_us != bounds.ttl_us && !self.ttl_limits_us.contains(&ttl_us) {
            return Err(Refusal::TtlOutOfRange);
        }
        let Some(reached_us) = self.reached_us else { return Ok(bounds.split(ttl_us)) };
        if ttl_us > bounds.ttl_us {
            return Err(Refusal::TtlBeyondThePools { ttl_us: bounds.ttl_us });
        }
        match bounds.excess_us(reached_us) {
            Some(excess_us) => Err(Refusal::TooFarAhead { excess_us, max_lead_us: bounds.max_lead_us }),
            None => Ok((ttl_us, reached_us)),
        }
    }
}

/// Picks a row and locks it. Waits for rows that are locked if no other is free. Returns the bounds and the epoch that it was
/// picked by, too.
fn pick(
    rows: &mut impl GrantRows,
    pool: &str,
    definition: &PoolDefinition,
    request: &Request,
) -> Result<(Free, PoolBounds, i32), Refusal> {
    loop {
        let mut read = None;
        // Without a row that is free, this unlocks the history, and rows that turned out to be granted already: to wait with
        // them locked would be a deadlock, and would keep all pools from a new history. After a wait, both are read again.
        let picked = rows.undo_unless_found(|rows| {
            let mut try_pick = || {
                let history = recording::for_grant(rows, definition.ttl_us)?;
                let bounds = recording::bounds(rows, &history, definition.ttl_us);
                request.check(&bounds)?;
                let search = Search {
                    pool,
                    range: definition.range.clone(),
                    now_us: bounds.now_us,
                    earliest_start_us: bounds.earliest_start_us(),
                    prefer: request.prefer,
                    owner: request.owner,
                    epoch: history.epoch,
                };
                let free = rows.lock_free(&search);
                read = Some((bounds, search));
                Ok(free)
            };
            try_pick().transpose()
        });
        let free = picked.transpose()?;
        let (bounds, search) = read.expect("it was read");
        if let Some(free) = free {
            return Ok((free, bounds, search.epoch));
        }
        match rows.find(&search) {
            Some(locked) => rows.wait_for(pool, locked),
            None => return Err(Refusal::Exhausted { range: search.range }),
        }
    }
}
