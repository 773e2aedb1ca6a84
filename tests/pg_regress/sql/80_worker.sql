-- Worker ids from a pool, and their id times.
CREATE TEMP VIEW numbers AS
SELECT pool, worker_id, state, owner, bound, not_before < not_after AS interval FROM idgen.workers ORDER BY pool, worker_id;
SELECT lease_define('ids', 3, '1 h', '1 h');
-- the notice about a wait is tested below
SET client_min_messages = warning;

-- a worker id and an interval that begins now
SELECT worker_id, token AS t0, not_after AS end0,
       not_before BETWEEN now() AND clock_timestamp() AS now, not_after - not_before = '10 min' AS ttl,
       expires_at - clock_timestamp() BETWEEN '9 min' AND '10 min' AS expires
FROM worker_acquire('ids', 'pod-1', '10 min') \gset
\echo :worker_id :now :ttl :expires
-- without a ttl it is bound to the session, with the ttl of the pool
SELECT worker_id, token AS t1, expires_at IS NULL AS endless, not_after - not_before = '1 h' AS ttl FROM worker_acquire('ids', 'pod-2') \gset
\echo :worker_id :endless :ttl
-- a running lease needs its token: the same owner text gets another worker id
SELECT worker_id, token AS t2, not_after AS end2 FROM worker_acquire('ids', 'pod-1', '10 min') \gset
\echo :worker_id
SELECT * FROM numbers;
\set VERBOSITY terse
SELECT worker_acquire('ids');
\echo :SQLSTATE
\set VERBOSITY default

-- a renewal moves the end by the ttl of the pool, if the caller passes the end that it knows
SELECT not_after AS end0, not_after > :'end0' AS later, expires_at < not_after + '1 s' AS expires
FROM worker_renew('ids', :t0, :'end0'::timestamptz) \gset
\echo :later :expires
SELECT not_after AS end1 FROM idgen.workers WHERE worker_id = 1 \gset
SELECT expires_at FROM worker_renew('ids', :t1, :'end1'::timestamptz);
SELECT worker_id, expires_at FROM idgen.workers WHERE bound;

-- after a release the next holder begins at the end of the interval, or right after the reported last time
SELECT not_after AS end0 FROM idgen.workers WHERE worker_id = 0 \gset
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
-- times that were not granted are not waited for
SELECT lease_define('bare', 2);
SELECT slot, lease_release('bare', token)
FROM (VALUES ('pod-1'), ('pod-2')) AS o (owner), lease_acquire('bare', owner => o.owner);
SELECT worker_id FROM worker_acquire('bare', 'pod-2', '10 min', prefer => 1);
SELECT lease_revoke('bare', 1);
SELECT lease_drop('bare');

-- after a revoke it rests, and the next holder begins after the granted times
SELECT lease_revoke('ids', 1);
\set VERBOSITY terse
SELECT worker_acquire('ids');
\echo :SQLSTATE
\set VERBOSITY default
SELECT lease_define('ids', 3, '1 h');
SELECT not_after AS end1 FROM idgen.workers WHERE worker_id = 1 \gset
SELECT worker_id, not_before = :'end1' AS after_it FROM worker_acquire('ids', 'next', '10 min') \gset
\echo :worker_id :after_it
-- also if the pool was dropped in between
SELECT max(not_after) AS end0 FROM idgen.workers WHERE worker_id = 0 \gset
SELECT lease_revoke('ids', n) FROM generate_series(0, 2) AS n;
SELECT lease_drop('ids');
SELECT * FROM numbers;
SELECT lease_define('ids', 1, '1 min');
SELECT worker_id, not_before = :'end0' AS after_it, token AS t FROM worker_acquire('ids') \gset
\echo :worker_id :after_it

-- a slot acquired as a plain lease has no times
SELECT worker_release('ids', :t);
SELECT token AS bare FROM lease_acquire('ids') \gset
SELECT worker_renew('ids', :bare, now());
\echo :SQLSTATE
SELECT worker_confirm('ids', :bare);
\echo :SQLSTATE
SELECT worker_release('ids', :bare, now());
SELECT worker_release('ids', :bare);
SELECT token AS t FROM worker_acquire('ids') \gset

-- a caller that has to wait gets a notice with the time, rounded up
RESET client_min_messages;
SELECT lease_define('late', 1, '10 min');
SELECT token AS late FROM worker_acquire('late', ttl => '10 min') \gset
SELECT worker_release('late', :late);
SELECT token AS late FROM worker_acquire('late') \gset
SELECT worker_release('late', :late);
-- and one whose ids are beyond it gets none
SELECT token AS late FROM worker_acquire('late', reached => now() + interval '1 h') \gset
SELECT worker_release('late', :late);
SELECT lease_drop('late');
DELETE FROM idgen.worker_number WHERE pool = 'late';
SET client_min_messages = warning;

-- invalid calls
SELECT worker_acquire('undefined');
\echo :SQLSTATE
SELECT worker_acquire(NULL);
\echo :SQLSTATE
SELECT worker_acquire('ids', ttl => '1 ms');
\echo :SQLSTATE
SELECT worker_renew('ids', NULL, now());
\echo :SQLSTATE
\set VERBOSITY terse
SELECT worker_renew('ids', 1, now());
\echo :SQLSTATE
SELECT worker_release('ids', 1);
\echo :SQLSTATE
\set VERBOSITY default
BEGIN READ ONLY;
SELECT worker_acquire('ids');
\echo :SQLSTATE
ROLLBACK;
BEGIN;
SELECT worker_release('ids', :t);
ROLLBACK;
SELECT state, bound FROM idgen.workers;
CREATE ROLE idgen_pod;
SET ROLE idgen_pod;
\set VERBOSITY terse
SELECT worker_renew('ids', :t, now());
\echo :SQLSTATE
CALL outcomes(format($$worker_confirm('ids', %1$s)$$, :t));
CALL outcomes(format($$worker_release('ids', %1$s)$$, :t));
\set VERBOSITY default
SELECT worker_id, token FROM idgen.workers;
CALL outcomes($$UPDATE idgen.worker_number SET not_after = now()$$);
RESET ROLE;
DROP ROLE idgen_pod;
SELECT worker_release('ids', :t);
SELECT lease_drop('ids');

-- of free worker ids, past times come first, then the earliest end, regardless of how long a worker id is free
SELECT lease_define('order', 3, '2 h');
SELECT worker_id, token AS t0 FROM worker_acquire('order', ttl => '2 h') \gset
SELECT worker_id, token AS t1 FROM worker_acquire('order', ttl => '1 h') \gset
SELECT worker_id, token AS t2 FROM worker_acquire('order', ttl => '1 h') \gset
SELECT worker_release('order', :t0), worker_release('order', :t1), worker_release('order', :t2, '-infinity');
SELECT worker_id FROM worker_acquire('order', ttl => '1 min');
SELECT worker_id FROM worker_acquire('order', ttl => '1 min');
SELECT worker_id FROM worker_acquire('order', ttl => '1 min');
SELECT worker_release('order', token) FROM idgen.workers WHERE pool = 'order';
SELECT lease_drop('order');
DELETE FROM idgen.worker_number WHERE pool = 'order';
