\echo Use "ALTER EXTENSION idgen UPDATE TO '0.18.0'" to load this file. \quit

-- The definitions of pools.
CREATE TABLE idgen.worker_pool (
    name text PRIMARY KEY
        CHECK (pg_catalog.octet_length(name) OPERATOR(pg_catalog.>=) 1
               AND pg_catalog.octet_length(name) OPERATOR(pg_catalog.<=) 255),
    first int NOT NULL CHECK (first OPERATOR(pg_catalog.>=) 0),
    count int NOT NULL CHECK (count OPERATOR(pg_catalog.>=) 1 AND count OPERATOR(pg_catalog.<=) 65536),
    ttl interval NOT NULL CHECK (ttl OPERATOR(pg_catalog.>) '0 seconds'),
    owner regrole NOT NULL,
    CHECK (first OPERATOR(pg_catalog.<=) (65536 OPERATOR(pg_catalog.-) count))
);
COMMENT ON TABLE idgen.worker_pool IS 'pools of worker ids';
COMMENT ON COLUMN idgen.worker_pool.name IS 'name, 1 to 255 bytes';
COMMENT ON COLUMN idgen.worker_pool.first IS 'lowest worker id';
COMMENT ON COLUMN idgen.worker_pool.count IS 'how many worker ids it has';
COMMENT ON COLUMN idgen.worker_pool.ttl IS 'how far ahead of its holder''s time a worker id is granted';
COMMENT ON COLUMN idgen.worker_pool.owner IS 'role that defined it; its members may change it';
GRANT SELECT ON idgen.worker_pool TO PUBLIC;
GRANT SELECT, INSERT ON idgen.worker_pool TO pg_database_owner;
GRANT SELECT ON idgen.worker_pool TO pg_monitor;

SELECT pg_catalog.pg_extension_config_dump('idgen.worker_pool', $condition$WHERE false UNION ALL
    SELECT name, first, count, ttl,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END
    FROM idgen.worker_pool$condition$);

-- The worker ids of pools, each with the id times of its current or last holder. A row exists from the definition of its pool
-- on. It outlives its pool, the holder and a dump: the next holder begins after these id times.
-- The table has tokens, so it is not readable: the view hides them.
CREATE TABLE idgen.worker_id (
    pool text NOT NULL,
    worker_id int NOT NULL,
    token bigint,
    owner text,
    role regrole,
    acquired_at timestamptz,
    not_before timestamptz NOT NULL DEFAULT '-infinity',
    not_after timestamptz NOT NULL DEFAULT '-infinity',
    epoch int NOT NULL DEFAULT 0,
    PRIMARY KEY (pool, worker_id)
);
COMMENT ON TABLE idgen.worker_id IS 'worker ids of pools, and id times of their holders; shown by the view idgen.workers';
COMMENT ON COLUMN idgen.worker_id.pool IS 'name of the pool';
COMMENT ON COLUMN idgen.worker_id.worker_id IS 'the worker id';
COMMENT ON COLUMN idgen.worker_id.token IS
    'identifies the holder; NULL if nobody may renew it, so that it can be granted from not_after on';
COMMENT ON COLUMN idgen.worker_id.owner IS 'name that the holder gave itself';
COMMENT ON COLUMN idgen.worker_id.role IS
    'role that acquired it, whose members may act as the holder; NULL if it was released or never granted';
COMMENT ON COLUMN idgen.worker_id.acquired_at IS 'when it was acquired; NULL if it was never granted';
COMMENT ON COLUMN idgen.worker_id.not_before IS 'start of the id times of the current or last holder';
COMMENT ON COLUMN idgen.worker_id.not_after IS
    'no id of that holder has this time or a later one; -infinity if it was never granted';
COMMENT ON COLUMN idgen.worker_id.epoch IS 'epoch of the history in which it was granted: the token is current in no other';
GRANT SELECT, INSERT ON idgen.worker_id TO pg_database_owner;

-- To find a token, the worker id to grant next, and the last one of an owner, without reading a pool. An owner can be longer
-- than an index allows.
CREATE UNIQUE INDEX worker_id_token ON idgen.worker_id (pool, token) WHERE token IS NOT NULL;

CREATE INDEX worker_id_ended ON idgen.worker_id (pool, not_after, worker_id) WHERE token IS NULL;

CREATE INDEX worker_id_held ON idgen.worker_id (pool, not_after, worker_id) WHERE token IS NOT NULL;

