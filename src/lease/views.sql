-- Slots that were ever granted. Only members of the holder's role see the token. 27761 is the kind of the locks of queues.
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
       now.bound, defined.slots, COALESCE(waiting.sessions, 0) AS queue,
       CASE WHEN lease.slot OPERATOR(pg_catalog.<) 65536 THEN 'exclusive' ELSE 'shared' END AS mode,
       waiting.pids AS waiting_pids, waiting.blocked_by
FROM idgen.lease
LEFT JOIN idgen.lease_definition AS defined USING (name)
CROSS JOIN LATERAL idgen.lease_get_state(lease.name, lease.depth, lease.ends_us, lease.ttl_us, lease.revoked, lease.clock,
                                         lease.session, lease.session_key, defined.lock_delay) AS now
LEFT JOIN (SELECT queue.key, queue.sessions, queue.pids,
                  -- Those in the queue block each other. Others have locked or written the row.
                  (SELECT pg_catalog.array_agg(DISTINCT blocking.pid)
                   FROM pg_catalog.unnest(queue.pids) AS waiter (pid),
                        LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(waiter.pid)) AS blocking (pid)
                   WHERE blocking.pid OPERATOR(pg_catalog.<>) ALL (queue.pids)) AS blocked_by
           FROM (SELECT (lock.classid::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) lock.objid::bigint AS key,
                        pg_catalog.count(*) AS sessions,
                        pg_catalog.array_agg(lock.pid ORDER BY lock.granted DESC, lock.waitstart) AS pids
                 FROM pg_catalog.pg_locks AS lock
                 WHERE lock.locktype OPERATOR(pg_catalog.=) 'advisory' AND lock.objsubid OPERATOR(pg_catalog.=) 27761
                   AND lock.database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
                                                             WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
                 GROUP BY 1) AS queue) AS waiting ON waiting.key OPERATOR(pg_catalog.=) now.key;

CREATE VIEW idgen.stat_lease AS
SELECT grants, take_overs, renewals, releases, fences, refused, probes, wait_time, idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_lease();
