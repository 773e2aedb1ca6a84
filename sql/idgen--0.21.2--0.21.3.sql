\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.3'" to load this file. \quit

-- Keys sort by their bytes: an index that sorts by the rules of the operating system passes rows over on another one, such as
-- a standby with a later release.
ALTER TABLE idgen.lease_definition DROP CONSTRAINT lease_definition_pkey;
ALTER TABLE idgen.lease_definition ALTER COLUMN name SET NOT NULL;
CREATE UNIQUE INDEX lease_definition_key ON idgen.lease_definition (name text_pattern_ops);
ALTER TABLE idgen.lease_definition REPLICA IDENTITY USING INDEX lease_definition_key;

ALTER TABLE idgen.lease DROP CONSTRAINT lease_pkey;
ALTER TABLE idgen.lease ALTER COLUMN name SET NOT NULL;
CREATE UNIQUE INDEX lease_key ON idgen.lease (name text_pattern_ops, slot);
ALTER TABLE idgen.lease REPLICA IDENTITY USING INDEX lease_key;

ALTER TABLE idgen.segment DROP CONSTRAINT segment_pkey;
ALTER TABLE idgen.segment ALTER COLUMN tag SET NOT NULL;
CREATE UNIQUE INDEX segment_key ON idgen.segment (tag text_pattern_ops);
ALTER TABLE idgen.segment REPLICA IDENTITY USING INDEX segment_key;

ALTER TABLE idgen.segment_server DROP CONSTRAINT segment_server_pkey;
ALTER TABLE idgen.segment_server ALTER COLUMN tag SET NOT NULL;
CREATE UNIQUE INDEX segment_server_key ON idgen.segment_server (tag text_pattern_ops, server);
ALTER TABLE idgen.segment_server REPLICA IDENTITY USING INDEX segment_server_key;

ALTER TABLE idgen.worker_pool DROP CONSTRAINT worker_pool_pkey;
ALTER TABLE idgen.worker_pool ALTER COLUMN name SET NOT NULL;
CREATE UNIQUE INDEX worker_pool_key ON idgen.worker_pool (name text_pattern_ops);
ALTER TABLE idgen.worker_pool REPLICA IDENTITY USING INDEX worker_pool_key;

ALTER TABLE idgen.worker_id DROP CONSTRAINT worker_id_pkey;
ALTER TABLE idgen.worker_id ALTER COLUMN pool SET NOT NULL;
CREATE UNIQUE INDEX worker_id_key ON idgen.worker_id (pool text_pattern_ops, worker_id);
ALTER TABLE idgen.worker_id REPLICA IDENTITY USING INDEX worker_id_key;

ALTER TABLE idgen.public_key DROP CONSTRAINT public_key_pkey;
ALTER TABLE idgen.public_key ALTER COLUMN prefix SET NOT NULL;
CREATE UNIQUE INDEX public_key_key ON idgen.public_key (prefix text_pattern_ops, version);
ALTER TABLE idgen.public_key REPLICA IDENTITY USING INDEX public_key_key;

DROP INDEX idgen.public_key_one_short;
CREATE UNIQUE INDEX public_key_one_short ON idgen.public_key (prefix text_pattern_ops) WHERE form = 'short';

DROP INDEX idgen.worker_id_token;
CREATE UNIQUE INDEX worker_id_token ON idgen.worker_id (pool text_pattern_ops, token) WHERE token IS NOT NULL;

DROP INDEX idgen.worker_id_ended;
CREATE INDEX worker_id_ended ON idgen.worker_id (pool text_pattern_ops, not_after, worker_id) WHERE token IS NULL;

DROP INDEX idgen.worker_id_held;
CREATE INDEX worker_id_held ON idgen.worker_id (pool text_pattern_ops, not_after, worker_id) WHERE token IS NOT NULL;

DROP INDEX idgen.worker_id_owner;
CREATE INDEX worker_id_owner ON idgen.worker_id (pool text_pattern_ops, pg_catalog.hashtext(owner), not_after) WHERE owner IS NOT NULL;

COMMENT ON COLUMN idgen.lease.clock IS
    'identifies CLOCK_BOOTTIME: the boot of the machine, the offset of the time namespace, the file global/pg_control, and the number in idgen_place';
