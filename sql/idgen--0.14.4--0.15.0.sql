\echo Use "ALTER EXTENSION idgen UPDATE TO '0.15.0'" to load this file. \quit

CREATE FUNCTION idgen.stat_get_checks(OUT "check" text, OUT ok boolean, OUT severity text, OUT since timestamptz, OUT affects text, OUT message text, OUT action text) RETURNS SETOF record VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_checks_wrapper';
CREATE VIEW idgen.checks AS
SELECT "check", ok, severity, since, affects, message, action FROM idgen.stat_get_checks();

CREATE OR REPLACE VIEW idgen.leases AS
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

COMMENT ON VIEW idgen.checks IS 'what fails on this server and in this database, since when, and what to do';
COMMENT ON FUNCTION idgen.stat_get_checks() IS 'rows of the view idgen.checks';

-- The columns of the views.
COMMENT ON COLUMN idgen.stat_snowflake.layout IS
    'canonical spec, as (snowflake_layout(''js53'')).spec returns it, not the preset''s name';
COMMENT ON COLUMN idgen.stat_snowflake.datacenter IS 'datacenter id of the ids';
COMMENT ON COLUMN idgen.stat_snowflake.worker IS 'worker id of the ids';
COMMENT ON COLUMN idgen.stat_snowflake.last_id IS
    'the id issued last, not one that snowflake_observe has skipped; NULL before the first';
COMMENT ON COLUMN idgen.stat_snowflake.last_time IS 'its time';
COMMENT ON COLUMN idgen.stat_snowflake.issued IS 'ids issued';
COMMENT ON COLUMN idgen.stat_snowflake.batches IS 'reservations made by snowflake_next_many';
COMMENT ON COLUMN idgen.stat_snowflake.borrowed IS 'ids whose time was ahead of the clock when they were issued';
COMMENT ON COLUMN idgen.stat_snowflake.waits IS 'times a statement waited for the clock';
COMMENT ON COLUMN idgen.stat_snowflake.wait_time IS 'time spent waiting';
COMMENT ON COLUMN idgen.stat_snowflake.ends_at IS 'the first time for which the layout has no ids';
COMMENT ON COLUMN idgen.stat_snowflake.stats_reset IS
    'when the counters of all views were last set to zero: by idgen.reset_stats(), or at a start';
COMMENT ON COLUMN idgen.stat_clock.mark IS
    'high-water mark: no id has this time or a later one; NULL before the first id since the start';
COMMENT ON COLUMN idgen.stat_clock.lead IS
    'how far ids are ahead of the wall clock: the latest one, or where ids begin after a crash, a promotion or snowflake_observe';
COMMENT ON COLUMN idgen.stat_clock.backward_steps IS 'times the wall clock was found set back, by a millisecond or more';
COMMENT ON COLUMN idgen.stat_clock.largest_step IS 'the largest of them';
COMMENT ON COLUMN idgen.stat_clock.mark_writes IS 'times the high-water file was written';
COMMENT ON COLUMN idgen.stat_clock.mark_write_time IS 'time spent writing and syncing it';
COMMENT ON COLUMN idgen.stat_clock.stats_reset IS
    'when the counters of all views were last set to zero: by idgen.reset_stats(), or at a start';
COMMENT ON COLUMN idgen.stat_segment.tag IS 'name of the segment';
COMMENT ON COLUMN idgen.stat_segment.max_id IS 'highest value that may have been handed out, as in idgen.segment';
COMMENT ON COLUMN idgen.stat_segment.step IS 'number of values in the last range taken, as in idgen.segment';
COMMENT ON COLUMN idgen.stat_segment.first_id IS 'the value that is drawn next; NULL if none is left';
COMMENT ON COLUMN idgen.stat_segment.last_id IS 'the last value that follows it without a skip';
COMMENT ON COLUMN idgen.stat_segment.next_first_id IS 'the first value after the skip; NULL if there is none';
COMMENT ON COLUMN idgen.stat_segment.next_last_id IS 'the last value after the skip';
COMMENT ON COLUMN idgen.stat_segment.remaining IS 'values in shared memory';
COMMENT ON COLUMN idgen.stat_segment.issued IS 'values drawn';
COMMENT ON COLUMN idgen.stat_segment.refills IS 'ranges fetched';
COMMENT ON COLUMN idgen.stat_segment.last_refill_time IS 'how long the last fetch took';
COMMENT ON COLUMN idgen.stat_segment.waits IS 'times a statement found no value left and waited';
COMMENT ON COLUMN idgen.stat_segment.wait_time IS 'time spent in waits that ended with a value';
COMMENT ON COLUMN idgen.stat_segment.last_error IS 'what prevented the last fetch; NULL if it succeeded';
COMMENT ON COLUMN idgen.stat_segment.upper_bound IS 'the greatest value that may ever be handed out, as in idgen.segment';
COMMENT ON COLUMN idgen.stat_segment.stats_reset IS
    'when the counters of all views were last set to zero: by idgen.reset_stats(), or at a start';
