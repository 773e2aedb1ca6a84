//! The check of leases: sessions that wait for a transaction, not for a holder.

use crate::check::{Check, listed};
use crate::pg::spi::{Query, text, value};
use crate::pg::timestamp;

/// Those at the head of a queue (27761 is the kind of its locks) which have waited for 10 s for a transaction that has locked
/// or written a row: one that has fenced, acquired or released, and has not ended. 0 is a prepared one.
static BLOCKED: Query = Query::of_statistics(
    "SELECT waiting.pid, waiting.waitstart, \
            pg_catalog.array_to_string(pg_catalog.pg_blocking_pids(waiting.pid), ', ') \
     FROM pg_catalog.pg_locks AS waiting \
     WHERE waiting.locktype OPERATOR(pg_catalog.=) 'transactionid' AND NOT waiting.granted \
       AND waiting.waitstart OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '10 s'::pg_catalog.interval) \
       AND EXISTS (SELECT FROM pg_catalog.pg_locks AS queue \
                   WHERE queue.pid OPERATOR(pg_catalog.=) waiting.pid AND queue.granted \
                     AND queue.locktype OPERATOR(pg_catalog.=) 'advisory' AND queue.objsubid OPERATOR(pg_catalog.=) 27761) \
     ORDER BY waiting.waitstart",
);

pub fn checks() -> Vec<Check> {
    vec![blocked()]
}

fn blocked() -> Check {
    const NAME: &str = "leases";
    let waiting = BLOCKED.read_latest(&[], |row| (value::<i32>(row, 1), timestamp::to_us(value(row, 2)), text(row, 3)));
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
        format!("sessions wait for a lease, because {blocker} has fenced, acquired or released it and has not ended"),
        "End it: SELECT pg_terminate_backend(pid), or COMMIT or ROLLBACK PREPARED by its gid in pg_prepared_xacts.",
    )
    .since_ms(Some(since_us / 1000))
    .affects(listed(&waiters))
}
