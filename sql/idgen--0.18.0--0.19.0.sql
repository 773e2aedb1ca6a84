\echo Use "ALTER EXTENSION idgen UPDATE TO '0.19.0'" to load this file. \quit

COMMENT ON COLUMN idgen.stat_worker.datacenter_id IS 'idgen.datacenter_id; NULL without a worker id, and if worker ids number pairs';
