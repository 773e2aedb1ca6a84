-- Worker ids from a pool, and their id times.
CREATE TEMP VIEW numbers AS
SELECT pool, worker_id, state, owner, not_before < not_after AS interval FROM idgen.workers ORDER BY pool, worker_id;
SELECT worker_pool_define('ids', count => 3, ttl => '1 h');
-- the notice about a wait is tested below
SET client_min_messages = warning;

-- a worker id and an interval that begins now
SELECT worker_id, token AS t0, not_after AS end0,
       not_before BETWEEN now() AND clock_timestamp() AS now, not_after - not_before = '10 min' AS ttl,
       expires_at = not_after AS expires, token BETWEEN 1 AND (2::bigint ^ 53) AS exact
FROM worker_acquire('ids', 'pod-1', '10 min') \gset
\echo :worker_id :now :ttl :expires :exact
-- without a ttl it has the ttl of the pool
SELECT worker_id, token AS t1, not_after AS end1, not_after - not_before = '1 h' AS ttl FROM worker_acquire('ids', 'pod-2') \gset
\echo :worker_id :ttl
-- a held worker id needs its token: the same owner text gets another one
SELECT worker_id, token AS t2, not_after AS end2 FROM worker_acquire('ids', 'pod-1', '10 min') \gset
\echo :worker_id
SELECT * FROM numbers;
\set VERBOSITY terse
SELECT worker_acquire('ids');
\echo :SQLSTATE
\set VERBOSITY default

-- a renewal moves the end by the ttl of the pool, if the caller passes the end that it knows
SELECT not_after AS end0, not_after > :'end0' AS later, expires_at = not_after AS expires
FROM worker_renew('ids', :t0, :'end0'::timestamptz) \gset
\echo :later :expires
-- and leaves the token and the start
SELECT token = :t0 AS token, not_after = :'end0' AS end, not_before < acquired_at AS begin FROM idgen.workers WHERE worker_id = 0;

-- after a release the next holder begins at the end of the interval, or right after the reported last time
SELECT worker_release('ids', :t0);
SELECT worker_id, not_before = :'end0' AS after_it, token AS t0 FROM worker_acquire('ids', 'pod-3', '10 min') \gset
\echo :worker_id :after_it
SELECT worker_release('ids', :t2, :'end2'::timestamptz - interval '9 min');
SELECT worker_id, not_before = :'end2'::timestamptz - interval '9 min' + interval '1 microsecond' AS after_it, token AS t2
FROM worker_acquire('ids', 'pod-1', '10 min') \gset
\echo :worker_id :after_it
-- a last time outside the interval is limited to it
SELECT not_before AS begin2, not_after AS end2 FROM idgen.workers WHERE worker_id = 2 \gset
SELECT worker_release('ids', :t2, 'infinity');
SELECT not_after = :'end2' AS as_it_was FROM idgen.workers WHERE worker_id = 2;
SELECT worker_id, token AS t2, not_before AS begin2 FROM worker_acquire('ids', 'x', '10 min') \gset
SELECT worker_release('ids', :t2, '-infinity');
SELECT not_after = :'begin2' AS none_used FROM idgen.workers WHERE worker_id = 2;

-- the owner's last worker id is preferred if it is free and its times are over; those of 0 are not
SELECT worker_release('ids', :t0);
SELECT worker_release('ids', :t1, '-infinity');
SELECT worker_id, owner, not_after < now() AS over FROM idgen.workers ORDER BY 1;
SELECT worker_id, owner FROM (SELECT 'pod-2' AS owner) o, worker_acquire('ids', owner, '10 min');
SELECT worker_id, owner FROM (SELECT 'pod-3' AS owner) o, worker_acquire('ids', owner, '10 min');
SELECT worker_id FROM worker_acquire('ids', 'x', '10 min');
-- a worker id that its pool's owner frees begins where they say
SELECT worker_correct('ids', 1, '2020-01-01', force => true) > now() AS was_later;
SELECT worker_id, not_before FROM worker_acquire('ids', 'next', '10 min');
-- also if the pool was dropped in between
SELECT max(not_after) AS end0 FROM idgen.workers WHERE worker_id = 0 \gset
SELECT count(worker_correct('ids', worker_id, not_after, force => true)) FROM idgen.workers;
SELECT worker_pool_drop('ids');
SELECT * FROM numbers;
SELECT worker_pool_define('ids', count => 1, ttl => '1 min');
SELECT worker_id, not_before = :'end0' AS after_it, token AS t FROM worker_acquire('ids') \gset
\echo :worker_id :after_it

-- a second release finds no holder
SELECT worker_release('ids', :t);
CALL outcomes(format($$worker_release('ids', %s)$$, :t));
SELECT token AS t FROM worker_acquire('ids') \gset

-- a caller that has to wait gets a notice with the time, rounded up
RESET client_min_messages;
SELECT worker_pool_define('late', count => 1, ttl => '10 min');
SELECT token AS late FROM worker_acquire('late', ttl => '10 min') \gset
SELECT worker_release('late', :late);
SELECT token AS late FROM worker_acquire('late') \gset
SELECT worker_release('late', :late);
-- and one whose ids are beyond it gets none
SELECT token AS late FROM worker_acquire('late', reached => now() + interval '1 h') \gset
SELECT worker_release('late', :late);
SELECT worker_pool_drop('late');
DELETE FROM idgen.worker_id WHERE pool = 'late';
SET client_min_messages = warning;

