-- Creating, altering and dropping segments, and their table.
SET idgen.segment_timeout = '1min';
SELECT segment_create('a');
SELECT segment_create('b', 10, 20, 5, 50, '2 minutes', 3, 1, 1000);
SELECT segment_create('c', step => 2000000);
SELECT tag, max_id, step, min_step, max_step, target_duration, stride, residue, upper_bound, owner, drawers, version
FROM idgen.segment WHERE tag IN ('a', 'b', 'c') ORDER BY tag;

-- invalid definitions
CALL outcomes($$
    segment_create('a')
    segment_create(NULL)
    segment_create('')
    segment_create(repeat('x', 256))
    segment_create(repeat('ä', 128))
$$);
-- the longest tag; one byte more
SELECT segment_create(repeat('ä', 127) || 'x');
SELECT segment_next(repeat('ä', 127) || 'x');
CALL outcomes($$
    segment_create('d', start => -1)
    segment_create('d', start => NULL)
    segment_create('d', step => 0)
    segment_create('d', step => NULL)
    segment_create('d', step => 10, min_step => 11)
    segment_create('d', step => 10, min_step => 0)
    segment_create('d', step => 10, max_step => 9)
    segment_create('d', target_duration => '0')
    segment_create('d', target_duration => '1 month -31 days')
    segment_create('d', target_duration => '-178000000 years')
    segment_create('d', target_duration => NULL)
    segment_create('d', stride => 0)
    segment_create('d', stride => NULL)
    segment_create('d', residue => 1)
    segment_create('d', residue => NULL)
    segment_create('d', upper_bound => 0)
    segment_create('d', start => 100, upper_bound => 99)
    segment_create('d', upper_bound => NULL)
    segment_create('d', start => 'one')
$$);
SELECT count(*) FROM idgen.segment WHERE tag = 'd';
-- the trigger function serves this table only
CALL outcomes($$idgen.segment_row()$$);
CREATE TEMP TABLE another (tag text);
CREATE TRIGGER another BEFORE INSERT ON another FOR EACH ROW EXECUTE FUNCTION idgen.segment_row();
CALL outcomes($$INSERT INTO another VALUES ('d')$$);
DROP TABLE another;
-- the limits of valid definitions
SELECT segment_create('least', start => 0, step => 1, min_step => 1, max_step => 1, target_duration => '1 microsecond', upper_bound => 0);
SELECT segment_create('most', start => 1, step => 1000000000, target_duration => '178000000 years',
                      stride => 2147483647, residue => 2147483646);
SELECT tag, max_id, step, min_step, max_step, target_duration > '0' AS target_duration, stride, residue, upper_bound
FROM idgen.segment WHERE tag IN ('least', 'most') ORDER BY tag;
SELECT segment_next('least');
SELECT segment_next('least');
SELECT segment_next('most');
SELECT segment_alter('most', target_duration => '178000000 years');
SELECT segment_next('most');

-- altering keeps what is not given
SELECT segment_alter('b');
SELECT segment_alter('b', target_duration => '3 days', upper_bound => 2000);
SELECT max_id, step, min_step, max_step, target_duration, stride, residue, upper_bound FROM idgen.segment WHERE tag = 'b';
-- the step follows its limits
SELECT segment_alter('b', min_step => 30);
SELECT segment_alter('b', max_step => 30);
SELECT step, min_step, max_step FROM idgen.segment WHERE tag = 'b';
-- forward only
SELECT segment_next('b');
SELECT segment_alter('b', max_id => 500);
SELECT segment_next('b'), segment_next('b');
SELECT segment_alter('b', stride => 10, residue => 9);
SELECT segment_next('b') % 10 AS nine;
-- invalid changes
SELECT segment_alter('a', max_id => -1);
\echo :SQLSTATE
SELECT segment_alter('b', max_id => 499);
\set VERBOSITY sqlstate
SELECT segment_alter('b', max_id => 499);
SELECT segment_alter('b', max_id => 2000, upper_bound => 1999);
SELECT segment_alter('b', upper_bound => 500);
SELECT segment_alter('b', step => 29);
\set VERBOSITY default
CALL outcomes($$
    segment_alter('a', step => 0)
    segment_alter('a', min_step => 0)
    segment_alter('a', max_step => 999)
    segment_alter('a', target_duration => '0')
    segment_alter('a', stride => 0)
    segment_alter('b', stride => 9)
    segment_alter('a', owner => 'nobody_of_this_name')
    segment_alter(NULL)
    segment_alter('nowhere')
$$);
-- an exhausted segment can still be altered, its bound included
SELECT segment_alter('least', max_step => 5);
SELECT segment_alter('least', upper_bound => 1);
SELECT segment_next('least');