COMMENT ON COLUMN idgen.stat_segment.source IS
    'where values come from: local, the row here, or coordinator, if the segment is attached';
COMMENT ON COLUMN idgen.stat_segment.coordinator IS
    'what the last request met: answering, refusing (an error of this segment, or it waits for reports of other servers), failing (no answer), or unknown before the first request; NULL unless attached';
COMMENT ON COLUMN idgen.stat_segment.reserve IS
    'how long values shall last while the coordinator is away; NULL unless attached';
COMMENT ON COLUMN idgen.stat_segment.rate IS
    'values drawn per second, as the supply worker has measured it; NULL unless attached';
COMMENT ON COLUMN idgen.stat_segment.survives_for IS
    'how long remaining lasts at this rate, at most a century; NULL if nothing was drawn lately, or unless attached';
COMMENT ON COLUMN idgen.locks.name IS
    'the name; NULL without preload, if there was no room for it, and for a prepared transaction after a restart, until a session uses the name';
COMMENT ON COLUMN idgen.locks.key IS 'its key, lock_key(name)';
COMMENT ON COLUMN idgen.locks.pid IS 'process of the session; NULL for a prepared transaction';
COMMENT ON COLUMN idgen.locks.mode IS 'exclusive or shared';
COMMENT ON COLUMN idgen.locks.scope IS 'session, transaction or both; NULL for what a session holds beyond its first 16';
COMMENT ON COLUMN idgen.locks.granted IS 'true if it is held, false if it is waited for';
COMMENT ON COLUMN idgen.locks.depth IS
    'how often it is held, session and transaction together; NULL if scope is, for a prepared transaction, and during a wait';
COMMENT ON COLUMN idgen.locks.acquired_at IS
    'since when it is held, by a clock that ticks every 1 to 10 ms; NULL if depth is';
COMMENT ON COLUMN idgen.locks.waiting_since IS 'since when it is waited for; NULL for a moment after the wait has begun';
COMMENT ON COLUMN idgen.locks.queue_position IS 'position among the waiting sessions, from 1';
COMMENT ON COLUMN idgen.locks.blocked_by IS
    'processes that block it, those before it in the queue included; 0 is a prepared transaction';
COMMENT ON COLUMN idgen.locks."user" IS 'role of the session';
COMMENT ON COLUMN idgen.locks.application IS 'its application_name';
COMMENT ON COLUMN idgen.locks.gid IS 'the prepared transaction that holds it; NULL for a session';
COMMENT ON COLUMN idgen.leases.name IS 'name of the lease';
COMMENT ON COLUMN idgen.leases.slot IS 'number of the slot; of a shared term, a number of its own from 65536 on';
COMMENT ON COLUMN idgen.leases.state IS
    'held; expired: the time is over, and no session has taken it; resting: unavailable for lock_delay, after a holder that vanished; free';
COMMENT ON COLUMN idgen.leases.token IS 'fencing token; NULL except for members of the holder''s role, and NULL if free';
COMMENT ON COLUMN idgen.leases.depth IS 'how often it was acquired and not released';
COMMENT ON COLUMN idgen.leases.owner IS 'name that the holder gave itself; NULL if free, as are the next three';
COMMENT ON COLUMN idgen.leases.role IS 'role that acquired it';
COMMENT ON COLUMN idgen.leases.data IS 'data that the holder publishes';
COMMENT ON COLUMN idgen.leases.acquired_at IS 'when it was acquired';
COMMENT ON COLUMN idgen.leases.expires_at IS
    'when the holder''s time is over; NULL while the session that it is bound to lives';
COMMENT ON COLUMN idgen.leases.ttl IS 'how long it lasts after a renewal';
COMMENT ON COLUMN idgen.leases.bound IS 'true while the session that it is bound to lives';
COMMENT ON COLUMN idgen.leases.slots IS 'slots of the name; NULL if it is not defined';
COMMENT ON COLUMN idgen.leases.queue IS 'number of sessions that wait for the name';
COMMENT ON COLUMN idgen.leases.mode IS 'exclusive, or shared: of a term that lets other shared ones be';
COMMENT ON COLUMN idgen.leases.waiting_pids IS
    'processes that wait for the name, in the order in which they began; NULL if none does';
COMMENT ON COLUMN idgen.leases.blocked_by IS
    'processes whose transactions keep the first of them from the row: they have fenced, acquired or released, and have not ended; 0 is a prepared transaction; NULL if none does';
