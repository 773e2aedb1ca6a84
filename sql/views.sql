CREATE VIEW idgen.stat_snowflake AS
SELECT layout, datacenter, worker, last_id, last_time, issued, batches, borrowed, waits,
       pg_catalog.make_interval(secs => wait_us OPERATOR(pg_catalog./) 1000000.0) AS wait_time,
       ends_at
FROM idgen.stat_get_snowflake();

CREATE VIEW idgen.stat_clock AS
SELECT mark, lead, backward_steps, largest_step, mark_writes, mark_write_time
FROM idgen.stat_get_clock();

-- The figures of a segment are for roles that may draw from it, and for members of pg_read_all_stats. A security barrier,
-- because the planner would run a cheap function of the caller on every tag before it checks that.
CREATE VIEW idgen.stat_segment WITH (security_barrier) AS
SELECT allocated.tag, allocated.max_id, allocated.step, ring.first_id, ring.last_id, ring.next_first_id, ring.next_last_id, ring.remaining,
       ring.issued, ring.refills,
       pg_catalog.make_interval(secs => ring.refill_us OPERATOR(pg_catalog./) 1000000.0) AS last_refill_time,
       ring.waits,
       pg_catalog.make_interval(secs => ring.wait_us OPERATOR(pg_catalog./) 1000000.0) AS wait_time,
       ring.last_error
FROM idgen.segment AS allocated JOIN idgen.stat_get_segment() AS ring USING (creation)
WHERE pg_catalog.pg_has_role(allocated.owner::oid, 'USAGE') OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')
   OR 0::oid OPERATOR(pg_catalog.=) ANY (allocated.drawers::oid[])
   OR EXISTS (SELECT FROM pg_catalog.unnest(allocated.drawers::oid[]) AS granted (role)
              WHERE pg_catalog.pg_has_role(granted.role, 'USAGE'));

-- What PostgreSQL's lock manager says, with the names and depths that idgen has kept. 26980 is the space of named locks.
CREATE VIEW idgen.locks AS
WITH lock AS (
    SELECT (classid::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) objid::bigint AS key, pid, granted, waitstart,
           mode OPERATOR(pg_catalog.=) 'ShareLock' AS shared
    FROM pg_catalog.pg_locks
    WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND objsubid OPERATOR(pg_catalog.=) 26980
      AND database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
                                           WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
)
SELECT named.name, lock.key, lock.pid, CASE WHEN lock.shared THEN 'shared' ELSE 'exclusive' END AS mode,
       CASE WHEN lock.pid IS NULL THEN 'transaction'
            WHEN NOT lock.granted THEN held.waits_for
            WHEN held.session_depth OPERATOR(pg_catalog.>) 0 AND held.transaction_depth OPERATOR(pg_catalog.>) 0 THEN 'both'
            WHEN held.session_depth OPERATOR(pg_catalog.>) 0 THEN 'session'
            WHEN held.transaction_depth OPERATOR(pg_catalog.>) 0 THEN 'transaction' END AS scope,
       lock.granted, held.session_depth OPERATOR(pg_catalog.+) held.transaction_depth AS depth, held.acquired_at,
       lock.waitstart AS waiting_since,
       CASE WHEN NOT lock.granted THEN
           pg_catalog.row_number() OVER (PARTITION BY lock.key, lock.granted ORDER BY lock.waitstart) END AS queue_position,
       CASE WHEN NOT lock.granted THEN pg_catalog.pg_blocking_pids(lock.pid) END AS blocked_by,
       activity.usename AS user, activity.application_name AS application
FROM lock
LEFT JOIN idgen.lock_get_names() AS named ON named.key OPERATOR(pg_catalog.=) lock.key
LEFT JOIN idgen.lock_get_holds() AS held
       ON held.pid OPERATOR(pg_catalog.=) lock.pid AND held.key OPERATOR(pg_catalog.=) lock.key
      AND held.shared OPERATOR(pg_catalog.=) lock.shared AND (held.waits_for IS NULL) OPERATOR(pg_catalog.=) lock.granted
LEFT JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid OPERATOR(pg_catalog.=) lock.pid;

-- Slots that were ever taken. A token is the proof of its holder: others do not see it. 27761 is the space of the queues.
CREATE VIEW idgen.leases AS
SELECT lease.name, lease.slot, now.state,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 AND pg_catalog.pg_has_role(lease.role::oid, 'USAGE') THEN lease.token END AS token,
       lease.depth,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.owner END AS owner,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.role END AS role,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.data END AS data,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.acquired_at END AS acquired_at,
       now.expires_at,
       pg_catalog.make_interval(secs => lease.ttl_us OPERATOR(pg_catalog./) 1000000.0) AS ttl,
       now.bound, defined.slots,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_locks AS lock
        WHERE lock.locktype OPERATOR(pg_catalog.=) 'advisory' AND lock.objsubid OPERATOR(pg_catalog.=) 27761
          AND ((lock.classid::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) lock.objid::bigint) OPERATOR(pg_catalog.=) now.key
          AND lock.database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
                                                    WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())) AS queue
FROM idgen.lease JOIN idgen.lease_get_states() AS now USING (name, slot) LEFT JOIN idgen.lease_definition AS defined USING (name);

CREATE VIEW idgen.stat_lease AS
SELECT grants, take_overs, renewals, releases, fences, refused, probes, wait_time FROM idgen.stat_get_lease();

CREATE VIEW idgen.workers AS
SELECT lease.name AS pool, lease.slot AS worker_id, lease.state, lease.token, lease.owner, lease.role, lease.acquired_at,
       lease.expires_at, lease.bound, known.not_before, known.not_after
FROM idgen.leases AS lease JOIN idgen.worker_number AS known
  ON known.pool OPERATOR(pg_catalog.=) lease.name AND known.number OPERATOR(pg_catalog.=) lease.slot;

CREATE VIEW idgen.stat_worker AS
SELECT source, state, worker_id, datacenter_id, pool, not_before, not_after, coordinator, pid, renewals, failures, failing_since,
       last_error, changes
FROM idgen.stat_get_worker();
