-- The row of a lease is found by an index, even if the table was short when the session made its plans.
VACUUM FULL idgen.lease, idgen.lease_definition;
\c -
-- In one transaction, whose scans are counted before they reach the statistics.
SET client_min_messages = error;
BEGIN;
SELECT lease_define('defined');
SELECT token AS plain FROM lease_acquire('plain') \gset
SELECT token AS defined FROM lease_acquire('defined') \gset
SELECT lease_renew('plain', :plain) IS NOT NULL AS renewed;
SELECT count(*) FROM lease_renew_many(ARRAY['plain', 'defined'], ARRAY[:plain, :defined]);
SELECT lease_fence('defined', :defined);
SELECT lease_release('plain', :plain), lease_release('defined', :defined);
SELECT lease_release('defined', token) FROM lease_acquire('defined');
SELECT count(*) FROM lease_try_acquire('defined');
SELECT count(*) FROM lease_try_acquire('defined');
SELECT relname, pg_stat_get_xact_numscans(oid) AS read_from_end_to_end
FROM pg_class WHERE oid IN ('idgen.lease'::regclass, 'idgen.lease_definition'::regclass) ORDER BY relname;
ROLLBACK;