COMMENT ON COLUMN idgen.stat_lease.grants IS 'slots acquired that were free';
COMMENT ON COLUMN idgen.stat_lease.take_overs IS 'slots acquired whose holder had not released them';
COMMENT ON COLUMN idgen.stat_lease.renewals IS 'renewals';
COMMENT ON COLUMN idgen.stat_lease.releases IS 'releases that freed a slot';
COMMENT ON COLUMN idgen.stat_lease.fences IS 'fences';
COMMENT ON COLUMN idgen.stat_lease.refused IS 'calls with a token that was not current';
COMMENT ON COLUMN idgen.stat_lease.probes IS 'reads of the rows by the head of a queue';
COMMENT ON COLUMN idgen.stat_lease.wait_time IS
    'time from the request to the answer, of all requests that reached the head of a queue';
COMMENT ON COLUMN idgen.stat_lease.stats_reset IS
    'when the counters of all views were last set to zero: by idgen.reset_stats(), or at a start';
COMMENT ON COLUMN idgen.workers.pool IS 'name of the pool';
COMMENT ON COLUMN idgen.workers.worker_id IS 'the worker id';
COMMENT ON COLUMN idgen.workers.state IS 'as in idgen.leases';
COMMENT ON COLUMN idgen.workers.token IS 'token; NULL for other roles, and if free';
COMMENT ON COLUMN idgen.workers.owner IS 'name that the holder gave itself';
COMMENT ON COLUMN idgen.workers.role IS 'role that acquired it';
COMMENT ON COLUMN idgen.workers.acquired_at IS 'when it was acquired';
COMMENT ON COLUMN idgen.workers.expires_at IS 'when the lease ends unless it is renewed; NULL if it is bound to a session';
COMMENT ON COLUMN idgen.workers.bound IS 'true while the session that it is bound to lives';
COMMENT ON COLUMN idgen.workers.not_before IS 'start of the id times of the current or last holder';
COMMENT ON COLUMN idgen.workers.not_after IS 'end of these id times';
COMMENT ON COLUMN idgen.stat_worker.source IS 'setting or pool';
COMMENT ON COLUMN idgen.stat_worker.state IS
    'set: by the setting. waiting: no worker id yet. leased. failing: leased, and the last try to renew failed. ended: the clock has reached the end of the lease, and no id is issued';
COMMENT ON COLUMN idgen.stat_worker.worker_id IS 'the worker id; NULL if there is none';
COMMENT ON COLUMN idgen.stat_worker.datacenter_id IS 'idgen.datacenter_id; NULL if there is no worker id';
COMMENT ON COLUMN idgen.stat_worker.pool IS 'pool of the lease, or the configured pool';
COMMENT ON COLUMN idgen.stat_worker.not_before IS 'start of the id times under this worker id';
COMMENT ON COLUMN idgen.stat_worker.not_after IS 'no id has this time or a later one until the lease is renewed';
COMMENT ON COLUMN idgen.stat_worker.coordinator IS 'host and port that last granted or renewed the lease';
COMMENT ON COLUMN idgen.stat_worker.pid IS 'process of the keeper; NULL without a pool, or if it does not run';
COMMENT ON COLUMN idgen.stat_worker.renewals IS 'renewals of the lease';
COMMENT ON COLUMN idgen.stat_worker.failures IS 'requests to the coordinator that failed';
COMMENT ON COLUMN idgen.stat_worker.failing_since IS
    'first failure since the last success; NULL if the last request succeeded';
COMMENT ON COLUMN idgen.stat_worker.last_error IS 'the last failure; NULL if the last request succeeded';
COMMENT ON COLUMN idgen.stat_worker.changes IS 'times a lease changed the worker id';
COMMENT ON COLUMN idgen.stat_worker.stats_reset IS
    'when the counters of all views were last set to zero: by idgen.reset_stats(), or at a start';
COMMENT ON COLUMN idgen.checks."check" IS 'name of the check';
COMMENT ON COLUMN idgen.checks.ok IS 'false if it fails';
COMMENT ON COLUMN idgen.checks.severity IS
    'of a check that fails: error if calls fail or a promise may be broken, warning if they still succeed';
COMMENT ON COLUMN idgen.checks.since IS 'when it began to fail; NULL if that is not known';
COMMENT ON COLUMN idgen.checks.affects IS 'segments, pools, processes or kinds of ids that it is about, the first five';
COMMENT ON COLUMN idgen.checks.message IS 'the state';
COMMENT ON COLUMN idgen.checks.action IS 'what to do';

GRANT SELECT ON idgen.checks TO PUBLIC;
GRANT SELECT ON idgen.checks TO pg_monitor;
GRANT EXECUTE ON FUNCTION idgen.stat_get_checks() TO pg_monitor;
