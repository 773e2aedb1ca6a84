-- lease_guard: a table that can be written only under a lease.
CREATE TABLE guarded (id int PRIMARY KEY, n int);
CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON guarded FOR EACH ROW EXECUTE FUNCTION lease_guard('writer');
CREATE TRIGGER guard_all BEFORE TRUNCATE ON guarded FOR EACH STATEMENT EXECUTE FUNCTION lease_guard('writer');
SELECT token AS t FROM lease_acquire('writer') \gset
SELECT token AS other FROM lease_acquire('other') \gset

-- holding the lease is not enough, nor is a fence of another lease
CALL outcomes($$INSERT INTO guarded VALUES (1, 1)$$);
BEGIN;
SELECT lease_fence('other', :other);
INSERT INTO guarded VALUES (1, 1);
ROLLBACK;
CALL outcomes($$TRUNCATE guarded$$);
-- a statement without rows is no write
UPDATE guarded SET n = 2;
DELETE FROM guarded;

-- after a fence writes succeed
BEGIN;
SELECT lease_fence('writer', :t);
INSERT INTO guarded VALUES (1, 1), (2, 2), (3, 3);
UPDATE guarded SET n = n + 1 WHERE id > 1 RETURNING *;
DELETE FROM guarded WHERE id = 3 RETURNING *;
INSERT INTO guarded VALUES (1, 9) ON CONFLICT (id) DO UPDATE SET n = excluded.n;
COMMIT;
SELECT * FROM guarded ORDER BY id;
-- until the end of the transaction
CALL outcomes($$UPDATE guarded SET n = 0$$);
CALL outcomes($$DELETE FROM guarded$$);
BEGIN;
SELECT lease_fence('writer', :t);
TRUNCATE guarded;
COMMIT;
SELECT count(*) FROM guarded;

-- invalid triggers
CALL outcomes($$lease_guard()$$);
CREATE TABLE wrong (i int);
CREATE TRIGGER wrong BEFORE INSERT ON wrong FOR EACH ROW EXECUTE FUNCTION lease_guard();
CALL outcomes($$INSERT INTO wrong VALUES (1)$$);
DROP TRIGGER wrong ON wrong;
CREATE TRIGGER wrong AFTER INSERT ON wrong FOR EACH ROW EXECUTE FUNCTION lease_guard('writer');
INSERT INTO wrong VALUES (1);
DROP TRIGGER wrong ON wrong;
-- a statement trigger covers all events, and rejects a statement without rows too
CREATE TRIGGER right_too BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON wrong
    FOR EACH STATEMENT EXECUTE FUNCTION lease_guard('writer');
CALL outcomes($$DELETE FROM wrong$$);
BEGIN;
SELECT lease_fence('writer', :t);
INSERT INTO wrong VALUES (1);
COMMIT;
TABLE wrong;
DROP TABLE wrong, guarded;
SELECT lease_release('writer', :t), lease_release('other', :other);
