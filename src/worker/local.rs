//! What this database, as a coordinator, grants itself: for the check of a worker id that is no lease.

use super::number::WORKER_NUMBER;
use crate::pg::spi::{Query, text};

/// Pools that have granted something, and whose worker ids these are. `first_slot` is the table's, or 0 where the SQL objects are
/// of 0.7 and it has none.
static POOLS: Query = Query::new(&WORKER_NUMBER, || {
    "SELECT known.pool FROM idgen.worker_number AS known WHERE known.number OPERATOR(pg_catalog.=) $1 \
     UNION ALL \
     SELECT defined.name FROM (SELECT 0 AS first_slot) AS standard, \
         LATERAL (SELECT name, slots, first_slot FROM idgen.lease_definition) AS defined \
     WHERE $1 OPERATOR(pg_catalog.>=) defined.first_slot \
       AND $1 OPERATOR(pg_catalog.<) (defined.first_slot OPERATOR(pg_catalog.+) defined.slots) \
       AND EXISTS (SELECT FROM idgen.worker_number AS known WHERE known.pool OPERATOR(pg_catalog.=) defined.name) \
     LIMIT 1"
        .to_owned()
});

/// A pool in this database that grants, or has granted, this worker id. `None` also where the SQL objects know no pools.
pub fn pool_that_grants(worker: u32) -> Option<String> {
    let worker = i32::try_from(worker).ok()?;
    WORKER_NUMBER.find()?;
    POOLS.read_latest(&[worker.into()], |row| text(row, 1)).pop()
}