CREATE INDEX worker_id_owner ON idgen.worker_id (pool, pg_catalog.hashtext(owner), not_after) WHERE owner IS NOT NULL;

-- The server that restores it has no holders.
SELECT pg_catalog.pg_extension_config_dump('idgen.worker_id', $condition$WHERE false UNION ALL
    SELECT pool, worker_id, NULL, owner, NULL, acquired_at, not_before, not_after, epoch FROM idgen.worker_id$condition$);

-- A pool was a lease that has granted a worker id, or has a first slot for that and has granted nothing.
INSERT INTO idgen.worker_pool (name, first, count, ttl, owner)
SELECT defined.name, defined.first_slot, defined.slots, defined.ttl, defined.owner FROM idgen.lease_definition AS defined
WHERE EXISTS (SELECT FROM idgen.worker_number AS known WHERE known.pool OPERATOR(pg_catalog.=) defined.name)
   OR (defined.first_slot OPERATOR(pg_catalog.>) 0
       AND NOT EXISTS (SELECT FROM idgen.lease WHERE lease.name OPERATOR(pg_catalog.=) defined.name));

-- A token stays current if its lease was held, and was granted since the last interruption. A holder from before that
-- may still issue ids. A worker id whose lease ended otherwise than by worker_release() is granted once its id times are over.
INSERT INTO idgen.worker_id (pool, worker_id, token, owner, role, acquired_at, not_before, not_after)
SELECT known.pool, known.number,
       CASE WHEN held.token OPERATOR(pg_catalog.>=) COALESCE((SELECT first_token FROM idgen.worker_history), 0) THEN held.token END,
       known.owner, held.role,
       COALESCE(held.acquired_at, known.not_before), known.not_before, known.not_after
FROM idgen.worker_number AS known LEFT JOIN idgen.lease AS held
  ON held.name OPERATOR(pg_catalog.=) known.pool AND held.slot OPERATOR(pg_catalog.=) known.number
 AND held.token OPERATOR(pg_catalog.=) known.token AND held.depth OPERATOR(pg_catalog.>) 0;

INSERT INTO idgen.worker_id (pool, worker_id)
SELECT pool.name, number
FROM idgen.worker_pool AS pool,
     pg_catalog.generate_series(pool.first, pool.first OPERATOR(pg_catalog.+) pool.count OPERATOR(pg_catalog.-) 1) AS number
ON CONFLICT (pool, worker_id) DO NOTHING;

ALTER TABLE idgen.worker_history ADD COLUMN identity text NOT NULL DEFAULT '', ADD COLUMN epoch int NOT NULL DEFAULT 0;
UPDATE idgen.worker_history
SET identity = pg_catalog.concat_ws('/', system_identifier, timeline, database::pg_catalog.oid, place);
ALTER TABLE idgen.worker_history ALTER COLUMN identity DROP DEFAULT, DROP COLUMN system_identifier, DROP COLUMN timeline,
    DROP COLUMN database, DROP COLUMN place, DROP COLUMN first_token;
COMMENT ON COLUMN idgen.worker_history.identity IS
    'system identifier and timeline of the server, OID of the database, and place: inode and birth time of PG_VERSION in the data directory, which a copy does not share; those of global/pg_control; and the number in the file idgen_place; empty in a dump';
COMMENT ON COLUMN idgen.worker_history.epoch IS 'how often it was interrupted';

-- A restored database must not pass for the one that granted.
SELECT pg_catalog.pg_extension_config_dump('idgen.worker_history', $condition$WHERE false UNION ALL
    SELECT one, since, longest, '', epoch FROM idgen.worker_history$condition$);

-- Only members of the holder's role see the token.
CREATE OR REPLACE VIEW idgen.workers AS
SELECT known.pool, known.worker_id,
       CASE WHEN known.role IS NULL THEN 'free'
            WHEN known.not_after OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN 'held' ELSE 'expired' END AS state,
       CASE WHEN pg_catalog.pg_has_role(known.role::oid, 'USAGE')
             AND known.epoch = COALESCE((SELECT history.epoch FROM idgen.worker_history AS history), 0) THEN known.token END AS token,
       known.owner, known.role, known.acquired_at,
       known.not_after AS expires_at, false AS bound, known.not_before, known.not_after
FROM idgen.worker_id AS known WHERE known.acquired_at IS NOT NULL;
COMMENT ON VIEW idgen.workers IS 'worker ids of pools that were ever granted, and their holders';
COMMENT ON COLUMN idgen.workers.pool IS 'name of the pool';
COMMENT ON COLUMN idgen.workers.worker_id IS 'the worker id';
COMMENT ON COLUMN idgen.workers.state IS
    'held; expired: its id times are over, and it was neither released nor granted again; free: released';
