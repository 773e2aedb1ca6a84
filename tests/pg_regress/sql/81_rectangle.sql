-- Rectangles of worker ids: begin, end, renewal, and transactions.
SET client_min_messages = warning;
SELECT lease_define('p', 4, '1 min');

-- the caller's time determines the rectangle, and the clock here only limits it
SELECT clock_timestamp() AS t \gset
SELECT worker_id, not_before = :'t'::timestamptz - interval '1 h' AS begins, not_after = not_before + interval '1 min' AS ends
FROM worker_acquire('p', 'behind', '1 min', reached => :'t'::timestamptz - interval '1 h');
SELECT worker_id, token AS ahead, not_after AS told, not_before BETWEEN :'t' AND clock_timestamp() AS begins,
       not_after = :'t'::timestamptz + interval '61 min' AS ends
FROM worker_acquire('p', 'ahead', '1 min', reached => :'t'::timestamptz + interval '1 h') \gset
\echo :worker_id :begins :ends
SELECT not_after AS told, not_after = :'t'::timestamptz + interval '62 min' AS ends
FROM worker_renew('p', :ahead, :'told'::timestamptz, reached => :'t'::timestamptz + interval '61 min') \gset
\echo :ends
-- without it the clock here applies; an end that was granted is not taken back
SELECT not_after = :'told' AS stays FROM worker_renew('p', :ahead, :'told'::timestamptz);
-- a renewal too far ahead is limited
SELECT not_after - clock_timestamp() BETWEEN '1 d' AND '1 d 1 min' AS bounded
FROM worker_renew('p', :ahead, :'told'::timestamptz, reached => now() + interval '1 year');
-- and a grant fails
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

-- a preferred worker id is granted if it can be used at once, also if it was never granted
SELECT lease_define('q', 8, '1 min');
SELECT worker_id, token AS t5 FROM worker_acquire('q', 'a', '1 min', prefer => 5) \gset
\echo :worker_id
SELECT worker_id FROM worker_acquire('q', 'b', '1 min', prefer => 5);
SELECT worker_id FROM worker_acquire('q', 'c', '1 min', prefer => 8);
SELECT worker_id FROM worker_acquire('q', 'd', '1 min', prefer => -1);
SELECT worker_release('q', :t5);
SELECT worker_id FROM worker_acquire('q', 'e', '1 min', prefer => 5);
SELECT token AS t3 FROM worker_acquire('q', 'f', '1 min', prefer => 3) \gset
SELECT worker_release('q', :t3, clock_timestamp());
SELECT worker_id FROM worker_acquire('q', 'g', '1 min', prefer => 3);

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
SELECT worker_confirm('p', :t) = :'first' AS confirmed;
\set VERBOSITY terse
SELECT worker_confirm('p', 1);
\echo :SQLSTATE
SELECT worker_confirm(NULL, :t);
\echo :SQLSTATE
SELECT worker_confirm('p', NULL);
\echo :SQLSTATE
\set VERBOSITY default
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
SELECT state, not_after <= clock_timestamp() AS shortened FROM idgen.workers WHERE pool = 'p' AND worker_id = 2;
SELECT worker_release('p', token) FROM idgen.workers WHERE pool = 'p' AND state = 'held';
SELECT worker_release('q', token) FROM idgen.workers WHERE pool = 'q' AND state = 'held';
SELECT lease_drop('p'), lease_drop('q');
DELETE FROM idgen.worker_number WHERE pool IN ('p', 'q');
