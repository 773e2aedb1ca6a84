//! What `idgen.checks` says of leases: sessions that wait for a transaction and not for a holder, and snapshots that make each
//! change of a row slower.

use crate::error::{Check, listed};
use crate::pg::datum;
use crate::pg::spi::{Query, text, value};

/// Sessions that have waited for 10 s for a lock that a transaction holds on the row of a lease, or on the whole table. The head
/// of a queue (27761 is the kind of its locks) waits again and again, so its statement says since when. The others wait for a
/// renewal, a release or a fence. 0 is a prepared transaction.
static BLOCKED: Query = Query::of_statistics(
    "WITH every AS MATERIALIZED (SELECT * FROM pg_catalog.pg_locks), \
          here AS (SELECT pg_catalog.to_regclass('idgen.lease')::pg_catalog.oid AS lease, oid AS database FROM pg_catalog.pg_database \
                   WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()), \
          waiting AS (SELECT pid, waitstart, pg_catalog.bool_or(is_head) AS is_head FROM ( \
              SELECT waiting.pid, waiting.waitstart, held.locktype OPERATOR(pg_catalog.=) 'advisory' AS is_head \
              FROM here, every AS waiting JOIN every AS held ON held.pid OPERATOR(pg_catalog.=) waiting.pid \
              WHERE NOT waiting.granted AND waiting.locktype OPERATOR(pg_catalog.<>) 'advisory' AND held.granted \
                AND (held.locktype OPERATOR(pg_catalog.=) 'advisory' AND held.objsubid OPERATOR(pg_catalog.=) 27761 \
                     OR held.locktype OPERATOR(pg_catalog.=) 'tuple' AND held.relation OPERATOR(pg_catalog.=) here.lease \
                        AND held.database OPERATOR(pg_catalog.=) here.database) \
              UNION ALL SELECT waiting.pid, waiting.waitstart, false FROM here, every AS waiting \
              WHERE NOT waiting.granted AND waiting.relation OPERATOR(pg_catalog.=) here.lease \
                AND waiting.database OPERATOR(pg_catalog.=) here.database) AS waiter GROUP BY pid, waitstart), \
          since AS (SELECT waiting.pid, CASE WHEN is_head THEN GREATEST(activity.xact_start, activity.query_start) \
                                             ELSE waiting.waitstart END AS since \
                    FROM waiting CROSS JOIN LATERAL pg_catalog.pg_stat_get_activity(waiting.pid) AS activity) \
     SELECT pid, since, pg_catalog.array_to_string(pg_catalog.pg_blocking_pids(pid), ', ') FROM since \
     WHERE since OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '10 s'::pg_catalog.interval) \
     ORDER BY since",
);

pub fn checks() -> Vec<Check> {
    vec![blocked(), old_snapshot()]
}

fn blocked() -> Check {
    const NAME: &str = "leases";
    let waiting = BLOCKED.read_latest(&[], |row| (value::<i32>(row, 1), datum::to_us(value(row, 2)), text(row, 3)));
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
        format!("sessions wait for a lease, because {blocker} has locked it, by a fence, an acquisition or a release, and has not ended"),
        "End it: SELECT pg_terminate_backend(pid), or COMMIT or ROLLBACK PREPARED by its gid in pg_prepared_xacts.",
    )
    .since_ms(Some(since_us / 1000))
    .affects(listed(&waiters))
}

/// The oldest snapshot of this database that has lasted for a minute, if it keeps more than 10,000 dead versions of rows of
/// leases. A change of a row goes through those before it on the page, and from page to page: 100,000 of them make it about ten
/// times as slow. Neither a standby's feedback nor a replication slot says since when it is there.
static OLD_SNAPSHOT: Query = Query::of_statistics(
    "SELECT holder, since FROM ( \
         SELECT pg_catalog.format('process %s', pid) AS holder, xact_start AS since \
         FROM pg_catalog.pg_stat_get_activity(NULL) \
         WHERE backend_xmin IS NOT NULL AND datid OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database \
             WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()) \
         UNION ALL SELECT pg_catalog.format('prepared transaction \"%s\"', gid), prepared FROM pg_catalog.pg_prepared_xacts \
         WHERE database OPERATOR(pg_catalog.=) pg_catalog.current_database()) AS held \
     WHERE since OPERATOR(pg_catalog.<) (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) '1 min'::pg_catalog.interval) \
       AND pg_catalog.pg_stat_get_dead_tuples(pg_catalog.to_regclass('idgen.lease')::pg_catalog.oid) OPERATOR(pg_catalog.>) 10000 \
     ORDER BY since LIMIT 1",
);

fn old_snapshot() -> Check {
    const NAME: &str = "old snapshots";
    let oldest = OLD_SNAPSHOT.read_latest(&[], |row| (text(row, 1), datum::to_us(value(row, 2)))).pop();
    let Some((holder, since_us)) = oldest else {
        return Check::ok(NAME, "no old snapshot keeps dead versions of rows of leases");
    };
    Check::warning(
        NAME,
        format!("the snapshot of {holder} keeps dead versions of rows of leases, so acquiring and renewing get slower"),
        "End it: SELECT pg_terminate_backend(pid), or COMMIT or ROLLBACK PREPARED by its gid in pg_prepared_xacts.",
    )
    .since_ms(Some(since_us / 1000))
}
