\echo Use "ALTER EXTENSION idgen UPDATE TO '0.19.0'" to load this file. \quit

COMMENT ON COLUMN idgen.stat_worker.datacenter_id IS 'idgen.datacenter_id; NULL without a worker id, and if worker ids number pairs';

-- Rows of leases are reached by their primary key. Another index would make each grant write to both.
ALTER TABLE idgen.lease DROP CONSTRAINT lease_token_name_key;
DROP FUNCTION idgen.lease_lock_row(tid, boolean);
