-- Pools of worker ids: definitions, their owners, and what a change does to holders.
CREATE ROLE idgen_definer;
CREATE ROLE idgen_fellow IN ROLE idgen_definer;
CREATE ROLE idgen_other;
-- the notice about a wait
SET client_min_messages = warning;
CREATE VIEW pools AS SELECT name, first, count, ttl, owner FROM idgen.worker_pool ORDER BY name;
GRANT SELECT ON pools TO PUBLIC;
CREATE VIEW ids AS SELECT pool, worker_id, state, owner, token IS NOT NULL AS token FROM idgen.workers ORDER BY pool, worker_id;
CREATE VIEW rows AS SELECT pool, count(*), min(worker_id), max(worker_id) FROM idgen.worker_id GROUP BY 1 ORDER BY 1;

CALL outcomes($$
    -- defining requires a grant
    idgen_definer: worker_pool_define('p')
    GRANT EXECUTE ON FUNCTION worker_pool_define TO idgen_definer, idgen_other
    idgen_definer: worker_pool_define('p')
    idgen_other: SELECT * FROM pools
    SELECT * FROM rows
    SELECT * FROM ids
    -- the same again, by each role that may act as the owner
    idgen_definer: worker_pool_define('p', 0, 1024, '30 s')
    idgen_fellow: worker_pool_define('p', ttl => '0.5 min')
    worker_pool_define('p')
    -- other values, or another role
    idgen_definer: worker_pool_define('p', 1)
    idgen_definer: worker_pool_define('p', count => 1023)
    worker_pool_define('p', ttl => '31 s')
    idgen_other: worker_pool_define('p')
    SELECT * FROM pools
    -- a name can contain anything
    idgen_definer: worker_pool_define('it''s "p"', count => 1)
    idgen_definer: worker_pool_define('it''s "p"', count => 2)
    idgen_definer: worker_pool_drop('it''s "p"')
$$);

-- invalid definitions
CALL outcomes($$
    worker_pool_define(NULL)
    worker_pool_define('x', NULL)
    worker_pool_define('x', count => NULL)
    worker_pool_define('x', ttl => NULL)
    worker_pool_define('')
    worker_pool_define('x', count => 0)
    worker_pool_define('x', count => 65537)
    worker_pool_define('x', count => -2147483648)
    worker_pool_define('x', -1)
    worker_pool_define('x', 64513)
    worker_pool_define('x', 2147483647, 65536)
    worker_pool_define('x', ttl => '99 ms')
    worker_pool_define('x', ttl => '25 h')
    worker_pool_define('x', ttl => '-1 s')
    SET LOCAL transaction_read_only = on; SELECT worker_pool_define('x')
    SELECT * FROM idgen.worker_id WHERE pool = 'x'
    -- the largest ones
    worker_pool_define('x', 65535, 1, '24 h')
    worker_pool_alter('x', 0, 65536)
    SELECT * FROM rows WHERE pool = 'x'
    worker_pool_drop('x')
    SELECT * FROM idgen.worker_id WHERE pool = 'x'
$$);

-- a change keeps what is omitted
CALL outcomes($$
    idgen_definer: worker_pool_alter('p', 100)
    SELECT * FROM pools
    idgen_fellow: worker_pool_alter('p', count => 4)
    SELECT * FROM pools
    worker_pool_alter('p', ttl => '1 h')
    worker_pool_alter('p', NULL, NULL, NULL)
    SELECT * FROM pools
    SELECT * FROM rows
    -- invalid changes
    worker_pool_alter(NULL)
    worker_pool_alter('p', force => NULL)
    worker_pool_alter('p', -1)
    worker_pool_alter('p', 65533)
    worker_pool_alter('p', count => 0)
    worker_pool_alter('p', count => 65536)
    worker_pool_alter('p', ttl => '1 ms')
    worker_pool_alter('unknown', 1)
    idgen_other: worker_pool_alter('p', 1)
    SET LOCAL transaction_read_only = on; SELECT worker_pool_alter('p', 1)
    -- invalid drops
    worker_pool_drop(NULL)
    worker_pool_drop('unknown')
    idgen_other: worker_pool_drop('p')
    SET LOCAL transaction_read_only = on; SELECT worker_pool_drop('p')
    SELECT * FROM pools
$$);

