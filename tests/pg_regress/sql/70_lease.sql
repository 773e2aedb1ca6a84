-- Leases in one session: results and errors of the functions, and idgen.leases.
CREATE TEMP VIEW shown AS
SELECT name, slot, state, token IS NOT NULL AS token, depth, owner, role, data,
       acquired_at BETWEEN now() - interval '1 minute' AND clock_timestamp() AS at,
       expires_at - clock_timestamp() BETWEEN ttl - interval '1 minute' AND ttl AS until, ttl, bound, slots, queue
FROM idgen.leases ORDER BY name, slot;

-- a name is an exclusive lock until its release, which leaves nothing
SELECT name, slot, token > 1e15 AS token, owner, acquired_at <= clock_timestamp() AS acquired,
       expires_at - acquired_at BETWEEN '29 s' AND '31 s' AS expires, depth, token AS t
FROM lease_acquire('importer') \gset l_
\echo :l_name :l_slot :l_token :l_owner :l_acquired :l_expires :l_depth
SELECT * FROM lease_try_acquire('importer');
SELECT * FROM lease_try_acquire('importer', '1 ms');
SET lock_timeout = '1 ms';
CALL outcomes($$lease_acquire('importer')$$);
RESET lock_timeout;
SELECT * FROM shown;
SELECT lease_release('importer', :l_t);
SELECT * FROM shown;
CALL outcomes(format($$
    lease_release('importer', %1$s)
    lease_renew('importer', %1$s)
    lease_fence('importer', %1$s)
$$, :l_t));

-- tokens increase over all names
SELECT token AS t1 FROM lease_acquire('importer', '1 h', 'app-1', '{"host": "a", "n": 1.10}') \gset
SELECT token AS t2 FROM lease_try_acquire('other') \gset
SELECT :l_t < :t1 AND :t1 < :t2 AS rise;
SELECT lease_release('other', :t2);
SELECT * FROM shown WHERE name = 'importer';

-- acquired again with its token: needs as many releases
SELECT token = :t1 AS same, owner, depth FROM lease_acquire('importer', token => :t1);
SELECT token = :t1 AS same, owner, depth FROM lease_try_acquire('importer', ttl => '2 h', owner => 'ignored', token => :t1);
SELECT depth, owner, data, ttl FROM shown WHERE name = 'importer';
SELECT lease_release('importer', :t1);
SELECT lease_release('importer', :t1);
SELECT lease_release('importer', :t1);
CALL outcomes(format($$lease_acquire('importer', token => %s)$$, :t1));
CALL outcomes($$lease_try_acquire('importer', token => 1)$$);

-- renewed for its ttl, or with a new one
SELECT token AS t FROM lease_acquire('job', '1 h') \gset
SELECT lease_renew('job', :t) - clock_timestamp() BETWEEN '59 min' AND '60 min' AS own;
SELECT lease_renew('job', :t, '1 s') - clock_timestamp() BETWEEN '0 s' AND '1 s' AS shorter;
SELECT lease_renew('job', :t) - clock_timestamp() BETWEEN '0 s' AND '1 s' AS as_before;
SELECT token AS u FROM lease_acquire('job2') \gset
SELECT name, CASE token WHEN :t THEN 't' WHEN :u THEN 'u' END AS token, expires_at - clock_timestamp() BETWEEN '59 s' AND '60 s' AS until
FROM lease_renew_many(ARRAY['job2', 'job', 'job', 'absent', 'job2'], ARRAY[:u, :t, :t, 1, 2], '1 min');
SELECT * FROM lease_renew_many('{}', '{}');
CALL outcomes($$
    lease_renew_many('{a}', '{}')
    lease_renew_many('{a,NULL}', '{1,2}')
    lease_renew_many('{a,b}', '{1,NULL}')
    lease_renew_many(NULL, '{1}')
$$);

-- invalid calls
CALL outcomes($$
    lease_acquire(NULL)
    lease_acquire('')
    lease_acquire(repeat('x', 256))
    lease_acquire('a', '99 ms')
    lease_acquire('a', '-1 s')
    lease_acquire('a', '25 h')
    lease_acquire('a', '300000 years')
    lease_acquire('a', bind_session => NULL)
    lease_acquire('a', owner => repeat('x', 1001))
    lease_try_acquire_many('{a}', owner => repeat('ä', 501))
    lease_try_acquire('a', NULL)
    lease_try_acquire('a', '-1 s')
    lease_renew('a', NULL)
    lease_renew('a', 1, '1 ms')
    lease_release('a', NULL)
    lease_fence(NULL, 1)
    lease_fence('a', -9223372036854775808)
$$);

-- in a transaction block it works, with a warning that others do not see it yet
BEGIN;
SELECT slot, depth FROM lease_acquire('block');
ROLLBACK;
SELECT * FROM shown WHERE name = 'block';
BEGIN;
SAVEPOINT s;
SELECT slot FROM lease_try_acquire('block');
ROLLBACK TO s;
SELECT slot FROM lease_try_acquire('block');
COMMIT;
SELECT name, state FROM shown WHERE name = 'block';
-- a read-only transaction can call none of them
CALL outcomes($$
    SET LOCAL transaction_read_only = on; SELECT lease_acquire('read-only')
    SET LOCAL transaction_read_only = on; SELECT lease_try_acquire('read-only')
    SET LOCAL transaction_read_only = on; SELECT lease_fence('read-only', 1)
$$);

-- bound to the session: lasts as long as the session, beyond its ttl
SELECT slot, expires_at IS NULL AS endless, token AS t FROM lease_acquire('bound', '100 ms', bind_session => true) \gset b_
\echo :b_slot :b_endless
SELECT state, expires_at, bound FROM idgen.leases WHERE name = 'bound';
SELECT lease_renew('bound', :b_t) IS NULL AS endless;
SELECT name, expires_at FROM lease_renew_many('{bound}', ARRAY[:b_t]);
SELECT token AS t, expires_at IS NULL AS endless FROM lease_try_acquire('tried', bind_session => true) \gset tried_
\echo :tried_endless
SELECT lease_release('tried', :tried_t);
SELECT expires_at, depth FROM lease_acquire('bound', token => :b_t, bind_session => true);
SELECT pg_advisory_unlock_all();
SELECT state, bound FROM idgen.leases WHERE name = 'bound';
SELECT lease_renew('bound', :b_t, '1 min') < clock_timestamp() + '1 min' AS until;
SELECT state, bound FROM idgen.leases WHERE name = 'bound';
CALL outcomes(format($$lease_acquire('bound', token => %1$s, bind_session => true)$$, :b_t));
-- an end beyond the range of timestamps
SELECT token AS far FROM lease_acquire('far', '1 h') \gset
UPDATE idgen.lease SET ends_us = 9223372036854775807 WHERE name = 'far';
SELECT state, expires_at FROM idgen.leases WHERE name = 'far';
UPDATE idgen.lease SET ends_us = -9223372036854775808 WHERE name = 'far';
SELECT state, expires_at FROM idgen.leases WHERE name = 'far';
SELECT lease_release('far', :far);

-- the calls are counted
SELECT grants > 0 AS grants, take_overs, renewals > 0 AS renewals, releases > 0 AS releases, fences, refused > 0 AS refused,
       probes > 0 AS probes, wait_time > '0' AS waited FROM idgen.stat_lease;
SELECT idgen.reset_stats();
SELECT grants, take_overs, renewals, releases, fences, refused, probes, wait_time FROM idgen.stat_lease;
