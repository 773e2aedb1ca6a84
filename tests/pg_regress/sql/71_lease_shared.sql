-- Shared terms of leases in one session: results and errors of the functions, idgen.leases, and the guard.
CREATE TEMP VIEW shown AS
SELECT name, slot >= 65536 AS above_slots, mode, state, depth, owner, data, bound FROM idgen.leases
WHERE name LIKE 'shared%' ORDER BY name, acquired_at;

-- two readers, each with a token and a number of its own, and no writer
SELECT slot AS s1, token AS t1, depth AS d1 FROM lease_acquire('shared', owner => 'one', data => '1', shared => true) \gset
SELECT slot AS s2, token AS t2, depth AS d2 FROM lease_try_acquire('shared', owner => 'two', bind_session => true, shared => true) \gset
SELECT :s1 >= 65536 AND :s2 >= 65536 AND :s1 <> :s2 AS numbers, :t1 < :t2 AS tokens, :d1, :d2;
SELECT * FROM shown;
SELECT * FROM lease_try_acquire('shared');
SELECT * FROM lease_try_acquire('shared', shared => false);

-- acquired again with its token, which has a mode
SELECT slot = :s1 AS same, depth FROM lease_acquire('shared', token => :t1, shared => true);
SELECT lease_release('shared', :t1);
CALL outcomes(format($$lease_acquire('shared', token => %s)$$, :t1));
CALL outcomes(format($$lease_try_acquire('shared', token => %s, shared => false)$$, :t2));
SELECT depth FROM shown;
SELECT lease_renew('shared', :t1) > now() AS until, lease_renew('shared', :t2) IS NULL AS endless;
SELECT count(*) FROM lease_renew_many('{shared,shared}', ARRAY[:t1, :t2]);

-- released, and revoked by its number
SELECT lease_release('shared', :t1);
\set VERBOSITY sqlstate
SELECT lease_release('shared', :t1);
\set VERBOSITY default
SELECT lease_revoke('shared'), lease_revoke('shared', :s1), lease_revoke('shared', :s2), lease_revoke('shared', :s2);
SELECT name, mode, state, depth FROM shown;
SELECT slot, token AS t FROM lease_try_acquire('shared') \gset w_
\echo :w_slot
SELECT * FROM lease_try_acquire('shared', shared => true);
CALL outcomes(format($$lease_acquire('shared', token => %s, shared => true)$$, :w_t));
SELECT name, mode, state FROM shown;
SELECT lease_release('shared', :w_t);
SELECT * FROM shown;

-- only a lease with one slot can be shared
SELECT lease_define('shared several', 2);
CALL outcomes($$lease_acquire('shared several', shared => true)$$);
CALL outcomes($$lease_try_acquire('shared several', shared => true)$$);
SELECT slot FROM lease_try_acquire('shared several', shared => false);
SELECT lease_define('shared one');
SELECT token AS t FROM lease_try_acquire('shared one', shared => true) \gset one_
SELECT name, above_slots, mode, state FROM shown;
\set VERBOSITY sqlstate
SELECT lease_drop('shared one');
\set VERBOSITY default
SELECT lease_release('shared one', :one_t);
SELECT slot FROM lease_try_acquire('shared one');
CALL outcomes($$lease_acquire('shared', shared => NULL)$$);
CALL outcomes($$lease_try_acquire('shared', shared => NULL)$$);

-- the guard: 'shared' accepts a fence of either mode
CREATE TABLE strict (n int);
CREATE TABLE lenient (n int);
CREATE TRIGGER guard BEFORE INSERT ON strict FOR EACH ROW EXECUTE FUNCTION lease_guard('shared');
CREATE TRIGGER guard BEFORE INSERT ON lenient FOR EACH ROW EXECUTE FUNCTION lease_guard('shared', 'shared');
SELECT token AS t FROM lease_acquire('shared', shared => true) \gset r_
INSERT INTO lenient VALUES (1);
\echo :SQLSTATE
BEGIN;
SELECT lease_fence('shared', :r_t);
INSERT INTO lenient VALUES (1);
SAVEPOINT s;
INSERT INTO strict VALUES (1);
\echo :SQLSTATE
ROLLBACK TO s;
SELECT lease_release('shared', :r_t);
INSERT INTO lenient VALUES (2);
\echo :SQLSTATE
ROLLBACK;
SELECT lease_release('shared', :r_t);
SELECT token AS t FROM lease_acquire('shared') \gset w_
BEGIN;
SELECT lease_fence('shared', :w_t);
INSERT INTO lenient VALUES (3);
INSERT INTO strict VALUES (3);
COMMIT;
SELECT lease_release('shared', :w_t);
TABLE lenient;
TABLE strict;
CREATE TABLE wrong (n int);
CREATE TRIGGER guard BEFORE INSERT ON wrong FOR EACH ROW EXECUTE FUNCTION lease_guard('shared', 'exclusive');
CALL outcomes($$INSERT INTO wrong VALUES (1)$$);
CREATE OR REPLACE TRIGGER guard BEFORE INSERT ON wrong FOR EACH ROW EXECUTE FUNCTION lease_guard('shared', 'shared', 'shared');
CALL outcomes($$INSERT INTO wrong VALUES (1)$$);
-- two terms of one transaction: released or rolled back, each for itself
SELECT token AS a FROM lease_acquire('shared', shared => true) \gset
SELECT token AS b FROM lease_acquire('shared', shared => true) \gset
BEGIN;
SELECT lease_fence('shared', :a);
SELECT lease_fence('shared', :b);
SELECT lease_release('shared', :a);
INSERT INTO lenient VALUES (4);
ROLLBACK;

-- a token is of a role, in both modes
CREATE ROLE regress_idgen_reader;
SET ROLE regress_idgen_reader;
SELECT token AS t FROM lease_acquire('shared', shared => true) \gset c_
SELECT name, mode, token IS NULL AS hidden, count(*) FROM idgen.leases WHERE name = 'shared' GROUP BY 1, 2, 3 ORDER BY 3;
CALL outcomes(format($$lease_renew('shared', %s)$$, :a));
CALL outcomes($$lease_revoke('shared', 65536)$$);
SELECT lease_release('shared', :c_t);
RESET ROLE;
CREATE TRIGGER wrong AFTER UPDATE ON lenient EXECUTE FUNCTION idgen.lease_definition_changed();
CALL outcomes($$UPDATE lenient SET n = 0 WHERE false$$);
DROP TRIGGER wrong ON lenient;
BEGIN;
SELECT lease_fence('shared', :a);
INSERT INTO lenient VALUES (6);
COMMIT;
SELECT lease_release('shared', token) FROM idgen.leases WHERE name = 'shared';
DROP TABLE strict, lenient, wrong;
DROP ROLE regress_idgen_reader;
SELECT lease_revoke('shared several', 0), lease_revoke('shared one'), lease_drop('shared several'), lease_drop('shared one');
SELECT * FROM shown;
