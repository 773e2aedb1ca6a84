-- Several named locks at once: all or none, each once, in key order.
CREATE TEMP VIEW held AS SELECT name, mode, scope, depth FROM idgen.locks WHERE pid = pg_backend_pid() ORDER BY name, mode;

SELECT lock_acquire_many(ARRAY['b', 'a', 'b', 'c']);
SELECT * FROM held;
SELECT lock_try_acquire_many(ARRAY['c', 'd'], '1 minute');
SELECT * FROM held;
SELECT lock_try_acquire_many(ARRAY['a', 'e'], shared => true);
SELECT * FROM held;
SELECT lock_release_many(ARRAY['a', 'e'], true);
SELECT lock_release_many(ARRAY['d', 'c', 'b', 'a']);
SELECT * FROM held;
SELECT lock_release_many(ARRAY['c']);
SELECT * FROM held;

-- each lock that is not held raises a warning; the others are released
SELECT lock_acquire_many(ARRAY['a', 'b'], shared => true);
SELECT lock_release_many(ARRAY['a', 'b', 'z'], false);
SELECT lock_release_many(ARRAY['a', 'z', 'b']);
SELECT * FROM held;

-- transaction locks
BEGIN;
SELECT lock_acquire_many_xact(ARRAY['a', 'b']);
SELECT lock_try_acquire_many_xact(ARRAY['b', 'c'], '0', true);
SELECT * FROM held;
SAVEPOINT s;
SELECT lock_acquire_many_xact(ARRAY['a', 'd']);
SELECT name, mode, scope, depth FROM held WHERE mode = 'exclusive';
ROLLBACK TO s;
SELECT name, mode, scope, depth FROM held WHERE mode = 'exclusive';
SELECT lock_release_many(ARRAY['a']);
COMMIT;
SELECT * FROM held;

-- an empty array takes no lock
SELECT lock_acquire_many('{}');
SELECT lock_try_acquire_many('{}'), lock_try_acquire_many_xact('{}'), lock_release_many('{}');
-- a multidimensional array counts as its elements
SELECT lock_try_acquire_many(ARRAY[['a', 'b'], ['c', 'd']]);
SELECT lock_release_many(ARRAY['a', 'b', 'c', 'd']);
SELECT * FROM held;

-- a prepared transaction holds one of them: none is taken, and locks from before stay
BEGIN;
SELECT lock_acquire_xact('m');
PREPARE TRANSACTION 'idgen_many';
SELECT lock_acquire('a');
SELECT lock_try_acquire_many(ARRAY['a', 'b', 'm', 'z']);
SELECT lock_try_acquire_many(ARRAY['a', 'b', 'm', 'z'], '1 ms');
SELECT * FROM held;
BEGIN;
SELECT lock_try_acquire_many_xact(ARRAY['a', 'b', 'm', 'z'], '1 ms');
SELECT lock_try_acquire_xact('m', '1 ms');
SELECT * FROM held;
COMMIT;
SET lock_timeout = '1ms';
CALL outcomes($$
    lock_acquire_many(ARRAY['a', 'b', 'm', 'z'])
    lock_acquire_many_xact(ARRAY['a', 'b', 'm', 'z'])
    lock_acquire('m')
$$);
-- from PostgreSQL 19 on the error has a context, with the number of the database
\set SHOW_CONTEXT never
CALL outcomes($$lock_acquire_xact('m', true)$$);
\set SHOW_CONTEXT errors
-- functions with a timeout ignore lock_timeout and do not change it
SELECT lock_try_acquire('m', '2 ms');
SHOW lock_timeout;
SELECT * FROM held;
-- a caught error releases no other lock
DO $$
BEGIN
    PERFORM lock_acquire_xact('b');
    PERFORM lock_acquire('m');
EXCEPTION WHEN lock_not_available THEN
    RAISE NOTICE 'not available: %', SQLERRM;
END $$;
SELECT * FROM held;
RESET lock_timeout;
BEGIN;
SET LOCAL statement_timeout = '1ms';
SELECT lock_acquire_many(ARRAY['a', 'b', 'm', 'z']);
\echo :SQLSTATE
ROLLBACK;
BEGIN;
SET LOCAL statement_timeout = '1ms';
SELECT lock_try_acquire('m', '1 minute');
\echo :SQLSTATE
ROLLBACK;
SELECT * FROM held;
ROLLBACK PREPARED 'idgen_many';
SELECT lock_try_acquire_many(ARRAY['a', 'b', 'm', 'z'], '1 ms');
SELECT * FROM held;
SELECT pg_advisory_unlock_all();

-- invalid arguments take no lock
CALL outcomes($$
    lock_acquire_many(NULL)
    lock_acquire_many(ARRAY['a', NULL])
    lock_acquire_many(ARRAY['a', ''])
    lock_acquire_many(ARRAY['a'], NULL)
    lock_acquire_many_xact(NULL)
    lock_acquire_many_xact(ARRAY['a', repeat('x', 256)])
    lock_acquire_many_xact(ARRAY['a'], NULL)
    lock_try_acquire_many(NULL)
    lock_try_acquire_many(ARRAY['a', NULL])
    lock_try_acquire_many(ARRAY['a'], NULL)
    lock_try_acquire_many(ARRAY['a'], '-1 s')
    lock_try_acquire_many(ARRAY['a'], '25 days')
    lock_try_acquire_many(ARRAY['a'], '0', NULL)
    lock_try_acquire_many_xact(NULL)
    lock_try_acquire_many_xact(ARRAY['a', ''])
    lock_try_acquire_many_xact(ARRAY['a'], NULL)
    lock_try_acquire_many_xact(ARRAY['a'], '-1 s')
    lock_try_acquire_many_xact(ARRAY['a'], '0', NULL)
    lock_release_many(NULL)
    lock_release_many(ARRAY['a', NULL])
    lock_release_many(ARRAY['a', ''])
$$);
SELECT * FROM held;