-- dropping; a recreated segment starts over
SELECT segment_next('a'), segment_next('a');
SELECT creation AS before FROM idgen.segment WHERE tag = 'a' \gset
SELECT segment_drop('a');
CALL outcomes($$
    segment_next('a')
    segment_drop('a')
    segment_drop(NULL)
$$);
SELECT segment_create('a');
SELECT segment_next('a'), (SELECT creation <> :before FROM idgen.segment WHERE tag = 'a') AS another;

-- the table rejects invalid rows from every writer: see its constraints in 00_install
CALL outcomes($$
    INSERT INTO idgen.segment (tag, owner) VALUES (repeat('x', 256), 'postgres')
    INSERT INTO idgen.segment (tag, owner) VALUES ('a', 'postgres')
    INSERT INTO idgen.segment (tag) VALUES ('d')
    INSERT INTO idgen.segment (tag, owner, residue) VALUES ('d', 'postgres', 1)
    UPDATE idgen.segment SET stride = 0 WHERE tag = 'a'
    UPDATE idgen.segment SET tag = 'b' WHERE tag = 'a'
$$);

-- an inserted row: the trigger overrides its own columns
INSERT INTO idgen.segment (tag, owner, creation, version, created_in, changed_in)
SELECT 'hand', 'postgres', creation, -1, -1, -1 FROM idgen.segment WHERE tag = 'a';
SELECT count(DISTINCT creation), min(version), bool_and(created_in > 0 AND changed_in > 0) AS transactions
FROM idgen.segment WHERE tag IN ('a', 'hand');
SELECT segment_next('hand');
SELECT creation AS before FROM idgen.segment WHERE tag = 'hand' \gset
-- forward, and back
UPDATE idgen.segment SET max_id = 5000, creation = 0, version = 0, created_in = 0, changed_in = 0 WHERE tag = 'hand';
SELECT creation = :before AS creation, version, created_in > 0 AND changed_in > created_in AS transactions
FROM idgen.segment WHERE tag = 'hand';
SELECT segment_next('hand');
UPDATE idgen.segment SET max_id = 4999 WHERE tag = 'hand';
\echo :SQLSTATE
UPDATE idgen.segment SET max_id = -1 WHERE tag = 'c';
SELECT segment_next('hand');
-- columns that do not affect values do not count as a change
UPDATE idgen.segment SET drawers = '{postgres}', max_step = 2000000 WHERE tag = 'hand';
SELECT version FROM idgen.segment WHERE tag = 'hand';
SELECT segment_next('hand');
-- a renamed tag keeps its values
UPDATE idgen.segment SET tag = 'foot' WHERE tag = 'hand';
SELECT segment_next('hand');
SELECT segment_next('foot');
-- dropped
DELETE FROM idgen.segment WHERE tag = 'foot';
SELECT segment_next('foot');
-- the trigger also fires for rows of a restore and of a subscription
SET session_replication_role = replica;
INSERT INTO idgen.segment (tag, owner, creation, version, created_in, changed_in) VALUES ('replica', 'postgres', 1, 0, 0, 0);
UPDATE idgen.segment SET max_id = 10 WHERE tag = 'replica';
RESET session_replication_role;
SELECT creation <> 1 AS creation, version, created_in > 0 AS created_in FROM idgen.segment WHERE tag = 'replica';
SELECT segment_next('replica');
-- a dump and restore: all columns, into an empty table
BEGIN;
CREATE TEMP TABLE dumped AS TABLE idgen.segment;
DELETE FROM idgen.segment;
INSERT INTO idgen.segment TABLE dumped;
SELECT count(*) = (SELECT count(*) FROM dumped) AS rows, count(*) FILTER (WHERE creation IN (SELECT creation FROM dumped)) AS old
FROM idgen.segment;
ROLLBACK;
RESET idgen.segment_timeout;