COMMENT ON COLUMN idgen.workers.token IS 'token; NULL for other roles, and if its holder may not renew it';
COMMENT ON COLUMN idgen.workers.owner IS 'name that the holder gave itself';
COMMENT ON COLUMN idgen.workers.role IS 'role that acquired it; NULL if free';
COMMENT ON COLUMN idgen.workers.acquired_at IS 'when it was acquired';
COMMENT ON COLUMN idgen.workers.expires_at IS 'the same as not_after; kept for views on this one, as the next one';
COMMENT ON COLUMN idgen.workers.bound IS 'always false';
COMMENT ON COLUMN idgen.workers.not_before IS 'start of the id times of the current or last holder';
COMMENT ON COLUMN idgen.workers.not_after IS 'end of these id times';

DO LANGUAGE plpgsql $update$
DECLARE
    pool record;
BEGIN
    FOR pool IN
        SELECT known.name, pg_catalog.count(held.slot) AS lost
        FROM idgen.worker_pool AS known LEFT JOIN idgen.lease AS held
          ON held.name OPERATOR(pg_catalog.=) known.name AND held.depth OPERATOR(pg_catalog.>) 0
         AND NOT EXISTS (SELECT FROM idgen.worker_number AS granted WHERE granted.pool OPERATOR(pg_catalog.=) held.name
                           AND granted.token OPERATOR(pg_catalog.=) held.token)
        GROUP BY known.name ORDER BY known.name
    LOOP
        -- No notice: a script of an extension shows none.
        RAISE WARNING 'lease "%" is now a worker pool', pool.name
            USING DETAIL = pg_catalog.format('Holders of its worker ids keep them. Holders of the lease itself that have lost it: %s.',
                                             pool.lost),
                  HINT = 'To change the pool, use worker_pool_alter() and worker_pool_drop().';
    END LOOP;
END
$update$;
DELETE FROM idgen.lease USING idgen.worker_pool AS pool WHERE lease.name OPERATOR(pg_catalog.=) pool.name;
DELETE FROM idgen.lease_definition AS defined USING idgen.worker_pool AS pool
WHERE defined.name OPERATOR(pg_catalog.=) pool.name;
-- Otherwise the extension goes on listing it for dumps.
ALTER EXTENSION idgen DROP TABLE idgen.worker_number;
DROP TABLE idgen.worker_number;

-- Slots begin at 0. Those outside of the range of their lease stay outside: slots from 65536 on are shared terms, and those below
-- the first slot come right before them. By way of negative numbers: no two rows have the same one at any time.
UPDATE idgen.lease
SET slot = -1 OPERATOR(pg_catalog.-) ((lease.slot OPERATOR(pg_catalog.-) defined.first_slot OPERATOR(pg_catalog.+) 65536)
                                      OPERATOR(pg_catalog.%) 65536)
FROM idgen.lease_definition AS defined
WHERE defined.name OPERATOR(pg_catalog.=) lease.name AND defined.first_slot OPERATOR(pg_catalog.>) 0
  AND lease.slot OPERATOR(pg_catalog.<) 65536;
UPDATE idgen.lease SET slot = -1 OPERATOR(pg_catalog.-) slot WHERE slot OPERATOR(pg_catalog.<) 0;
ALTER TABLE idgen.lease_definition DROP COLUMN first_slot;

SELECT pg_catalog.pg_extension_config_dump('idgen.lease_definition', $condition$WHERE false UNION ALL
    SELECT name, slots, ttl, lock_delay,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END, notify
    FROM idgen.lease_definition$condition$);
CREATE FUNCTION lease_define(
    name text, slots int DEFAULT 1, ttl interval DEFAULT '30 seconds', lock_delay interval DEFAULT '0',
    notify boolean DEFAULT false, force boolean DEFAULT false) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_define_wrapper';
COMMENT ON FUNCTION lease_define(text, int, interval, interval, boolean, boolean) IS
    'defines the slots of a lease, its ttl, the lock delay after a holder vanished, and if NOTIFY tells of its terms; force excludes holders';
CREATE FUNCTION lease_alter(
    name text, slots int DEFAULT NULL, ttl interval DEFAULT NULL, lock_delay interval DEFAULT NULL,
    notify boolean DEFAULT NULL, force boolean DEFAULT false) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_alter_definition_wrapper';
