\echo Use "ALTER EXTENSION idgen UPDATE TO '0.8.0'" to load this file. \quit

-- A range of slots, and moving worker ids.
ALTER TABLE idgen.lease_definition
    ADD COLUMN first_slot int NOT NULL DEFAULT 0 CHECK (first_slot OPERATOR(pg_catalog.>=) 0),
    ADD CHECK (first_slot OPERATOR(pg_catalog.<=) (65536 OPERATOR(pg_catalog.-) slots));
SELECT pg_catalog.pg_extension_config_dump('idgen.lease_definition', $condition$WHERE false UNION ALL
    SELECT name, slots, ttl, lock_delay,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END, first_slot
    FROM idgen.lease_definition$condition$);
COMMENT ON COLUMN idgen.lease_definition.first_slot IS 'its lowest slot, and so the lowest worker id of a pool';

DROP FUNCTION lease_define(text, int, interval, interval);
CREATE FUNCTION lease_define(name text, slots int DEFAULT 1, ttl interval DEFAULT '30 seconds', lock_delay interval DEFAULT '0',
                             first_slot int DEFAULT 0) RETURNS void
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_define_range_wrapper';
REVOKE EXECUTE ON FUNCTION lease_define(text, int, interval, interval, int) FROM PUBLIC;
COMMENT ON FUNCTION lease_define(text, int, interval, interval, int) IS
    'defines how many may hold a lease at once, for how long, how long a slot rests whose holder has vanished, and its first slot';

CREATE FUNCTION worker_move(from_pool text, to_pool text) RETURNS int
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_move_wrapper';
COMMENT ON FUNCTION worker_move(text, text) IS
    'carries the worker ids of a pool over to another one, with their rectangles and leases, and drops the first; returns how many';
CREATE FUNCTION worker_correct(pool text, worker_id int, used_until timestamptz) RETURNS timestamptz
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_correct_wrapper';
COMMENT ON FUNCTION worker_correct(text, int, timestamptz) IS
    'states that no id at or after a time was issued under a worker id that nobody holds; returns the time recorded before';