-- a change that excludes holders; the one of 103 has left
SELECT token AS t0, not_after AS end0 FROM worker_acquire('p', 'a') \gset
SELECT token AS t1, not_after AS end1 FROM worker_acquire('p', 'b') \gset
SELECT token AS t3, not_after AS end3 FROM worker_acquire('p', 'd', prefer => 103) \gset
SELECT worker_release('p', :t3);
RESET client_min_messages;
SELECT worker_pool_alter('p', count => 1);
\echo :SQLSTATE
SELECT worker_pool_alter('p', 101, 2);
SELECT worker_pool_alter('p', count => 1, force => true);
SELECT * FROM ids;
SELECT * FROM rows;
\set VERBOSITY sqlstate
SELECT worker_renew('p', :t1, :'end1'::timestamptz);
SELECT worker_acquire('p', 'e');
\set VERBOSITY default
SELECT not_after > :'end0' AS renewed FROM worker_renew('p', :t0, :'end0'::timestamptz);
CALL outcomes(format($$
    worker_confirm('p', %1$s)
    worker_release('p', %1$s)
    -- it is not excluded again
    worker_pool_alter('p', ttl => '2 h')
$$, :t1));
-- a larger pool continues after the earlier id times, also after those of the excluded holder
SET client_min_messages = warning;
SELECT worker_pool_alter('p', count => 4);
SELECT * FROM rows;
SELECT n, worker_id, not_before = :'end3' AS after_it
FROM generate_series(101, 103) AS n, worker_acquire('p', 'f', prefer => n);
\set VERBOSITY sqlstate
SELECT worker_acquire('p', 'f', prefer => 101);
\set VERBOSITY default

-- a new history ends all tokens
BEGIN;
SELECT worker_begin_history() > now() + interval '2 h' AS later;
CALL outcomes(format($$
    SELECT count(*), count(token) FROM idgen.workers WHERE state = 'held'
    SELECT ok FROM idgen.checks WHERE "check" = 'pool slots'
    worker_confirm('p', %s)
$$, :t0));
ROLLBACK;
SELECT worker_confirm('p', :t0) > now() AS confirmed;

-- a drop needs a pool without holders, and keeps the id times
CALL outcomes($$
    worker_pool_drop('p')
    SELECT count(worker_correct('p', worker_id, not_after, force => true)) FROM idgen.workers WHERE pool = 'p'
    worker_pool_drop('p')
    worker_pool_drop('p')
    SELECT string_agg(concat_ws(' ', worker_id, state), ', ') FROM ids
$$);
CREATE TEMP TABLE ends AS SELECT worker_id, not_after FROM idgen.workers WHERE pool = 'p';
SELECT worker_pool_define('p', 102, 3, '1 h');
SELECT * FROM rows;
SELECT worker_id, not_before = ends.not_after AS after_it
FROM generate_series(1, 3) AS n, worker_acquire('p', 'holder ' || n) LEFT JOIN ends USING (worker_id) ORDER BY 1;
DROP TABLE ends;
SELECT count(worker_correct('p', worker_id, now(), force => true)) FROM ids WHERE state = 'held';
SELECT worker_pool_drop('p');
-- an expired holder does not prevent it
SELECT worker_pool_define('expired', count => 1);
SELECT worker_id FROM worker_acquire('expired', ttl => '100 ms', reached => '2020-01-01');
SELECT * FROM ids WHERE pool = 'expired';
SELECT worker_pool_drop('expired');
-- one that has lost its token may still issue ids
SELECT worker_pool_define('lost', count => 1);
SELECT worker_id FROM worker_acquire('lost');
CALL outcomes($$
    worker_pool_alter('lost', 1, force => true)
    worker_correct('lost', 0, now())
    worker_pool_drop('lost')
    SELECT worker_correct('lost', 0, now(), force => true) > now() AS was_later
    worker_pool_drop('lost')
$$);
DELETE FROM idgen.worker_id WHERE pool IN ('p', 'expired', 'lost');

