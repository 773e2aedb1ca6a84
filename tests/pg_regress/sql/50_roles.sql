-- The rights of an ordinary role.
CREATE ROLE idgen_somebody;
CALL outcomes($$
    idgen_somebody: SELECT snowflake_next() > 0, snowflake_next('js53') > 0, (SELECT count(*) FROM snowflake_next_many(3))
    idgen_somebody: SELECT worker FROM snowflake_parts(1888944671579078656)
    idgen_somebody: SELECT count(*) > 0 FROM idgen.stat_snowflake
    idgen_somebody: SELECT idgen.status() ? 'checks'
    idgen_somebody: idgen.reset_stats()
    idgen_somebody: snowflake_observe(1)
    idgen_somebody: snowflake_observe(1, 'js53', true)
    idgen_somebody: SELECT count(*) FROM idgen.stat_clock
    idgen_somebody: CREATE TABLE idgen.mine ()
    GRANT EXECUTE ON FUNCTION idgen.reset_stats() TO idgen_somebody
    idgen_somebody: idgen.reset_stats()
    SELECT sum(issued) FROM idgen.stat_snowflake
    REVOKE EXECUTE ON FUNCTION idgen.reset_stats() FROM idgen_somebody
$$);
DROP ROLE idgen_somebody;

-- Members of pg_monitor read all views and the status, also where PUBLIC may not.
BEGIN;
REVOKE USAGE ON SCHEMA idgen FROM PUBLIC;
REVOKE SELECT ON ALL TABLES IN SCHEMA idgen FROM PUBLIC;
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA idgen FROM PUBLIC;
CREATE ROLE idgen_watcher IN ROLE pg_monitor;
SET ROLE idgen_watcher;
SELECT count(*) >= 0 AS read FROM idgen.stat_snowflake, idgen.stat_clock, idgen.stat_segment, idgen.stat_lease,
       idgen.stat_worker, idgen.locks, idgen.leases, idgen.workers, idgen.lease_definition,
       idgen.worker_pool;
SELECT idgen.status() ? 'checks' AS status;
ROLLBACK;
