-- This server's worker id, here from a setting. Other tests cover pools.
\set VERBOSITY terse
\x
SELECT source, state, worker_id, datacenter_id, pool, not_before, not_after, coordinator, pid, renewals, failures, failing_since,
       last_error, changes FROM idgen.stat_worker;
\x
SELECT jsonb_pretty(idgen.status()->'worker');
SELECT idgen.status()->'settings'->'worker_pool' AS worker_pool, idgen.status()->'settings' ? 'coordinator' AS tells_coordinator;
SELECT name, setting, context, short_desc, extra_desc FROM pg_settings WHERE name IN ('idgen.worker_pool', 'idgen.coordinator') ORDER BY name;
SET idgen.worker_pool = 'servers';
\echo :SQLSTATE
CREATE ROLE idgen_anybody;
SET ROLE idgen_anybody;
SELECT count(*) FROM idgen.stat_worker;
-- The message differs between versions of PostgreSQL.
\set VERBOSITY sqlstate
SHOW idgen.coordinator;
SHOW idgen.worker_pool;
RESET ROLE;
DROP ROLE idgen_anybody;
