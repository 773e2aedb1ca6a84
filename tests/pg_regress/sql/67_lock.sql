-- Named locks in one session: arguments, results and errors of the functions, and idgen.locks.
CREATE TEMP VIEW held AS
SELECT name, mode, scope, granted, depth, acquired_at BETWEEN now() - interval '1 minute' AND clock_timestamp() AS at,
       waiting_since, queue_position, blocked_by
FROM idgen.locks WHERE pid = pg_backend_pid() ORDER BY name, mode;

-- the key never changes and can be computed without idgen
SELECT left(name, 20) AS name, to_hex(lock_key(name)) AS key,
       lock_key(name) = ('x' || encode(substring(sha256(convert_to(name, 'UTF8')) FOR 8), 'hex'))::bit(64)::bigint AS same
FROM unnest(ARRAY['a', 'nightly-report', 'importer', 'é', ' a', 'A', repeat('x', 255)]) AS name;
CALL outcomes($$
    lock_key('')
    lock_key(repeat('long ', 52))
    lock_key(repeat('é', 128))
$$);
SELECT lock_key(NULL) IS NULL AS null_in_null_out;

-- session locks are counted, and need as many releases
SELECT lock_acquire('report');
SELECT lock_try_acquire('report');
SELECT * FROM held;
SELECT l.key = lock_key('report') AS key, l.user = current_user AS is_user, l.application = current_setting('application_name') AS app
FROM idgen.locks l WHERE name = 'report';
SELECT classid::bigint << 32 | objid::bigint = lock_key('report') AS key, objsubid, mode, granted
FROM pg_locks WHERE locktype = 'advisory';
SELECT lock_release('report');
SELECT depth FROM held;
SELECT lock_release('report');
SELECT * FROM held;
SELECT lock_release('report');

-- shared and exclusive are counted separately; without a mode the exclusive one is released first
SELECT lock_acquire('report', shared => true);
SELECT lock_acquire('report');
SELECT lock_try_acquire('report', '1 minute', true);
SELECT * FROM held;
SELECT lock_release('report');
SELECT * FROM held;
SELECT lock_release('report', false);
SELECT lock_release('report', true);
SELECT lock_release('report');
SELECT lock_release('report');

-- transaction locks need no release
BEGIN;
SELECT lock_acquire_xact('report');
SELECT lock_try_acquire_xact('report', '1 minute');
SELECT lock_acquire_xact('reader', true);
SELECT * FROM held;
SELECT lock_release('report');
SELECT lock_acquire('report');
SELECT * FROM held;
SELECT lock_release('report');
SELECT * FROM held;
COMMIT;
SELECT * FROM held;
-- a transaction lock does not conflict with a session lock of the other mode in the same session
BEGIN;
SELECT lock_acquire_xact('report'), lock_acquire('report', true);
SELECT lock_release('report');
SELECT * FROM held;
SELECT lock_release('report'), lock_release('report', true);
SHOW client_min_messages;
COMMIT;

-- an aborted transaction keeps a session lock until it has ended
BEGIN;
SELECT lock_acquire('report');
SELECT 1/0;
SELECT lock_release('report');
\echo :SQLSTATE
ROLLBACK;
SELECT name, scope, depth FROM held;
SELECT lock_release('report');
-- a rollback does not undo a release
SELECT lock_acquire('report');
BEGIN;
SELECT lock_release('report');
ROLLBACK;
SELECT name, scope, depth FROM held;

SELECT lock_release('report');
-- after DISCARD ALL there is room again
SELECT count(lock_acquire('before ' || n)) FROM generate_series(1, 16) AS n;
DISCARD ALL;
SELECT count(lock_acquire('after ' || n)) FROM generate_series(1, 16) AS n;
SELECT scope, depth, count(*), count(name) AS names FROM idgen.locks GROUP BY scope, depth;
-- also within one transaction, and for the same lock
BEGIN;
SELECT pg_advisory_unlock_all();
SELECT lock_acquire('after 1');
SELECT scope, depth, count(*), count(name) AS names FROM idgen.locks GROUP BY scope, depth;
SELECT pg_advisory_unlock_all();
SELECT count(lock_acquire('later ' || n)) FROM generate_series(1, 16) AS n;
SELECT scope, depth, count(*), count(name) AS names FROM idgen.locks GROUP BY scope, depth;
COMMIT;
DISCARD ALL;
-- transaction locks are not freed
BEGIN;
SELECT lock_acquire_xact('of the transaction'), lock_acquire('shared', shared => true);
SELECT pg_advisory_unlock_all();
SELECT name, scope, depth FROM idgen.locks;
COMMIT;
CREATE TEMP VIEW held AS SELECT name, mode, scope, granted, depth FROM idgen.locks ORDER BY name, mode;

