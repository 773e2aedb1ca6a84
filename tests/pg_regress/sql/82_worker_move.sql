-- Moving worker ids to another pool, pools with a first worker id, and corrections after a wrong clock.
CREATE ROLE idgen_operator;
CREATE ROLE idgen_other;
GRANT EXECUTE ON FUNCTION lease_define TO idgen_operator, idgen_other;
SET client_min_messages = warning;
CREATE TEMP VIEW ids AS
SELECT pool, worker_id, state, owner, bound FROM idgen.workers WHERE pool IN ('old', 'new', 'third')
ORDER BY pool, worker_id;
GRANT SELECT ON ids TO PUBLIC;

-- a pool above the worker ids set by hand
SET ROLE idgen_operator;
SELECT lease_define('old', 2, '1 h', first_slot => 100);
SELECT worker_id, token AS t0 FROM worker_acquire('old', 'a', '1 h') \gset
\echo :worker_id
SELECT worker_id, token AS t1, not_after AS end1 FROM worker_acquire('old', 'b') \gset
\echo :worker_id
\set VERBOSITY sqlstate
SELECT worker_acquire('old', 'c', '1 h');
\set VERBOSITY terse
SELECT * FROM ids;
-- slots out of range
CALL outcomes($$lease_define('x', 1, first_slot => -1)$$);
\set VERBOSITY default
SELECT lease_define('x', 2, first_slot => 65535);
\set VERBOSITY terse
SELECT lease_define('x', 65536, first_slot => 1);
SELECT lease_define('x', 1, first_slot => 2147483647);
SELECT lease_define('x', 1, first_slot => NULL);
\echo :SQLSTATE
SELECT lease_define('x', 1, first_slot => 65535);
SELECT slot FROM lease_acquire('x');
-- a changed range: a slot outside it stays with its holder and is not granted again
SELECT lease_alter('x', first_slot => 7, force => true);
SELECT slot FROM lease_try_acquire('x');
SELECT lease_revoke('x', 65535);
SELECT slot FROM lease_try_acquire('x');
SELECT name, slot, state FROM idgen.leases WHERE name = 'x' ORDER BY slot;
SELECT lease_revoke('x', 7);
SELECT lease_drop('x');

-- moved with their times, tokens and holders
SELECT lease_define('new', 4, '1 h', first_slot => 100);
CREATE TEMP TABLE before AS
SELECT number, not_before, not_after, token FROM (SELECT worker_id AS number, not_before, not_after, token FROM idgen.workers) AS known;
SELECT worker_move('old', 'new');
SELECT * FROM ids;
SELECT count(*) AS as_before FROM before JOIN idgen.workers AS now ON now.worker_id = number AND now.pool = 'new'
WHERE now.not_before = before.not_before AND now.not_after = before.not_after AND now.token = before.token;
SELECT name, slots, first_slot, owner FROM idgen.lease_definition WHERE name IN ('old', 'new');
SELECT not_after >= :'end1' AS later FROM worker_renew('new', :t1, :'end1'::timestamptz);
\set VERBOSITY sqlstate
SELECT worker_renew('old', :t1, :'end1'::timestamptz);
SELECT worker_acquire('old', 'a', '1 h');
\set VERBOSITY terse
SELECT worker_id FROM worker_acquire('new', 'c', '1 h');
SELECT worker_release('new', :t0);
-- the next holder begins after the one of the old pool
SELECT not_after AS end0 FROM idgen.workers WHERE worker_id = 100 \gset
SELECT lease_alter('new', slots => 1, force => true);
SELECT lease_revoke('new', slot) FROM generate_series(101, 102) AS slot;
SELECT worker_id, not_before = :'end0' AS after_it FROM worker_acquire('new', 'd', '1 h');

