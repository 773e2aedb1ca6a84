-- Rectangles of worker ids: begin, end, renewal, and transactions.
SET client_min_messages = warning;
SELECT worker_pool_define('p', count => 4, ttl => '1 min');

-- a grant too far ahead fails
\set VERBOSITY terse
SELECT worker_acquire('p', ttl => '1 min', reached => now() + interval '1 year');
\echo :SQLSTATE
SELECT worker_acquire('p', ttl => '1 min', reached => 'infinity');
\echo :SQLSTATE
SELECT worker_acquire('p', ttl => '1 min', reached => '-infinity');
\echo :SQLSTATE
\set VERBOSITY default
-- a ttl longer than that of the pool
SELECT worker_acquire('p', ttl => '2 min', reached => now());
\echo :SQLSTATE

-- the end that the holder knows, and its time
SELECT worker_id, token AS t, not_after AS told FROM worker_acquire('p', 'twins', '1 min') \gset
SELECT not_after AS first FROM worker_renew('p', :t, :'told'::timestamptz) \gset
SELECT worker_renew('p', :t, NULL::timestamptz);
\echo :SQLSTATE
SELECT worker_renew('p', :t, :'told'::timestamptz, reached => 'infinity');
\echo :SQLSTATE

-- no result that a rollback could take back
\set VERBOSITY terse
BEGIN;
SELECT worker_acquire('p', ttl => '1 min');
\echo :SQLSTATE
ROLLBACK;
BEGIN;
SELECT worker_renew('p', :t, :'first'::timestamptz);
\echo :SQLSTATE
ROLLBACK;
SELECT worker_acquire('p', ttl => '1 min') \; SELECT 1;
\echo :SQLSTATE
SELECT 1 \; SELECT worker_renew('p', :t, :'first'::timestamptz);
\echo :SQLSTATE
\set VERBOSITY default
SELECT not_after = :'first' AS unchanged FROM idgen.workers WHERE pool = 'p' AND owner = 'twins';
SELECT count(*) FROM idgen.workers WHERE pool = 'p' AND state = 'held';

-- without a synchronous standby it is confirmed at once, but not before its commit
SELECT worker_confirm('p', :t) = :'first' AS confirmed;
SELECT worker_confirm('p', renewed.token)
FROM (SELECT :t AS token, (worker_renew('p', :t, :'first'::timestamptz)).not_after OFFSET 0) AS renewed WHERE not_after IS NOT NULL;
\echo :SQLSTATE
SET default_transaction_isolation = 'repeatable read';
SELECT worker_confirm('p', renewed.token)
FROM (SELECT :t AS token, (worker_renew('p', :t, :'first'::timestamptz)).not_after OFFSET 0) AS renewed WHERE not_after IS NOT NULL;
\echo :SQLSTATE
RESET default_transaction_isolation;
SELECT worker_confirm('p', :t) = :'first' AS confirmed;
CALL outcomes($$
    worker_confirm('p', 1)
    worker_confirm(NULL, 1)
    worker_confirm('p', NULL)
$$);
BEGIN READ ONLY;
SELECT worker_confirm('p', :t) = :'first' AS confirmed;
COMMIT;
-- a holder that knows another end does not determine how far the worker id was used
\set VERBOSITY terse
\set SHOW_CONTEXT never
SELECT count(*) FROM worker_release('p', :t, clock_timestamp(), '2020-01-01');
\echo :SQLSTATE
\set VERBOSITY default
SELECT state, not_after = :'first' AS unchanged FROM idgen.workers WHERE pool = 'p' AND owner = 'twins';
SELECT not_after AS "end" FROM idgen.workers WHERE pool = 'p' AND owner = 'twins' \gset
SELECT worker_release('p', :t, clock_timestamp(), :'end');
SELECT state, not_after <= clock_timestamp() AS shortened FROM idgen.workers WHERE pool = 'p' AND worker_id = 0;
SELECT worker_release('p', token) FROM idgen.workers WHERE pool = 'p' AND state = 'held';
SELECT worker_pool_drop('p');
DELETE FROM idgen.worker_id WHERE pool = 'p';
