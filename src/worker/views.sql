CREATE VIEW idgen.workers AS
SELECT lease.name AS pool, lease.slot AS worker_id, lease.state, lease.token, lease.owner, lease.role, lease.acquired_at,
       lease.expires_at, lease.bound, known.not_before, known.not_after
FROM idgen.leases AS lease JOIN idgen.worker_number AS known
  ON known.pool OPERATOR(pg_catalog.=) lease.name AND known.number OPERATOR(pg_catalog.=) lease.slot;

CREATE VIEW idgen.stat_worker AS
SELECT source, state, worker_id, datacenter_id, pool, not_before, not_after, coordinator, pid, renewals, failures, failing_since,
       last_error, changes, idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_worker();
