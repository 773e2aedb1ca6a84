CREATE FUNCTION lock_key(name text) RETURNS bigint
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lock_key_wrapper';
COMMENT ON FUNCTION lock_key IS 'key of a lock''s name: the first 8 bytes of its SHA-256, big-endian';

CREATE FUNCTION lock_acquire(name text, shared boolean DEFAULT false) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'lock_acquire_wrapper';
COMMENT ON FUNCTION lock_acquire IS 'acquires a named lock for the session; waits as long as lock_timeout allows';

CREATE FUNCTION lock_acquire_xact(name text, shared boolean DEFAULT false) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'lock_acquire_xact_wrapper';
COMMENT ON FUNCTION lock_acquire_xact IS
    'acquires a named lock for the transaction; waits as long as lock_timeout allows';

CREATE FUNCTION lock_try_acquire(name text, timeout interval DEFAULT '0', shared boolean DEFAULT false) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'lock_try_acquire_wrapper';
COMMENT ON FUNCTION lock_try_acquire IS
    'acquires a named lock for the session within a timeout; false leaves nothing held';

CREATE FUNCTION lock_try_acquire_xact(
    name text, timeout interval DEFAULT '0', shared boolean DEFAULT false) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'lock_try_acquire_xact_wrapper';
COMMENT ON FUNCTION lock_try_acquire_xact IS
    'acquires a named lock for the transaction within a timeout; false leaves nothing held';

CREATE FUNCTION lock_release(name text, shared boolean DEFAULT NULL) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'lock_release_wrapper';
COMMENT ON FUNCTION lock_release IS
    'releases a session''s named lock once; false, with a warning, if the session does not hold it';

CREATE FUNCTION lock_acquire_many(names text[], shared boolean DEFAULT false) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'lock_acquire_many_wrapper';
COMMENT ON FUNCTION lock_acquire_many IS 'acquires several named locks for the session, or none';

CREATE FUNCTION lock_acquire_many_xact(names text[], shared boolean DEFAULT false) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'lock_acquire_many_xact_wrapper';
COMMENT ON FUNCTION lock_acquire_many_xact IS 'acquires several named locks for the transaction, or none';

CREATE FUNCTION lock_try_acquire_many(
    names text[], timeout interval DEFAULT '0', shared boolean DEFAULT false) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'lock_try_acquire_many_wrapper';
COMMENT ON FUNCTION lock_try_acquire_many IS 'acquires several named locks for the session within a timeout, or none';

CREATE FUNCTION lock_try_acquire_many_xact(
    names text[], timeout interval DEFAULT '0', shared boolean DEFAULT false) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'lock_try_acquire_many_xact_wrapper';
COMMENT ON FUNCTION lock_try_acquire_many_xact IS
    'acquires several named locks for the transaction within a timeout, or none';

CREATE FUNCTION lock_release_many(names text[], shared boolean DEFAULT NULL) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'lock_release_many_wrapper';
COMMENT ON FUNCTION lock_release_many IS
    'releases several of a session''s named locks, each once; false if one was not held';

CREATE FUNCTION row_version() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'row_version_wrapper';
COMMENT ON FUNCTION row_version IS
    'trigger for BEFORE UPDATE: refuses an update of a row that has changed since it was read, by a version column';

CREATE FUNCTION idgen.lock_get_names(OUT key bigint, OUT name text) RETURNS SETOF record
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'lock_get_names_wrapper';
COMMENT ON FUNCTION idgen.lock_get_names IS 'names of locks, for the view idgen.locks';
GRANT EXECUTE ON FUNCTION idgen.lock_get_names TO pg_monitor;

CREATE FUNCTION idgen.lock_get_holds(
    OUT pid int, OUT key bigint, OUT shared boolean, OUT session_depth int, OUT transaction_depth int,
    OUT acquired_at timestamptz, OUT waits_for text) RETURNS SETOF record
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'lock_get_holds_wrapper';
COMMENT ON FUNCTION idgen.lock_get_holds IS 'scope and depth of each hold, for the view idgen.locks';
GRANT EXECUTE ON FUNCTION idgen.lock_get_holds TO pg_monitor;