-- invalid moves
SELECT lease_define('old', 4, '1 h', first_slot => 102);
SELECT worker_id FROM worker_acquire('old', 'e', '1 h');
\set VERBOSITY default
SELECT worker_move('old', 'new');
\set VERBOSITY terse
\echo :SQLSTATE
CALL outcomes($$
    worker_move('new', 'new')
    worker_move('new', 'nowhere')
    worker_move('nowhere', 'new')
    worker_move(NULL, 'new')
    worker_move('new', NULL)
    worker_move('', 'new')
$$);
SET ROLE idgen_other;
SELECT lease_define('mine', 4, '1 h', first_slot => 100);
SELECT worker_move('new', 'mine');
\echo :SQLSTATE
SELECT worker_move('mine', 'new');
-- a plain lease on a slot counts as a worker id
RESET ROLE;
SELECT slot FROM lease_acquire('mine', '1 h');
SELECT worker_move('new', 'mine');
CALL outcomes($$SET LOCAL transaction_read_only = on; SELECT worker_move('new', 'mine')$$);
SELECT lease_define('third', 8, '1 h', first_slot => 100);
-- an empty pool
SELECT worker_move('third', 'old');
SELECT name FROM idgen.lease_definition WHERE name IN ('old', 'new', 'mine', 'third') ORDER BY name;

-- corrects the record of a worker id without a holder
SET ROLE idgen_operator;
UPDATE idgen.worker_number SET not_after = now();
RESET ROLE;
UPDATE idgen.worker_number SET not_before = '2030-01-01', not_after = '2030-01-02' WHERE pool = 'new' AND number = 100;
SET ROLE idgen_operator;
\set VERBOSITY default
SELECT worker_correct('new', 100, '2020-01-01');
\set VERBOSITY terse
\echo :SQLSTATE
SELECT lease_revoke('new', 100);
SELECT worker_correct('new', 100, '2020-01-01');
SELECT not_before, not_after FROM idgen.workers WHERE pool = 'new' AND worker_id = 100;
SELECT worker_correct('new', 100, '2020-01-02');
SELECT not_before, not_after FROM idgen.workers WHERE pool = 'new' AND worker_id = 100;
SELECT worker_id, not_before FROM worker_acquire('new', 'f', '1 h');
-- a holder whose lease has expired may renew it
SELECT lease_revoke('new', 100);
SELECT token AS t FROM worker_acquire('new', 'g', '100 ms') \gset
DO $$ BEGIN
    WHILE EXISTS (SELECT FROM idgen.leases WHERE name = 'new' AND slot = 100 AND state = 'held') LOOP
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;
SELECT worker_correct('new', 100, '2020-01-01');
SELECT worker_release('new', :t);
-- invalid corrections
RESET ROLE;
CALL outcomes($$
    idgen_operator: worker_correct('new', 5, now())
    idgen_operator: worker_correct('nowhere', 100, now())
    idgen_operator: worker_correct('new', 100, 'infinity')
    idgen_operator: worker_correct('new', 100, '-infinity')
    idgen_operator: worker_correct('new', 100, NULL)
    idgen_operator: worker_correct('new', NULL, now())
    idgen_operator: worker_correct(NULL, 100, now())
    idgen_other: worker_correct('new', 100, now())
    worker_correct('nowhere', 100, now())
    SELECT worker_correct('new', 100, '2020-01-01') > now() - interval '1 day' AS superuser
$$);
CALL outcomes($$SET LOCAL transaction_read_only = on; SELECT worker_correct('new', 100, now())$$);

SELECT lease_revoke(name, slot) FROM idgen.leases WHERE state = 'held' AND name IN ('old', 'new', 'mine') ORDER BY name, slot;
SELECT lease_drop(name) FROM unnest(ARRAY['old', 'new', 'mine']) AS name;
DELETE FROM idgen.worker_number WHERE pool IN ('old', 'new');
REVOKE EXECUTE ON FUNCTION lease_define FROM idgen_operator, idgen_other;
DROP VIEW ids;
DROP TABLE before;
DROP ROLE idgen_operator, idgen_other;
