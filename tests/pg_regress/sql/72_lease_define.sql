-- Defined leases: semaphores, roles, and revocation.
CREATE ROLE idgen_definer;
CREATE ROLE idgen_holder;
CREATE ROLE idgen_fellow;
CREATE TEMP VIEW slots AS
SELECT name, slot, state, depth, owner, slots FROM idgen.leases ORDER BY name, slot;
GRANT SELECT ON slots TO PUBLIC;

-- defining requires a grant
SET ROLE idgen_definer;
CALL outcomes($$lease_define('pool', 3)$$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION lease_define TO idgen_definer;
SET ROLE idgen_definer;
SELECT lease_define('pool', 2, '1 h');
TABLE idgen.lease_definition;

-- as many holders as slots; never used slots come first, then the one free for longest
SELECT slot, token AS t0 FROM lease_acquire('pool') \gset
SELECT slot, token AS t1 FROM lease_acquire('pool', owner => 'second') \gset
SELECT * FROM lease_try_acquire('pool');
SELECT * FROM slots;
SELECT lease_release('pool', :t1), lease_release('pool', :t0);
SELECT * FROM slots;
SELECT slot, token AS t2 FROM lease_acquire('pool') \gset
\echo :slot
SELECT lease_define('pool', 3, '1 h');
SELECT slot, token AS t3 FROM lease_acquire('pool') \gset
\echo :slot
SELECT slot, token AS t4 FROM lease_acquire('pool') \gset
\echo :slot
-- fewer slots: holders keep theirs, and no one gets a slot before there is room
CALL outcomes($$lease_define('pool', 1, '1 h')$$);
SELECT lease_define('pool', 1, '1 h', force => true);
SELECT * FROM slots;
SELECT lease_release('pool', :t4), lease_release('pool', :t2);
SELECT slot FROM lease_try_acquire('pool');
SELECT lease_release('pool', :t3);
SELECT slot, token AS t5 FROM lease_try_acquire('pool') \gset
\echo :slot

-- changed settings: omitted arguments keep their values
SELECT lease_define('servers', 900, '5 min', '7 s', notify => true);
CREATE TEMP VIEW definition AS
SELECT slots, ttl, lock_delay, notify FROM idgen.lease_definition WHERE name = 'servers';
SELECT lease_alter('servers');
TABLE definition;
SELECT lease_alter('servers', ttl => '2 min');
TABLE definition;
SELECT lease_alter('servers', notify => false), lease_alter('servers', lock_delay => '0');
TABLE definition;
-- what would exclude a holder is refused, or forced and told
SELECT slot, token AS t6 FROM lease_acquire('servers') \gset
SELECT slot, token AS t7 FROM lease_acquire('servers') \gset
\echo :slot
SELECT lease_alter('servers', slots => 1);
\echo :SQLSTATE
SELECT lease_define('servers', ttl => '2 min');
SELECT lease_alter('servers', slots => 2), lease_alter('servers', slots => 50);
TABLE definition;
SELECT lease_alter('servers', slots => 1, force => true);
-- a holder that is outside already is not excluded by another change
SELECT lease_alter('servers', ttl => '3 min'), lease_define('servers', 1, '2 min');
SELECT lease_release('servers', :t6), lease_release('servers', :t7);
-- without holders, every number of slots is accepted
SELECT lease_alter('servers', slots => 65536), lease_alter('servers', slots => 10);
TABLE definition;
CALL outcomes($$
    lease_alter('servers', slots => 65537)
    lease_alter('servers', slots => 0)
    lease_alter('servers', ttl => '1 ms')
    lease_alter('servers', lock_delay => '-1 s')
    lease_alter('servers', force => NULL)
    lease_alter(NULL)
    lease_alter('unknown', 2)
$$);
-- shared terms are outside of every definition
SELECT token AS s FROM lease_acquire('read', shared => true) \gset
SELECT lease_define('read'), lease_alter('read', ttl => '1 h');
SELECT lease_release('read', :s), lease_drop('read'), lease_drop('servers');
DROP VIEW definition;

-- invalid definitions
CALL outcomes($$
    lease_define('x', 0)
    lease_define('x', 65537)
    lease_define('x', NULL)
    lease_define(NULL)
    lease_define('', 1)
    lease_define('x', 1, '1 ms')
    lease_define('x', 1, NULL)
    lease_define('x', 1, '1 s', '-1 s')
    lease_define('x', 1, '1 s', '25 h')
    lease_define('x', 1, '1 s', NULL)
    lease_define('x', notify => NULL)
$$);

-- watched by NOTIFY only if the last definition says so
SELECT lease_define('watched'), lease_define('watched', notify => true);
SELECT slots, notify FROM idgen.lease_definition WHERE name = 'watched';
SELECT lease_define('watched', 2);
SELECT slots, notify FROM idgen.lease_definition WHERE name = 'watched';
SELECT lease_drop('watched');

-- it belongs to its definer: another role can hold it, and nothing else
RESET ROLE;
CALL outcomes(format($$
    GRANT EXECUTE ON FUNCTION lease_define TO idgen_holder
    idgen_holder: lease_define('pool', 9)
    idgen_holder: lease_alter('pool', 9)
    idgen_holder: lease_drop('pool')
    idgen_holder: lease_revoke('pool', 0)
    -- not even with the right token, which it cannot see
    idgen_holder: lease_renew('pool', %1$s)
    idgen_holder: lease_release('pool', %1$s)
    idgen_holder: lease_fence('pool', %1$s)
    idgen_holder: lease_acquire('pool', token => %1$s)
    idgen_holder: SELECT * FROM lease_renew_many('{pool}', ARRAY[%1$s])
    idgen_holder: SELECT name, slot, state, token, role FROM idgen.leases ORDER BY name, slot
$$, :t5));
-- nor can it see the token of a session-bound lease by its lock
SELECT token AS bound FROM lease_acquire('bound to a session', bind_session => true) \gset
SET ROLE idgen_holder;
SELECT count(*) AS locks,
       count(*) FILTER (WHERE (classid::bigint << 32 | objid::bigint) = :bound) AS told
FROM pg_locks WHERE objsubid = 27763 AND pid = pg_backend_pid();
RESET ROLE;
CALL outcomes(format($$lease_release('bound to a session', %1$s)$$, :bound));
-- only a superuser may revoke and drop undefined names
SET ROLE idgen_holder;
SELECT token AS mine FROM lease_acquire('plain') \gset
RESET ROLE;
CALL outcomes(format($$
    idgen_holder: lease_revoke('plain')
    idgen_holder: lease_drop('plain')
    -- a member of the holder's role acts as the holder
    GRANT idgen_holder TO idgen_fellow
    idgen_fellow: SELECT lease_renew('plain', %1$s) > now() AS renewed
    idgen_fellow: SELECT token = %1$s AS token FROM idgen.leases WHERE name = 'plain'
$$, :mine));
SET ROLE idgen_fellow;
BEGIN;
SELECT lease_fence('plain', :mine);
COMMIT;
RESET ROLE;
CALL outcomes(format($$
    idgen_fellow: lease_release('plain', %1$s)
    -- no ordinary role may touch the tables
    idgen_fellow: SELECT * FROM idgen.lease
    idgen_fellow: UPDATE idgen.lease SET token = 1
    idgen_fellow: DELETE FROM idgen.lease_definition
    idgen_fellow: nextval('idgen.lease_token')
    idgen_fellow: setval('idgen.lease_token', 1)
$$, :mine));

-- a name that another role holds cannot be defined, because the definer could revoke and drop it
SET ROLE idgen_holder;
SELECT token AS mine FROM lease_acquire('relied on') \gset
SET ROLE idgen_definer;
CALL outcomes($$lease_define('relied on', 1, '1 h')$$);
CALL outcomes($$lease_drop('relied on')$$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION lease_define TO idgen_fellow;
SET ROLE idgen_fellow;
BEGIN;
SELECT lease_define('relied on', 1, '1 h');
ROLLBACK;
RESET ROLE;
BEGIN;
SELECT lease_define('relied on', 1, '1 h');
ROLLBACK;
SET ROLE idgen_holder;
SELECT lease_release('relied on', :mine);
-- an expired one can be defined
SELECT token AS mine FROM lease_acquire('relied on', '100 ms') \gset
RESET ROLE;
DO $$ BEGIN
    WHILE EXISTS (SELECT FROM idgen.leases WHERE name = 'relied on' AND state = 'held') LOOP
        PERFORM pg_sleep(0.01);
    END LOOP;
END $$;
SET ROLE idgen_definer;
SELECT lease_define('relied on', 1, '1 h');
SELECT lease_drop('relied on');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION lease_define FROM idgen_fellow;

-- revoked: the token is stale, and the slot is resting
SELECT lease_define('resting', 1, '1 h', '1 h');
SELECT token AS t FROM lease_acquire('resting', owner => 'app') \gset
SELECT lease_revoke('resting');
SELECT lease_revoke('resting');
SELECT lease_revoke('resting', 7);
SELECT lease_revoke('resting', NULL);
SELECT * FROM slots WHERE name = 'resting';
SELECT * FROM lease_try_acquire('resting');
\set VERBOSITY sqlstate
SELECT lease_renew('resting', :t);
\set VERBOSITY default
SELECT lease_define('resting', 1, '1 h');
SELECT slot, token > :t AS greater, token AS u FROM lease_try_acquire('resting', owner => 'app') \gset
\echo :slot :greater
SELECT set_config('test.token', :'t', false) IS NOT NULL AS kept;
-- the old token under the same owner does not affect the new term
DO $$
DECLARE
    stale bigint := current_setting('test.token');
    detail text;
BEGIN
    PERFORM lease_release('resting', stale);
EXCEPTION WHEN object_not_in_prerequisite_state THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
    RAISE NOTICE '%', regexp_replace(detail, '\d{4}-.*', '<time>');
END $$;
SELECT owner, depth, token = :u AS same FROM idgen.leases WHERE name = 'resting';

-- a drop needs a free lease and leaves nothing
CALL outcomes($$lease_drop('resting')$$);
SELECT lease_release('resting', :u);
SELECT lease_drop('resting');
CALL outcomes($$lease_drop('resting')$$);
SELECT * FROM slots WHERE name = 'resting';
BEGIN;
SELECT lease_drop('pool');
ROLLBACK;
SELECT lease_revoke('pool');
BEGIN;
SELECT lease_drop('pool');
ROLLBACK;
SELECT count(*) FROM idgen.lease_definition;
SELECT lease_drop('pool');
SELECT count(*) FROM idgen.lease_definition;
-- if the holder's role is dropped, only superusers may act for it
SET ROLE idgen_holder;
SELECT token AS t FROM lease_acquire('orphan') \gset
RESET ROLE;
REVOKE EXECUTE ON FUNCTION lease_define FROM idgen_definer, idgen_holder;
REVOKE SELECT ON slots FROM PUBLIC;
DROP ROLE idgen_definer, idgen_holder, idgen_fellow;
SELECT name, state FROM idgen.leases WHERE name = 'orphan';
SELECT lease_release('orphan', :t);