-- The locks of pg_locks, with names, scopes and depths. 26980 is the kind of named locks.
CREATE VIEW idgen.locks AS
WITH every AS (SELECT * FROM pg_catalog.pg_locks),
lock AS (
    SELECT (classid::bigint << 32) | objid::bigint AS key, pid, granted, waitstart,
           mode = 'ShareLock' AS shared, virtualtransaction
    FROM every
    WHERE locktype = 'advisory' AND objsubid = 26980
      AND database = (SELECT oid FROM pg_catalog.pg_database
                                           WHERE datname = pg_catalog.current_database())
),
-- All locks of a prepared transaction have one virtual transaction, also that on its own number.
prepared AS (
    SELECT xact.gid, every.virtualtransaction
    FROM pg_catalog.pg_prepared_xacts AS xact
    JOIN every ON every.transactionid = xact.transaction AND every.pid IS NULL AND every.granted
)
SELECT named.name, lock.key, lock.pid, CASE WHEN lock.shared THEN 'shared' ELSE 'exclusive' END AS mode,
       CASE WHEN lock.pid IS NULL THEN 'transaction'
            WHEN NOT lock.granted THEN held.waits_for
            WHEN held.session_depth > 0 AND held.transaction_depth > 0 THEN 'both'
            WHEN held.session_depth > 0 THEN 'session'
            WHEN held.transaction_depth > 0 THEN 'transaction' END AS scope,
       lock.granted, held.session_depth + held.transaction_depth AS depth, held.acquired_at,
       lock.waitstart AS waiting_since,
       CASE WHEN NOT lock.granted THEN
           pg_catalog.row_number() OVER (PARTITION BY lock.key, lock.granted ORDER BY lock.waitstart) END AS queue_position,
       CASE WHEN NOT lock.granted THEN pg_catalog.pg_blocking_pids(lock.pid) END AS blocked_by,
       activity.usename AS user, activity.application_name AS application, prepared.gid
FROM lock
LEFT JOIN idgen.lock_get_names() AS named ON named.key = lock.key
LEFT JOIN idgen.lock_get_holds() AS held
       ON held.pid = lock.pid AND held.key = lock.key
      AND held.shared = lock.shared AND (held.waits_for IS NULL) = lock.granted
LEFT JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid = lock.pid
LEFT JOIN prepared
       ON lock.pid IS NULL AND prepared.virtualtransaction = lock.virtualtransaction;
COMMENT ON VIEW idgen.locks IS 'named locks that are held or waited for in this database';
COMMENT ON COLUMN idgen.locks.name IS
    'the name; NULL without preload, if there was no room for it, and for a prepared transaction after a restart, until a session uses the name';
COMMENT ON COLUMN idgen.locks.key IS 'its key, lock_key(name)';
COMMENT ON COLUMN idgen.locks.pid IS 'process of the session; NULL for a prepared transaction';
COMMENT ON COLUMN idgen.locks.mode IS 'exclusive or shared';
COMMENT ON COLUMN idgen.locks.scope IS
    'session, transaction or both; NULL for what a session holds beyond its first 16';
COMMENT ON COLUMN idgen.locks.granted IS 'true if it is held, false if it is waited for';
COMMENT ON COLUMN idgen.locks.depth IS
    'how often it is held, session and transaction together; NULL if scope is, for a prepared transaction, and during a wait';
COMMENT ON COLUMN idgen.locks.acquired_at IS
    'since when it is held, by a clock that ticks every 1 to 10 ms; NULL if depth is';
COMMENT ON COLUMN idgen.locks.waiting_since IS
    'since when it is waited for; NULL for a moment after the wait has begun';
COMMENT ON COLUMN idgen.locks.queue_position IS 'position among the waiting sessions, from 1';
COMMENT ON COLUMN idgen.locks.blocked_by IS
    'processes that block it, those before it in the queue included; 0 is a prepared transaction';
COMMENT ON COLUMN idgen.locks."user" IS 'role of the session';
COMMENT ON COLUMN idgen.locks.application IS 'its application_name';
COMMENT ON COLUMN idgen.locks.gid IS 'the prepared transaction that holds it; NULL for a session';
GRANT SELECT ON idgen.locks TO PUBLIC, pg_monitor;
