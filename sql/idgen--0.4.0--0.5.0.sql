\echo Use "ALTER EXTENSION idgen UPDATE TO '0.5.0'" to load this file. \quit

-- Named advisory locks.
CREATE FUNCTION idgen.lock_get_names(OUT key bigint, OUT name text) RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'lock_get_names_wrapper';
CREATE FUNCTION idgen.lock_get_holds(OUT pid int, OUT key bigint, OUT shared boolean, OUT session_depth int, OUT transaction_depth int, OUT acquired_at timestamptz, OUT waits_for text) RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'lock_get_holds_wrapper';
CREATE  FUNCTION "lock_key"(
	"name" TEXT
) RETURNS bigint
IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c
AS 'MODULE_PATHNAME', 'lock_key_wrapper';
CREATE FUNCTION lock_acquire(name text, shared boolean DEFAULT false) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_acquire_wrapper';
CREATE FUNCTION lock_acquire_xact(name text, shared boolean DEFAULT false) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_acquire_xact_wrapper';
CREATE FUNCTION lock_try_acquire(name text, timeout interval DEFAULT '0', shared boolean DEFAULT false) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_try_acquire_wrapper';
CREATE FUNCTION lock_try_acquire_xact(name text, timeout interval DEFAULT '0', shared boolean DEFAULT false) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_try_acquire_xact_wrapper';
CREATE FUNCTION lock_release(name text, shared boolean DEFAULT NULL) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_release_wrapper';
CREATE FUNCTION lock_acquire_many(names text[], shared boolean DEFAULT false) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_acquire_many_wrapper';
CREATE FUNCTION lock_acquire_many_xact(names text[], shared boolean DEFAULT false) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_acquire_many_xact_wrapper';
CREATE FUNCTION lock_try_acquire_many(names text[], timeout interval DEFAULT '0', shared boolean DEFAULT false) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_try_acquire_many_wrapper';
CREATE FUNCTION lock_try_acquire_many_xact(names text[], timeout interval DEFAULT '0', shared boolean DEFAULT false) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_try_acquire_many_xact_wrapper';
CREATE FUNCTION lock_release_many(names text[], shared boolean DEFAULT NULL) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_release_many_wrapper';
CREATE FUNCTION row_version() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'row_version_wrapper';

-- What PostgreSQL's lock manager says, with the names and depths that idgen has kept. 26980 is the space of named locks.
CREATE VIEW idgen.locks AS
WITH lock AS (
    SELECT (classid::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) objid::bigint AS key, pid, granted, waitstart,
           mode OPERATOR(pg_catalog.=) 'ShareLock' AS shared
    FROM pg_catalog.pg_locks
    WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND objsubid OPERATOR(pg_catalog.=) 26980
      AND database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
                                           WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
)
SELECT named.name, lock.key, lock.pid, CASE WHEN lock.shared THEN 'shared' ELSE 'exclusive' END AS mode,
       CASE WHEN lock.pid IS NULL THEN 'transaction'
            WHEN NOT lock.granted THEN held.waits_for
            WHEN held.session_depth OPERATOR(pg_catalog.>) 0 AND held.transaction_depth OPERATOR(pg_catalog.>) 0 THEN 'both'
            WHEN held.session_depth OPERATOR(pg_catalog.>) 0 THEN 'session'
            WHEN held.transaction_depth OPERATOR(pg_catalog.>) 0 THEN 'transaction' END AS scope,
       lock.granted, held.session_depth OPERATOR(pg_catalog.+) held.transaction_depth AS depth, held.acquired_at,
       lock.waitstart AS waiting_since,
       CASE WHEN NOT lock.granted THEN
           pg_catalog.row_number() OVER (PARTITION BY lock.key, lock.granted ORDER BY lock.waitstart) END AS queue_position,
       CASE WHEN NOT lock.granted THEN pg_catalog.pg_blocking_pids(lock.pid) END AS blocked_by,
       activity.usename AS user, activity.application_name AS application
FROM lock
LEFT JOIN idgen.lock_get_names() AS named ON named.key OPERATOR(pg_catalog.=) lock.key
LEFT JOIN idgen.lock_get_holds() AS held
       ON held.pid OPERATOR(pg_catalog.=) lock.pid AND held.key OPERATOR(pg_catalog.=) lock.key
      AND held.shared OPERATOR(pg_catalog.=) lock.shared AND (held.waits_for IS NULL) OPERATOR(pg_catalog.=) lock.granted
LEFT JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid OPERATOR(pg_catalog.=) lock.pid;

COMMENT ON FUNCTION lock_key(text) IS
    'key of a lock''s name: the first 8 bytes of its SHA-256, the high byte first';
COMMENT ON FUNCTION lock_acquire(text, boolean) IS 'takes a named lock for the session; waits as long as lock_timeout lets it';
COMMENT ON FUNCTION lock_acquire_xact(text, boolean) IS
    'takes a named lock for the transaction; waits as long as lock_timeout lets it';
COMMENT ON FUNCTION lock_try_acquire(text, interval, boolean) IS
    'takes a named lock for the session if it is to be had in time; false leaves nothing held';
COMMENT ON FUNCTION lock_try_acquire_xact(text, interval, boolean) IS
    'takes a named lock for the transaction if it is to be had in time; false leaves nothing held';
COMMENT ON FUNCTION lock_release(text, boolean) IS
    'lets go of a session''s named lock once; false, with a warning, if it is not held';
COMMENT ON FUNCTION lock_acquire_many(text[], boolean) IS 'takes several named locks for the session, or none';
COMMENT ON FUNCTION lock_acquire_many_xact(text[], boolean) IS 'takes several named locks for the transaction, or none';
COMMENT ON FUNCTION lock_try_acquire_many(text[], interval, boolean) IS
    'takes several named locks for the session if all are to be had in time, or none';
COMMENT ON FUNCTION lock_try_acquire_many_xact(text[], interval, boolean) IS
    'takes several named locks for the transaction if all are to be had in time, or none';
COMMENT ON FUNCTION lock_release_many(text[], boolean) IS
    'lets go of several of a session''s named locks, each once; false if one was not held';
COMMENT ON FUNCTION row_version() IS
    'trigger for BEFORE UPDATE: refuses a row that was changed meanwhile, by a column that counts its versions';
COMMENT ON VIEW idgen.locks IS 'named locks that are held or waited for in this database';
COMMENT ON FUNCTION idgen.lock_get_names() IS 'names of locks, for the view idgen.locks';
COMMENT ON FUNCTION idgen.lock_get_holds() IS 'who holds which lock how often, for the view idgen.locks';

GRANT SELECT ON idgen.locks TO PUBLIC;