COMMENT ON FUNCTION lease_alter(text, int, interval, interval, boolean, boolean) IS
    'changes the definition of a lease; omitted arguments keep their values';

CREATE FUNCTION worker_pool_define(
    name text, first int DEFAULT 0, count int DEFAULT 1024, ttl interval DEFAULT '30 seconds') RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_pool_define_wrapper';
COMMENT ON FUNCTION worker_pool_define(text, int, int, interval) IS 'defines a pool of worker ids: the lowest one, how many, and the ttl of its holders';
-- A superuser grants it. The role that defines a name owns it.
REVOKE EXECUTE ON FUNCTION worker_pool_define(text, int, int, interval) FROM PUBLIC;

CREATE FUNCTION worker_pool_alter(
    name text, first int DEFAULT NULL, count int DEFAULT NULL, ttl interval DEFAULT NULL, force boolean DEFAULT false) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_pool_alter_wrapper';
COMMENT ON FUNCTION worker_pool_alter(text, int, int, interval, boolean) IS
    'changes a pool of worker ids; omitted arguments keep their values; force excludes holders';

CREATE FUNCTION worker_pool_drop(name text) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_pool_drop_wrapper';
COMMENT ON FUNCTION worker_pool_drop(text) IS 'drops a pool of worker ids none of which is held';

CREATE FUNCTION worker_correct(
    pool text, worker_id int, used_until timestamptz DEFAULT NULL, force boolean DEFAULT false) RETURNS timestamptz
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_correct_unless_held_wrapper';
COMMENT ON FUNCTION worker_correct(text, int, timestamptz, boolean) IS
    'records that no id at or after a time was issued under a free worker id, and returns the time recorded before; force ends its holder';

COMMENT ON FUNCTION worker_acquire(text, text, interval, timestamptz, int) IS
    'acquires a worker id of a pool and an interval of id time';
COMMENT ON FUNCTION worker_move(text, text) IS
    'moves the worker ids of a pool to another one with their id times and holders, and drops the pool; returns their count';
COMMENT ON FUNCTION worker_renew(text, bigint, timestamptz, timestamptz) IS
    'extends the id time of a worker id, if its end is the one that the caller was last told';

-- New functions keep the owner and the privileges of those that they replace. A GRANT in this script would count as one of
-- the extension, and pg_dump would leave it out.
DO LANGUAGE plpgsql $update$
DECLARE
    replaced record;
BEGIN
    FOR replaced IN
        SELECT old.oid AS old, new.oid AS new, pg_catalog.pg_get_userbyid(old.proowner) AS owner, old.proacl AS privileges
        FROM (VALUES
            ('lease_define(text, int, interval, interval, int, boolean, boolean)',
             'lease_define(text, int, interval, interval, boolean, boolean)'),
            ('lease_alter(text, int, interval, interval, int, boolean, boolean)',
             'lease_alter(text, int, interval, interval, boolean, boolean)'),
            ('worker_correct(text, int, timestamptz)', 'worker_correct(text, int, timestamptz, boolean)')
        ) AS pair (old, new)
        JOIN pg_catalog.pg_proc AS old ON old.oid OPERATOR(pg_catalog.=) pair.old::pg_catalog.regprocedure
        JOIN pg_catalog.pg_proc AS new ON new.oid OPERATOR(pg_catalog.=) pair.new::pg_catalog.regprocedure
    LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION %s OWNER TO %I', replaced.new::pg_catalog.regprocedure, replaced.owner);
        IF EXISTS (SELECT FROM pg_catalog.pg_init_privs
                   WHERE objoid OPERATOR(pg_catalog.=) replaced.old
                     AND classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass) THEN
            EXECUTE pg_catalog.format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', replaced.new::pg_catalog.regprocedure);
        END IF;
        UPDATE pg_catalog.pg_proc SET proacl = replaced.privileges WHERE oid OPERATOR(pg_catalog.=) replaced.new;
        INSERT INTO pg_catalog.pg_shdepend (dbid, classid, objid, objsubid, refclassid, refobjid, deptype)
        SELECT dbid, classid, replaced.new, objsubid, refclassid, refobjid, deptype FROM pg_catalog.pg_shdepend
        WHERE dbid OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
                                           WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
          AND classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
          AND objid OPERATOR(pg_catalog.=) replaced.old AND deptype OPERATOR(pg_catalog.=) 'a';
        EXECUTE pg_catalog.format('DROP FUNCTION %s', replaced.old::pg_catalog.regprocedure);
    END LOOP;
END
$update$;
