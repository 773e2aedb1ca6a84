//! Which worker ids of a pool a caller would rather have: what `idgen.worker_number` says of their last holders.

use crate::lease::preference::Preference;
use crate::lease::row::LEASE;
use crate::pg::spi::{Query, value};
use std::collections::HashSet;

/// The preference of a caller that acquires a worker id.
pub struct WorkerPreference<'a> {
    pub pool: &'a str,
    pub owner: Option<&'a str>,
    /// The worker id that the caller has, or had last.
    pub wanted: Option<i32>,
}

impl Preference for WorkerPreference<'_> {
    fn first(&self) -> Vec<i32> {
        let last_of_owner = || self.owner.and_then(|owner| last_of_owner(self.pool, owner));
        let known = self.wanted.into_iter().chain(last_of_owner());
        known.filter(|worker_id| !is_to_come(self.pool, *worker_id)).collect()
    }

    fn last(&self) -> Vec<i32> {
        to_come(self.pool)
    }

    fn ended(&self) -> HashSet<i32> {
        over(self.pool)
    }
}

static LAST_OF_OWNER: Query = Query::new(&LEASE, || {
    "SELECT slot FROM idgen.lease WHERE name OPERATOR(pg_catalog.=) $1 AND owner OPERATOR(pg_catalog.=) $2 \
     ORDER BY acquired_at DESC LIMIT 1"
        .to_owned()
});

/// The worker id that an owner had last, unless another has had it since.
fn last_of_owner(pool: &str, owner: &str) -> Option<i32> {
    LAST_OF_OWNER.read_latest(&[pool.into(), owner.into()], |row| value(row, 1)).pop()
}

static IS_TO_COME: Query = Query::new(&LEASE, || {
    "SELECT number FROM idgen.worker_number \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND number OPERATOR(pg_catalog.=) $2 \
     AND not_after OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()"
        .to_owned()
});

/// True if id times of a worker id are still to come, so that its next holder begins after them.
fn is_to_come(pool: &str, worker_id: i32) -> bool {
    !IS_TO_COME.read_latest(&[pool.into(), worker_id.into()], |_| ()).is_empty()
}

static TO_COME: Query = Query::new(&LEASE, || {
    "SELECT number FROM idgen.worker_number \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND not_after OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() \
     ORDER BY not_after"
        .to_owned()
});

/// Worker ids whose id times are not over, those first that are over first: none of them can be used at once.
fn to_come(pool: &str) -> Vec<i32> {
    TO_COME.read_latest(&[pool.into()], |row| value(row, 1))
}

static OVER: Query = Query::new(&LEASE, || {
    "SELECT number FROM idgen.worker_number \
     WHERE pool OPERATOR(pg_catalog.=) $1 AND not_after OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()"
        .to_owned()
});

/// Worker ids whose id times are over: the holder can issue nothing more under one of them.
fn over(pool: &str) -> HashSet<i32> {
    OVER.read_latest(&[pool.into()], |row| value(row, 1)).into_iter().collect()
}