-- locks beyond those listed with scope and depth are shown too
SELECT count(lock_acquire('many ' || n)) FROM generate_series(1, 20) AS n;
SELECT scope, depth, count(*), count(name) AS names FROM idgen.locks GROUP BY scope, depth ORDER BY scope;
SELECT count(*) FILTER (WHERE lock_release('many ' || n)) AS released FROM generate_series(1, 20) AS n;
SELECT * FROM held;

-- timeouts
SELECT lock_try_acquire('t', '0'), lock_try_acquire('t', '1 microsecond'), lock_try_acquire('t', '24 days'),
       lock_try_acquire_xact('t', '2147483647 milliseconds');
CALL outcomes($$
    lock_try_acquire('t', '-1 microsecond')
    lock_try_acquire('t', '25 days')
    lock_try_acquire_xact('t', '1 month')
    lock_try_acquire('t', 'nonsense')
$$);
SELECT lock_release('t') FROM generate_series(1, 3);
SELECT * FROM held;

-- NULL is an error, except as the mode of lock_release
CALL outcomes($$
    lock_acquire(NULL)
    lock_acquire('n', NULL)
    lock_acquire_xact(NULL)
    lock_acquire_xact('n', NULL)
    lock_try_acquire(NULL)
    lock_try_acquire('n', NULL)
    lock_try_acquire('n', '0', NULL)
    lock_try_acquire_xact(NULL)
    lock_try_acquire_xact('n', NULL)
    lock_try_acquire_xact('n', '0', NULL)
    lock_release(NULL)
$$);
SELECT lock_release('n', NULL);
-- names
SELECT lock_acquire('');
\echo :SQLSTATE
SELECT lock_acquire_xact(repeat('long ', 52));
SELECT lock_try_acquire('');
SELECT lock_try_acquire_xact('');
SELECT lock_release('');
SELECT lock_try_acquire(repeat('x', 255)), lock_release(repeat('x', 255));
SELECT * FROM held;

-- a function in a loop with a different name in each call
DO $$
BEGIN
    FOR n IN 1..3 LOOP PERFORM lock_acquire('loop ' || n); END LOOP;
END $$;
SELECT name, depth FROM held;
SELECT pg_advisory_unlock_all();
-- in a WHERE clause the call runs for more rows than the result has
SELECT n FROM generate_series(1, 5) AS n WHERE lock_try_acquire('row ' || n) ORDER BY n DESC LIMIT 1;
SELECT name, depth FROM held;
SELECT pg_advisory_unlock_all();

-- an ordinary role takes and sees locks
CREATE ROLE idgen_locker;
SELECT lock_acquire('of another role');
SET ROLE idgen_locker;
SELECT lock_try_acquire('mine'), lock_release('mine'), lock_key('a') IS NOT NULL AS key;
SELECT name, mode, scope, depth FROM idgen.locks;
SELECT lock_release('of another role');
SET idgen.max_lock_names = 5;
\echo :SQLSTATE
CREATE OR REPLACE VIEW idgen.locks AS SELECT 1;
\echo :SQLSTATE
RESET ROLE;
DROP ROLE idgen_locker;

-- the functions do not depend on search_path
CREATE SCHEMA evil;
CREATE FUNCTION evil.eq(bigint, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;
CREATE OPERATOR evil.= (FUNCTION = evil.eq, LEFTARG = bigint, RIGHTARG = bigint);
CREATE VIEW evil.pg_locks AS SELECT 1 AS nothing;
SELECT lock_acquire('path');
SET search_path = evil, pg_catalog, public;
SELECT name, mode, scope, depth FROM idgen.locks;
RESET search_path;
\set VERBOSITY terse
DROP SCHEMA evil CASCADE;
\set VERBOSITY default
SELECT lock_release('path');
