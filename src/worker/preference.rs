//! The worker ids that a new holder prefers, by the rectangles of their last holders.

use super::store::{WORKER_NUMBER, used_until_us};
use crate::lease::{Candidates, LEASE, SlotPreference, Unused};
use crate::pg::spi::{Query, value};
use crate::pg::{datum, system_clock};
use std::collections::HashSet;

/// The preference of one request.
pub struct WorkerPreference<'a> {
    pub pool: &'a str,
    pub owner: Option<&'a str>,
    /// The worker id that the caller asks for.
    pub wanted: Option<i32>,
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
