\echo Use "ALTER EXTENSION idgen UPDATE TO '0.10.0'" to load this file. \quit

CREATE FUNCTION idgen.stat_get_reset_time() RETURNS timestamptz VOLATILE PARALLEL RESTRICTED
    LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_reset_time_wrapper';
COMMENT ON FUNCTION idgen.stat_get_reset_time() IS 'time of the last reset of the counters, for the column stats_reset';

CREATE OR REPLACE VIEW idgen.stat_snowflake AS
SELECT layout, datacenter, worker, last_id, last_time, issued, batches, borrowed, waits,
       pg_catalog.make_interval(secs => wait_us OPERATOR(pg_catalog./) 1000000.0) AS wait_time,
       ends_at, idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_snowflake();

CREATE OR REPLACE VIEW idgen.stat_clock AS
SELECT mark, lead, backward_steps, largest_step, mark_writes, mark_write_time,
       idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_clock();

CREATE OR REPLACE VIEW idgen.stat_segment WITH (security_barrier) AS
SELECT allocated.tag, allocated.max_id, allocated.step, ring.first_id, ring.last_id, ring.next_first_id, ring.next_last_id, ring.remaining,
       ring.issued, ring.refills,
       pg_catalog.make_interval(secs => ring.refill_us OPERATOR(pg_catalog./) 1000000.0) AS last_refill_time,
       ring.waits,
       pg_catalog.make_interval(secs => ring.wait_us OPERATOR(pg_catalog./) 1000000.0) AS wait_time,
       ring.last_error, allocated.upper_bound, idgen.stat_get_reset_time() AS stats_reset
FROM idgen.segment AS allocated JOIN idgen.stat_get_segment() AS ring USING (creation)
WHERE pg_catalog.pg_has_role(allocated.owner::oid, 'USAGE') OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')
   OR 0::oid OPERATOR(pg_catalog.=) ANY (allocated.drawers::oid[])
   OR EXISTS (SELECT FROM pg_catalog.unnest(allocated.drawers::oid[]) AS granted (role)
              WHERE pg_catalog.pg_has_role(granted.role, 'USAGE'));

CREATE OR REPLACE VIEW idgen.stat_lease AS
SELECT grants, take_overs, renewals, releases, fences, refused, probes, wait_time, idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_lease();

CREATE OR REPLACE VIEW idgen.stat_worker AS
SELECT source, state, worker_id, datacenter_id, pool, not_before, not_after, coordinator, pid, renewals, failures, failing_since,
       last_error, changes, idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_worker();

-- Monitoring still reads all views if an administrator revokes them from PUBLIC.
GRANT USAGE ON SCHEMA idgen TO pg_monitor;
GRANT SELECT ON idgen.stat_snowflake, idgen.stat_clock, idgen.stat_segment, idgen.stat_lease, idgen.stat_worker, idgen.locks,
    idgen.leases, idgen.workers, idgen.lease_definition TO pg_monitor;
GRANT EXECUTE ON FUNCTION idgen.status(), idgen.stat_get_snowflake(), idgen.stat_get_clock(), idgen.stat_get_segment(),
    idgen.stat_get_lease(), idgen.stat_get_worker(), idgen.stat_get_reset_time(), idgen.lock_get_names(), idgen.lock_get_holds(),
    idgen.lease_get_states() TO pg_monitor;
