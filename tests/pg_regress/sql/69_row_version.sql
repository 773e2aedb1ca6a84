-- Optimistic locking: an UPDATE with an old row version fails.
CREATE TABLE doc (id int PRIMARY KEY, body text, version int NOT NULL DEFAULT 1);
CREATE TRIGGER version BEFORE UPDATE ON doc FOR EACH ROW EXECUTE FUNCTION row_version('version');
INSERT INTO doc VALUES (1, 'draft'), (2, 'other');
UPDATE doc SET body = 'second', version = 1 WHERE id = 1 RETURNING *;
-- with version 1, which is no longer current
CALL outcomes($$UPDATE doc SET body = 'late', version = 1 WHERE id = 1$$);
CALL outcomes($$UPDATE doc SET body = 'from the future', version = 3 WHERE id = 1$$);
-- without the version: updates the current row and counts
UPDATE doc SET body = body || '!' RETURNING *;
CALL outcomes($$UPDATE doc SET version = NULL WHERE id = 1$$);
SELECT * FROM doc ORDER BY id;
-- all or nothing
UPDATE doc SET body = 'both', version = 2;
SELECT * FROM doc ORDER BY id;

-- INSERT ... ON CONFLICT
INSERT INTO doc VALUES (1, 'upsert', 3) ON CONFLICT (id) DO UPDATE SET body = excluded.body, version = excluded.version RETURNING *;
CALL outcomes($$INSERT INTO doc VALUES (1, 'upsert', 3) ON CONFLICT (id) DO UPDATE SET body = excluded.body, version = excluded.version$$);
INSERT INTO doc VALUES (1, 'as it is', 3) ON CONFLICT (id) DO UPDATE SET body = excluded.body RETURNING *;
INSERT INTO doc VALUES (1, 'no', 3) ON CONFLICT DO NOTHING;
CALL outcomes($$MERGE INTO doc USING (VALUES (1, 4)) AS new (id, version) ON doc.id = new.id WHEN MATCHED THEN UPDATE SET version = new.version$$);

-- bigint; NULL becomes 1
CREATE TABLE big ("Row Version" bigint, a int, dropped int, b text);
ALTER TABLE big DROP COLUMN dropped;
CREATE TRIGGER version BEFORE UPDATE ON big FOR EACH ROW EXECUTE FUNCTION row_version('Row Version');
INSERT INTO big VALUES (NULL, 1, 'x'), (9007199254740993, 2, 'y');
UPDATE big SET b = b || b RETURNING *;
UPDATE big SET "Row Version" = 7 WHERE a = 1;
UPDATE big SET "Row Version" = 9007199254740993 WHERE a = 2;
UPDATE big SET "Row Version" = NULL WHERE a = 1;
-- the largest version
ALTER TABLE big DISABLE TRIGGER version;
UPDATE big SET "Row Version" = 9223372036854775807;
ALTER TABLE big ENABLE TRIGGER version;
CALL outcomes($$UPDATE big SET b = ''$$);
INSERT INTO doc VALUES (3, '', 2147483647);
CALL outcomes($$UPDATE doc SET body = '' WHERE id = 3$$);

-- a generated column, and a later trigger, which sees the new version
CREATE TABLE more (version int, twice int GENERATED ALWAYS AS (version * 2) STORED);
CREATE TRIGGER version BEFORE UPDATE ON more FOR EACH ROW EXECUTE FUNCTION row_version('version');
INSERT INTO more VALUES (1);
UPDATE more SET version = 1 RETURNING *;

-- a row keeps its version when it moves to another partition
CREATE TABLE parted (id int, n int, version int) PARTITION BY LIST (n);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES IN (0);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
CREATE TRIGGER version BEFORE UPDATE ON parted FOR EACH ROW EXECUTE FUNCTION row_version('version');
INSERT INTO parted VALUES (1, 0, 7);
UPDATE parted SET n = 1, version = 7;
CALL outcomes($$UPDATE parted SET n = 0, version = 7$$);
SELECT tableoid::regclass, * FROM parted;

-- unsupported uses
CALL outcomes($$row_version()$$);
CREATE TABLE bad (version int, small smallint, word text);
INSERT INTO bad VALUES (1, 1, '1');
CREATE TRIGGER t BEFORE UPDATE ON bad FOR EACH ROW EXECUTE FUNCTION row_version();
CALL outcomes($$UPDATE bad SET version = 1$$);
CREATE OR REPLACE TRIGGER t BEFORE UPDATE ON bad FOR EACH ROW EXECUTE FUNCTION row_version('version', 'small');
UPDATE bad SET version = 1;
CREATE OR REPLACE TRIGGER t BEFORE UPDATE ON bad FOR EACH ROW EXECUTE FUNCTION row_version('nowhere');
UPDATE bad SET version = 1;
CREATE OR REPLACE TRIGGER t BEFORE UPDATE ON bad FOR EACH ROW EXECUTE FUNCTION row_version('small');
UPDATE bad SET version = 1;
CREATE OR REPLACE TRIGGER t BEFORE UPDATE ON bad FOR EACH ROW EXECUTE FUNCTION row_version('word');
UPDATE bad SET version = 1;
CREATE OR REPLACE TRIGGER t AFTER UPDATE ON bad FOR EACH ROW EXECUTE FUNCTION row_version('version');
CALL outcomes($$UPDATE bad SET version = 1$$);
CREATE OR REPLACE TRIGGER t BEFORE INSERT ON bad FOR EACH ROW EXECUTE FUNCTION row_version('version');
INSERT INTO bad VALUES (1);
CREATE OR REPLACE TRIGGER t BEFORE DELETE ON bad FOR EACH ROW EXECUTE FUNCTION row_version('version');
DELETE FROM bad;
CREATE OR REPLACE TRIGGER t BEFORE UPDATE ON bad FOR EACH STATEMENT EXECUTE FUNCTION row_version('version');
CALL outcomes($$UPDATE bad SET version = 1$$);
SELECT * FROM bad;
DROP TABLE doc, big, more, parted, bad;