-- a lease of the same name is another thing
SELECT worker_pool_define('both', count => 2), lease_define('both', 1, '1 h');
SELECT token AS lease FROM lease_acquire('both') \gset
SELECT worker_id, token AS t, not_after AS "end" FROM worker_acquire('both') \gset
SELECT name, slot, state, slots FROM idgen.leases WHERE name = 'both';
SELECT * FROM ids;
\set VERBOSITY sqlstate
SELECT worker_renew('both', :lease, now());
SELECT worker_release('both', :lease);
SELECT lease_renew('both', :t);
\set VERBOSITY default
CALL outcomes($$
    lease_alter('both', ttl => '2 h')
    lease_revoke('both')
    lease_revoke('both', 1)
    lease_drop('both')
    SELECT name, count, ttl FROM pools
    SELECT * FROM ids
    lease_drop('both')
    lease_alter('both', 2)
    lease_revoke('both')
$$);
SELECT not_after >= :'end' AS renewed FROM worker_renew('both', :t, :'end'::timestamptz);
SELECT slot, token AS lease FROM lease_acquire('both') \gset
SELECT worker_release('both', :t), worker_pool_drop('both');
SELECT lease_release('both', :lease);
DELETE FROM idgen.worker_id WHERE pool = 'both';

-- REASSIGN OWNED and DROP OWNED include pools
CALL outcomes($$
    idgen_definer: worker_pool_define('hers'), worker_pool_define('hers too')
    idgen_other: worker_pool_define('others')
    REASSIGN OWNED BY idgen_other TO idgen_fellow
    SELECT string_agg(format('%s: %s', name, owner), ', ') FROM pools
    idgen_definer: worker_pool_alter('others', 1)
    idgen_fellow: worker_pool_alter('others', 1)
    REASSIGN OWNED BY idgen_fellow, idgen_definer TO idgen_other
    SELECT string_agg(format('%s: %s', name, owner), ', ') FROM pools
    idgen_other: worker_pool_alter('hers', 1)
    DROP OWNED BY idgen_definer
    SELECT count(*) FROM pools
$$);
SELECT token AS t FROM worker_acquire('hers too') \gset
CALL outcomes(format($$
    DROP OWNED BY idgen_other
    SELECT count(*) FROM pools
    worker_release('hers too', %s)
    DROP OWNED BY idgen_other
    SELECT count(*) FROM pools
    SELECT * FROM rows
$$, :t));
DELETE FROM idgen.worker_id;
-- a pool whose owner was dropped is a superuser's
CALL outcomes($$
    GRANT EXECUTE ON FUNCTION worker_pool_define TO idgen_other
    idgen_other: worker_pool_define('orphan', count => 1)
    REVOKE EXECUTE ON FUNCTION worker_pool_define FROM idgen_other
    DROP ROLE idgen_other
    idgen_definer: worker_pool_drop('orphan')
    worker_pool_drop('orphan')
$$);
DROP VIEW pools, ids, rows;
DROP OWNED BY idgen_definer;
DROP ROLE idgen_definer, idgen_fellow;

-- The row of a worker id is found by an index, even if the table was short when the session made its plans.
VACUUM FULL idgen.worker_id, idgen.worker_pool;
\c -
CREATE FUNCTION pg_temp.read_from_end_to_end() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT pg_stat_get_xact_numscans('idgen.worker_id'::regclass) $$;
SELECT worker_pool_define('plans', count => 1, ttl => '1 h');
SELECT token AS t, not_after AS "end", pg_temp.read_from_end_to_end() AS acquire FROM worker_acquire('plans', 'a') \gset
SELECT worker_pool_alter('plans', count => 8192);
SELECT not_after AS "end", pg_temp.read_from_end_to_end() AS renew FROM worker_renew('plans', :t, :'end'::timestamptz) \gset
SELECT pg_temp.read_from_end_to_end() AS release FROM worker_release('plans', :t, last_time => now()) \gset
SELECT token AS t, pg_temp.read_from_end_to_end() AS reacquire FROM worker_acquire('plans', 'a', prefer => 5) \gset
\echo :acquire :renew :release :reacquire
SELECT worker_release('plans', :t), worker_pool_drop('plans');
DELETE FROM idgen.worker_id;
