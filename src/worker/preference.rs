//! The worker ids of a pool that a new holder prefers, by the rectangles of their last holders.

use crate::lease::{LEASE, SlotPreference};
use crate::pg::spi::{Query, value};
use std::collections::HashSet;

pub struct WorkerPreference<'a> {
    pub pool: &'a str,
    pub owner: Option<&'a str>,
    /// The worker id that the caller asks for.
    pub wanted: Option<i32>,
}

impl SlotPreference for WorkerPreference<'_> {
    /// The wanted worker id, then the last one of the owner: each only if its rectangle is over.
    fn first(&self) -> Vec<i32> {
        let last_of_owner = || self.owner.and_then(|owner| last_of_owner(self.pool, owner));
        let candidates = self.wanted.into_iter().chain(last_of_owner());
        candidates.filter(|worker_id| !is_ahead(self.pool, *worker_id)).collect()
    }

    fn last(&self) -> Vec<i32> {
        AHEAD.read_latest(&[self.pool.into()], |row| value(row, 1))
    }

    fn ended(&self) -> HashSet<i32> {
        OVER.read_latest(&[self.pool.into()], |row| value(row, 1)).into_iter().collect()
    }
}

static LAST_OF_OWNER: Query = Query::new(&LEASE, || {
    "SELECT slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND owner OPERATOR(pg_catalog.=) $2 \
     ORDER BY acquired_at DESC LIMIT 1"
        .to_owned()
});

/// The last worker id of an owner, unless another owner has had it since.
fn last_of_owner(pool: &str, owner: &str) -> Option<i32> {
    LAST_OF_OWNER.read_latest(&[pool.into(), owner.into()], |row| value(row, 1)).pop()
}

static IS_AHEAD: Query = Query::new(&LEASE, || {
    "SELECT number FROM idgen.worker_number \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND number OPERATOR(pg_catalog.=) $2 \
     AND not_after OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()"
        .to_owned()
});

/// True if the rectangle of a worker id ends in the future, so that its next holder has to wait.
fn is_ahead(pool: &str, worker_id: i32) -> bool {
    !IS_AHEAD.read_latest(&[pool.into(), worker_id.into()], |_| ()).is_empty()
}

/// Worker ids whose next holder has to wait, the shortest wait first.
static AHEAD: Query = Query::new(&LEASE, || {
    "SELECT number FROM idgen.worker_number \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND not_after OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() \
     ORDER BY not_after"
        .to_owned()
});

/// Worker ids whose rectangles are over: their holders can issue nothing more.
static OVER: Query = Query::new(&LEASE, || {
    "SELECT number FROM idgen.worker_number \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND not_after OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()"
        .to_owned()
});
