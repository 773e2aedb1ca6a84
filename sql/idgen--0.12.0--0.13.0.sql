\echo Use "ALTER EXTENSION idgen UPDATE TO '0.13.0'" to load this file. \quit

-- Watching a lease.
ALTER TABLE idgen.lease_definition ADD COLUMN notify boolean NOT NULL DEFAULT false;
SELECT pg_catalog.pg_extension_config_dump('idgen.lease_definition', $condition$WHERE false UNION ALL
    SELECT name, slots, ttl, lock_delay,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END, first_slot, notify
    FROM idgen.lease_definition$condition$);
COMMENT ON COLUMN idgen.lease_definition.notify IS 'NOTIFY idgen_lease tells of each term';

-- The library keeps the symbol of the function with five arguments.
DROP FUNCTION lease_define(text, int, interval, interval, int);
CREATE FUNCTION lease_define(name text, slots int DEFAULT 1, ttl interval DEFAULT '30 seconds', lock_delay interval DEFAULT '0',
                             first_slot int DEFAULT 0, notify boolean DEFAULT false) RETURNS void
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_define_watched_wrapper';
REVOKE EXECUTE ON FUNCTION lease_define(text, int, interval, interval, int, boolean) FROM PUBLIC;
COMMENT ON FUNCTION lease_define(text, int, interval, interval, int, boolean) IS
    'defines the slots of a lease, its ttl, the lock delay after a holder vanished, its first slot, and if NOTIFY tells of its terms';

-- Shared leases. The library keeps the symbols: they serve the SQL of 0.12 as well.
DROP FUNCTION lease_acquire(text, interval, text, jsonb, bigint, boolean);
DROP FUNCTION lease_try_acquire(text, interval, interval, text, jsonb, bigint, boolean);
CREATE FUNCTION lease_acquire(name text, ttl interval DEFAULT NULL, owner text DEFAULT NULL, data jsonb DEFAULT NULL,
                              token bigint DEFAULT NULL, bind_session boolean DEFAULT false, shared boolean DEFAULT false,
                              OUT name text, OUT slot int, OUT token bigint, OUT owner text, OUT acquired_at timestamptz,
                              OUT expires_at timestamptz, OUT depth int)
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_acquire_wrapper';
CREATE FUNCTION lease_try_acquire(name text, timeout interval DEFAULT '0', ttl interval DEFAULT NULL, owner text DEFAULT NULL,
                                  data jsonb DEFAULT NULL, token bigint DEFAULT NULL, bind_session boolean DEFAULT false,
                                  shared boolean DEFAULT false,
                                  OUT name text, OUT slot int, OUT token bigint, OUT owner text, OUT acquired_at timestamptz,
                                  OUT expires_at timestamptz, OUT depth int) RETURNS SETOF record ROWS 1
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_try_acquire_wrapper';
COMMENT ON FUNCTION lease_acquire(text, interval, text, jsonb, bigint, boolean, boolean) IS
    'acquires a lease and returns its fencing token; waits up to lock_timeout';
COMMENT ON FUNCTION lease_try_acquire(text, interval, interval, text, jsonb, bigint, boolean, boolean) IS
    'acquires a lease if a slot becomes free within the timeout; otherwise returns no row';

-- A grant is one statement.
CREATE FUNCTION idgen.lease_lock_row(version tid, is_take_over boolean) RETURNS boolean STRICT VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'lease_lock_row_wrapper';
COMMENT ON FUNCTION idgen.lease_lock_row(tid, boolean) IS 'locks the row of a slot that a grant has found free';
REVOKE EXECUTE ON FUNCTION idgen.lease_lock_row(tid, boolean) FROM PUBLIC;

-- Sessions remember definitions.
CREATE FUNCTION idgen.lease_definition_changed() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'lease_definition_changed_wrapper';
CREATE TRIGGER lease_definition_changed AFTER INSERT OR UPDATE OR DELETE ON idgen.lease_definition
    FOR EACH ROW EXECUTE FUNCTION idgen.lease_definition_changed();
