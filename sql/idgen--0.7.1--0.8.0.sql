\echo Use "ALTER EXTENSION idgen UPDATE TO '0.8.0'" to load this file. \quit

-- The library keeps the symbols: they serve the SQL of 0.7 as well.
DROP FUNCTION worker_acquire(text, text, interval);
DROP FUNCTION worker_renew(text, bigint, interval);
CREATE FUNCTION worker_acquire(pool text, owner text DEFAULT NULL, ttl interval DEFAULT NULL, reached timestamptz DEFAULT NULL, prefer int DEFAULT NULL, OUT worker_id int, OUT token bigint, OUT not_before timestamptz, OUT not_after timestamptz, OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_acquire_wrapper';
CREATE FUNCTION worker_renew(pool text, token bigint, last_not_after timestamptz, reached timestamptz DEFAULT NULL, OUT not_after timestamptz, OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_renew_compared_wrapper';
CREATE FUNCTION worker_renew(pool text, token bigint, ttl interval, OUT not_after timestamptz, OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_renew_wrapper';
CREATE FUNCTION worker_confirm(pool text, token bigint) RETURNS timestamptz VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_confirm_wrapper';

COMMENT ON FUNCTION worker_acquire(text, text, interval, timestamptz, int) IS
    'acquires a worker id of a pool, and the interval of id time that it may be used for; without a ttl bound to the session';
COMMENT ON FUNCTION worker_renew(text, bigint, timestamptz, timestamptz) IS
    'makes a worker id last, and moves on the end of its id time, if that end is still the one that the caller was told last';
COMMENT ON FUNCTION worker_renew(text, bigint, interval) IS
    'deprecated: renews a worker id without comparison, for keepers of idgen 0.7';
COMMENT ON FUNCTION worker_confirm(text, bigint) IS
    'waits until the synchronous standbys have the rectangle of a token, and returns the end of its id time';
