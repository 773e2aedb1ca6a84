-- The rights of an ordinary role.
CREATE ROLE idgen_somebody;
SET ROLE idgen_somebody;
SELECT snowflake_next() > 0 AS next, snowflake_next('js53') > 0 AS next_in, (SELECT count(*) FROM snowflake_next_many(3)) AS many;
SELECT worker FROM snowflake_parts(1888944671579078656);
SELECT count(*) > 0 AS view FROM idgen.stat_snowflake;
SELECT idgen.status() ? 'checks' AS status;
SELECT idgen.reset_stats();
\echo :SQLSTATE
SELECT snowflake_observe(1);
SELECT snowflake_observe(1, 'js53', true);
SELECT count(*) AS view FROM idgen.stat_clock;
CREATE TABLE idgen.mine ();
SET idgen.layout = 'js53';
\echo :SQLSTATE
SET idgen.worker_id = 1;
SET idgen.datacenter_id = 1;
SET idgen.max_drift = '10s';
SET idgen.clock_window = '10s';
SET idgen.max_generators = 2;
ALTER SYSTEM SET idgen.max_drift = '10s';
ALTER ROLE idgen_somebody SET idgen.max_drift = '10s';
RESET ROLE;
DROP ROLE idgen_somebody;

-- Members of pg_monitor read all views and the status, also where PUBLIC may not.
BEGIN;
REVOKE USAGE ON SCHEMA idgen FROM PUBLIC;
REVOKE SELECT ON ALL TABLES IN SCHEMA idgen FROM PUBLIC;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA idgen FROM PUBLIC;
CREATE ROLE idgen_watcher IN ROLE pg_monitor;
SET ROLE idgen_watcher;
SELECT count(*) >= 0 AS read FROM idgen.stat_snowflake, idgen.stat_clock, idgen.stat_segment, idgen.stat_lease,
       idgen.stat_worker, idgen.locks, idgen.leases, idgen.workers, idgen.lease_definition;
SELECT idgen.status() ? 'checks' AS status;
ROLLBACK;