ALTER TABLE idgen.lease_definition ENABLE ALWAYS TRIGGER lease_definition_changed;
COMMENT ON FUNCTION idgen.lease_definition_changed() IS 'trigger of idgen.lease_definition';
COMMENT ON TRIGGER lease_definition_changed ON idgen.lease_definition IS 'announces changes to all sessions';
REVOKE EXECUTE ON FUNCTION idgen.lease_definition_changed() FROM PUBLIC;

-- Free worker ids are found by indexes. A slot of a lease is found by the primary key only.
ALTER TABLE idgen.lease DROP CONSTRAINT lease_name_token_key, ADD UNIQUE (token, name);
ALTER TABLE idgen.worker_number ADD COLUMN owner text, ADD COLUMN released boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN idgen.worker_number.owner IS 'name that the holder gave itself';
COMMENT ON COLUMN idgen.worker_number.released IS 'released by worker_release()';
UPDATE idgen.worker_number AS known
SET owner = lease.owner, released = lease.depth OPERATOR(pg_catalog.=) 0 AND NOT lease.revoked
FROM idgen.lease
WHERE lease.name OPERATOR(pg_catalog.=) known.pool AND lease.slot OPERATOR(pg_catalog.=) known.number
  AND lease.token OPERATOR(pg_catalog.=) known.token;
CREATE INDEX worker_number_released ON idgen.worker_number (pool, not_after) WHERE released;
CREATE INDEX worker_number_unreleased ON idgen.worker_number (pool, not_after) WHERE NOT released;
CREATE INDEX worker_number_owner ON idgen.worker_number (pool, pg_catalog.hashtext(owner), token) WHERE owner IS NOT NULL;

-- The state of a slot, from its row: a query for one name reads the rows of that name.
CREATE FUNCTION idgen.lease_get_state(name text, depth int, ends_us bigint, ttl_us bigint, revoked boolean, clock text,
    session bigint, session_key bigint, lock_delay interval, OUT state text, OUT expires_at timestamptz, OUT bound boolean,
    OUT key bigint) VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'lease_get_state_wrapper';
COMMENT ON FUNCTION idgen.lease_get_state(text, int, bigint, bigint, boolean, text, bigint, bigint, interval) IS
    'state of a slot, for the view idgen.leases';
GRANT EXECUTE ON FUNCTION idgen.lease_get_state(text, int, bigint, bigint, boolean, text, bigint, bigint, interval) TO pg_monitor;
CREATE OR REPLACE VIEW idgen.leases AS
SELECT lease.name, lease.slot, now.state,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 AND pg_catalog.pg_has_role(lease.role::oid, 'USAGE') THEN lease.token END AS token,
       lease.depth,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.owner END AS owner,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.role END AS role,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.data END AS data,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.acquired_at END AS acquired_at,
       now.expires_at,
       pg_catalog.make_interval(secs => lease.ttl_us OPERATOR(pg_catalog./) 1000000.0) AS ttl,
       now.bound, defined.slots, COALESCE(waiting.sessions, 0) AS queue,
       CASE WHEN lease.slot OPERATOR(pg_catalog.<) 65536 THEN 'exclusive' ELSE 'shared' END AS mode
FROM idgen.lease
LEFT JOIN idgen.lease_definition AS defined USING (name)
CROSS JOIN LATERAL idgen.lease_get_state(lease.name, lease.depth, lease.ends_us, lease.ttl_us, lease.revoked, lease.clock,
                                         lease.session, lease.session_key, defined.lock_delay) AS now
LEFT JOIN (SELECT (lock.classid::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) lock.objid::bigint AS key,
                  pg_catalog.count(*) AS sessions
           FROM pg_catalog.pg_locks AS lock
           WHERE lock.locktype OPERATOR(pg_catalog.=) 'advisory' AND lock.objsubid OPERATOR(pg_catalog.=) 27761
             AND lock.database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
                                                       WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
           GROUP BY 1) AS waiting ON waiting.key OPERATOR(pg_catalog.=) now.key;
DROP FUNCTION idgen.lease_get_states();
