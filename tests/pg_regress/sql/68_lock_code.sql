-- Named locks in functions, blocks and parallel plans.
CREATE TEMP VIEW held AS SELECT name, mode, scope, depth FROM idgen.locks WHERE pid IS NOT NULL ORDER BY name, mode;

-- a block that catches an error releases its transaction locks and keeps its session locks
CREATE FUNCTION fails(how text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_acquire_xact('function');
    BEGIN
        PERFORM lock_acquire('session'), lock_acquire_xact('block'), lock_acquire_many_xact('{function,more}');
        EXECUTE how;
        RETURN 'went well';
    EXCEPTION WHEN division_by_zero OR lock_not_available OR invalid_parameter_value OR null_value_not_allowed THEN
        RETURN SQLSTATE;
    END;
END $$;
BEGIN;
SELECT fails('SELECT 1/0');
SELECT * FROM held;
SELECT fails('SELECT 1');
SELECT * FROM held;
COMMIT;
SELECT * FROM held;
SELECT pg_advisory_unlock_all();

-- the error is a timeout or an invalid call
BEGIN;
SELECT lock_acquire_xact('taken');
PREPARE TRANSACTION 'idgen_lock';
SET lock_timeout = '1ms';
BEGIN;
SELECT call, fails('SELECT ' || call) FROM unnest(ARRAY[
    'lock_acquire(''taken'')', 'lock_acquire_xact(''taken'')',
    'lock_acquire_many(''{free,taken}'')', 'lock_acquire_many_xact(''{free,taken}'')',
    'lock_acquire('''')', 'lock_try_acquire(''free'', ''-1 s'')', 'lock_acquire_many_xact(''{free,NULL}'')']) AS call;
SELECT * FROM held;
SHOW lock_timeout;
COMMIT;
RESET lock_timeout;
ROLLBACK PREPARED 'idgen_lock';
SELECT lock_release('session') FROM generate_series(1, 7);
SELECT * FROM held;

-- a block that commits has several transactions in one session
DO $$
BEGIN
    FOR n IN 1..3 LOOP
        PERFORM lock_acquire('of the session'), lock_acquire_xact('of the transaction');
        RAISE NOTICE '%', (SELECT array_agg((name, scope, depth) ORDER BY name) FROM idgen.locks);
        IF n = 2 THEN ROLLBACK; ELSE COMMIT; END IF;
    END LOOP;
END $$;
SELECT * FROM held;
SELECT pg_advisory_unlock_all();

-- a lock belongs to the process, so parallel workers take none; only lock_key is parallel safe
SELECT proname, proparallel FROM pg_proc
WHERE proname ~ '^lock_(acquire|try_acquire|release|key)' ORDER BY proname COLLATE "C";
CREATE TABLE item AS SELECT n FROM generate_series(1, 100) AS n;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
EXPLAIN (COSTS OFF) SELECT lock_key('item ' || n) FROM item;
EXPLAIN (COSTS OFF) SELECT lock_try_acquire('item ' || n) FROM item;
EXPLAIN (COSTS OFF) SELECT n FROM item WHERE lock_try_acquire_xact('item ' || n);
SELECT count(*) FILTER (WHERE lock_try_acquire('item ' || n)) FROM item;
SELECT count(*), count(DISTINCT pid) AS processes FROM idgen.locks;
SELECT pg_advisory_unlock_all();
DROP TABLE item;
DROP FUNCTION fails;
