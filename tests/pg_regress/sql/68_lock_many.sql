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