-- invalid calls
SELECT worker_acquire('undefined');
\echo :SQLSTATE
SELECT worker_acquire(NULL);
\echo :SQLSTATE
SELECT worker_acquire('ids', ttl => '1 ms');
\echo :SQLSTATE
SELECT worker_acquire('ids', owner => repeat('x', 1001));
\echo :SQLSTATE
SELECT worker_renew('ids', 1, now());
\echo :SQLSTATE
SELECT worker_renew('ids', NULL, now());
SELECT worker_renew(NULL, 1, now());
CALL outcomes($$
    worker_release('ids', 1)
    worker_release('ids', NULL)
    worker_release(NULL, 1)
    worker_release('undefined', 1)
$$);
BEGIN READ ONLY;
SELECT worker_acquire('ids');
\echo :SQLSTATE
ROLLBACK;
BEGIN;
SELECT worker_release('ids', :t);
ROLLBACK;
SELECT state FROM idgen.workers WHERE pool = 'ids' AND worker_id = 0;
-- another role, even with the token, which it cannot see
CREATE ROLE "idgen ""pod""";
CREATE ROLE idgen_fellow IN ROLE "idgen ""pod""";
SET ROLE "idgen ""pod""";
SELECT worker_renew('ids', :t, now());
\echo :SQLSTATE
CALL outcomes(format($$
    worker_confirm('ids', %1$s)
    worker_release('ids', %1$s)
    SELECT worker_id, state, token FROM idgen.workers WHERE pool = 'ids' AND state = 'held'
    TABLE idgen.worker_id
    UPDATE idgen.worker_id SET not_after = now()
    UPDATE idgen.worker_pool SET count = 2
$$, :t));
RESET ROLE;
SELECT worker_release('ids', :t);
-- a member of the holder's role acts as the holder
SET ROLE "idgen ""pod""";
SELECT token AS t, not_after AS "end" FROM worker_acquire('ids') \gset
SET ROLE idgen_fellow;
SELECT not_after >= :'end' AS renewed FROM worker_renew('ids', :t, :'end'::timestamptz);
CALL outcomes(format($$
    SELECT token = %1$s AS token, role FROM idgen.workers WHERE pool = 'ids' AND state = 'held'
    SELECT worker_confirm('ids', %1$s) > now() AS confirmed
    worker_release('ids', %1$s)
    SELECT state, token, role FROM idgen.workers WHERE pool = 'ids' AND worker_id = 0
$$, :t));
-- if the holder's role is dropped, only superusers may act for it
SET ROLE "idgen ""pod""";
SELECT token AS t FROM worker_acquire('ids') \gset
RESET ROLE;
DROP ROLE "idgen ""pod""", idgen_fellow;
SELECT state, token = :t AS token FROM idgen.workers WHERE pool = 'ids' AND worker_id = 0;
SELECT worker_release('ids', :t);
SELECT worker_pool_drop('ids');
DELETE FROM idgen.worker_id WHERE pool = 'ids';

-- the order of grants; the hours are those of the end of the id times from now
SELECT worker_pool_define('order', count => 9, ttl => '1 h');
UPDATE idgen.worker_id SET owner = o, acquired_at = now() - interval '9 h', not_before = now() - interval '9 h',
    not_after = now() + h * interval '1 h', token = CASE WHEN NOT is_released THEN worker_id + 1 END,
    role = CASE WHEN NOT is_released THEN 10::oid END
FROM (VALUES (1, -2, false, NULL), (2, -1, false, NULL), (3, -3, true, 'a'), (4, -1, true, 'a'), (5, 1, true, NULL), (6, 2, true, 'b'),
             (7, 1, false, 'a')) AS was (number, h, is_released, o)
WHERE pool = 'order' AND worker_id = number;
SELECT worker_id, state, owner FROM idgen.workers WHERE pool = 'order' ORDER BY 1;
SELECT n, why, prefer, left(call.owner, 4) AS owner, worker_id
FROM (VALUES (1, 'held, so the last one of the owner', 7, 'a'), (2, 'preferred, although it has expired', 2, NULL),
             (3, 'both ahead, so one that was never granted', 6, 'b'), (4, 'outside of the pool', 9, NULL),
             (5, 'released for longest', NULL, repeat('x', 1000)), (6, 'expired', NULL, NULL),
             (7, 'ahead by the least', NULL, NULL), (8, 'ahead', 8, 'a')) AS call (n, why, prefer, owner),
     worker_acquire('order', call.owner, prefer => call.prefer);
\set VERBOSITY terse
SELECT worker_acquire('order', 'a', prefer => 3);
\echo :SQLSTATE
\set VERBOSITY default
SELECT count(worker_correct('order', worker_id, now(), force => true)) FROM idgen.workers WHERE pool = 'order';
SELECT worker_pool_drop('order');
DELETE FROM idgen.worker_id WHERE pool = 'order';
