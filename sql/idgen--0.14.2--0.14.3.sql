\echo Use "ALTER EXTENSION idgen UPDATE TO '0.14.3'" to load this file. \quit

-- The locks of pg_locks, with names, scopes and depths. 26980 is the kind of named locks.
CREATE OR REPLACE VIEW idgen.locks AS
WITH every AS (SELECT * FROM pg_catalog.pg_locks),
lock AS (
    SELECT (classid::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) objid::bigint AS key, pid, granted, waitstart,
           mode OPERATOR(pg_catalog.=) 'ShareLock' AS shared, virtualtransaction
    FROM every
    WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND objsubid OPERATOR(pg_catalog.=) 26980
      AND database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
                                           WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
),
-- All locks of a prepared transaction have one virtual transaction, also that on its own number.
prepared AS (
    SELECT xact.gid, every.virtualtransaction
    FROM pg_catalog.pg_prepared_xacts AS xact
    JOIN every ON every.transactionid OPERATOR(pg_catalog.=) xact.transaction AND every.pid IS NULL AND every.granted
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
       activity.usename AS user, activity.application_name AS application, prepared.gid
FROM lock
LEFT JOIN idgen.lock_get_names() AS named ON named.key OPERATOR(pg_catalog.=) lock.key
LEFT JOIN idgen.lock_get_holds() AS held
       ON held.pid OPERATOR(pg_catalog.=) lock.pid AND held.key OPERATOR(pg_catalog.=) lock.key
      AND held.shared OPERATOR(pg_catalog.=) lock.shared AND (held.waits_for IS NULL) OPERATOR(pg_catalog.=) lock.granted
LEFT JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid OPERATOR(pg_catalog.=) lock.pid
LEFT JOIN prepared
       ON lock.pid IS NULL AND prepared.virtualtransaction OPERATOR(pg_catalog.=) lock.virtualtransaction;
-- A statement that would call one of these functions once for each column is refused.
CREATE FUNCTION idgen.refuse_row_expansion(request internal) RETURNS internal STRICT VOLATILE PARALLEL SAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'refuse_row_expansion_wrapper';
ALTER FUNCTION segment_reserve(text, bigint) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION segment_request(text, bigint, text, bigint, bigint) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION lease_acquire(text, interval, text, jsonb, bigint, boolean, boolean) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION lease_try_acquire(text, interval, interval, text, jsonb, bigint, boolean, boolean) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION lease_renew_many(text[], bigint[], interval) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION worker_acquire(text, text, interval, timestamptz, int) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION worker_renew(text, bigint, timestamptz, timestamptz) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION worker_renew(text, bigint, interval) SUPPORT idgen.refuse_row_expansion;
COMMENT ON FUNCTION idgen.refuse_row_expansion(internal) IS
    'planner support: refuses (function(...)).*, which would call the function once for each column';
REVOKE EXECUTE ON FUNCTION idgen.refuse_row_expansion(internal) FROM PUBLIC;
COMMENT ON COLUMN idgen.lease.clock IS
    'identifies CLOCK_BOOTTIME: the boot of the machine, the offset of the time namespace, and the number in idgen_place';
