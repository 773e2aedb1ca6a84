-- Moving worker ids to another pool, and corrections after a wrong clock.
CREATE ROLE idgen_operator;
CREATE ROLE idgen_other;
GRANT EXECUTE ON FUNCTION worker_pool_define TO idgen_operator, idgen_other;
SET client_min_messages = warning;
CREATE TEMP VIEW ids AS
SELECT pool, worker_id, state, owner FROM idgen.workers WHERE pool IN ('old', 'new', 'third')
ORDER BY pool, worker_id;
GRANT SELECT ON ids TO PUBLIC;

-- a pool above the worker ids set by hand
SET ROLE idgen_operator;
SELECT worker_pool_define('old', 100, 2, '1 h');
SELECT worker_id, token AS t0 FROM worker_acquire('old', 'a', '1 h') \gset
\echo :worker_id
SELECT worker_id, token AS t1, not_after AS end1 FROM worker_acquire('old', 'b') \gset
\echo :worker_id
\set VERBOSITY sqlstate
SELECT worker_acquire('old', 'c', '1 h');
\set VERBOSITY terse
SELECT * FROM ids;
-- moved with their times, tokens and holders
SELECT worker_pool_define('new', 100, 4, '1 h');
CREATE TEMP TABLE before AS
SELECT number, not_before, not_after, token FROM (SELECT worker_id AS number, not_before, not_after, token FROM idgen.workers) AS known;
SELECT worker_move('old', 'new');
SELECT * FROM ids;
SELECT count(*) AS as_before FROM before JOIN idgen.workers AS now ON now.worker_id = number AND now.pool = 'new'
WHERE now.not_before = before.not_before AND now.not_after = before.not_after AND now.token = before.token;
SELECT name, first, count, owner FROM idgen.worker_pool;
RESET ROLE;
SELECT pool, worker_id, acquired_at IS NOT NULL AS granted FROM idgen.worker_id WHERE pool IN ('old', 'new') ORDER BY 1, 2;
SET ROLE idgen_operator;
SELECT not_after >= :'end1' AS later FROM worker_renew('new', :t1, :'end1'::timestamptz);
\set VERBOSITY sqlstate
SELECT worker_renew('old', :t1, :'end1'::timestamptz);
SELECT worker_acquire('old', 'a', '1 h');
\set VERBOSITY terse
SELECT worker_id FROM worker_acquire('new', 'c', '1 h');
SELECT worker_release('new', :t0);
-- the next holder begins after the one of the old pool
SELECT not_after AS end0 FROM idgen.workers WHERE worker_id = 100 \gset
SELECT worker_pool_alter('new', count => 1, force => true);
SELECT worker_id, not_before = :'end0' AS after_it FROM worker_acquire('new', 'd', '1 h');

-- invalid moves
SELECT worker_pool_define('old', 102, 4, '1 h');
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
SELECT worker_pool_define('mine', 100, 4, '1 h');
SELECT worker_move('new', 'mine');
\echo :SQLSTATE
SELECT worker_move('mine', 'new');
RESET ROLE;
CALL outcomes($$SET LOCAL transaction_read_only = on; SELECT worker_move('new', 'mine')$$);
SELECT worker_pool_define('third', 100, 8, '1 h');
-- an empty pool
SELECT worker_move('third', 'old');
SELECT name FROM idgen.worker_pool ORDER BY name;
-- a holder outside of the new range keeps its id times, and cannot renew
SELECT not_after AS "end", token AS t FROM worker_acquire('old', 'late', prefer => 105) \gset
SELECT worker_pool_define('third', 100, 4);
SELECT worker_move('old', 'third');
SELECT worker_id, state, token FROM idgen.workers WHERE pool = 'third' AND worker_id > 103;
\set VERBOSITY sqlstate
SELECT worker_renew('third', :t, :'end'::timestamptz);
\set VERBOSITY terse

-- corrects the record of a worker id without a holder
SET ROLE idgen_operator;
UPDATE idgen.worker_id SET not_after = now();
RESET ROLE;
UPDATE idgen.worker_id SET not_before = '2030-01-01', not_after = '2030-01-02' WHERE pool = 'new' AND worker_id = 100;
SET ROLE idgen_operator;
\set VERBOSITY default
SELECT worker_correct('new', 100, '2020-01-01');
\set VERBOSITY terse
\echo :SQLSTATE
SELECT worker_correct('new', 100, '2020-01-01', force => true);
SELECT not_before, not_after FROM idgen.workers WHERE pool = 'new' AND worker_id = 100;
SELECT worker_correct('new', 100, '2020-01-02');
SELECT not_before, not_after FROM idgen.workers WHERE pool = 'new' AND worker_id = 100;
SELECT worker_id, not_before FROM worker_acquire('new', 'f', '1 h');
-- an expired one has a holder, who may renew it
SELECT worker_correct('new', 100, '2020-01-01', force => true) > now() AS was_later;
SELECT token AS t FROM worker_acquire('new', 'g', '100 ms', reached => '2020-01-01') \gset
SELECT state FROM idgen.workers WHERE pool = 'new' AND worker_id = 100;
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
    idgen_operator: worker_correct('new', 100, now(), NULL)
    idgen_operator: worker_correct('new', NULL, now())
    idgen_operator: worker_correct(NULL, 100, now())
    idgen_other: worker_correct('new', 100, now())
    worker_correct('nowhere', 100, now())
    SELECT worker_correct('new', 100, '2020-01-01') > now() - interval '1 day' AS superuser
$$);
CALL outcomes($$SET LOCAL transaction_read_only = on; SELECT worker_correct('new', 100, now())$$);

SELECT count(worker_correct(pool, worker_id, now(), force => true)) FROM ids WHERE state = 'held';
SELECT worker_pool_drop(name) FROM idgen.worker_pool ORDER BY name;
DELETE FROM idgen.worker_id WHERE pool IN ('new', 'third');
REVOKE EXECUTE ON FUNCTION worker_pool_define FROM idgen_operator, idgen_other;
DROP VIEW ids;
DROP TABLE before;
DROP ROLE idgen_operator, idgen_other;
