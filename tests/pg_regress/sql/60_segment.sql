-- Drawing from segments. No timing here: on a loaded machine a refill can be slow.
SET idgen.segment_timeout = '1min';
SELECT segment_create('t');
SELECT segment_next('t'), segment_next('t'), segment_next('t');

-- as a column default: one statement, many statements, and COPY
CREATE TABLE ticket (n serial, id bigint PRIMARY KEY DEFAULT segment_next('t'), note text);
INSERT INTO ticket (note) VALUES ('a'), ('b') RETURNING n, id;
INSERT INTO ticket (note) SELECT 'selected' FROM generate_series(1, 10000);
COPY ticket (note) FROM stdin;
copied
copied too
\.
-- exactly 4 to 10,007, in order: ten times the step in one statement, without repeats or gaps
SELECT count(*), min(id), max(id), count(*) FILTER (WHERE id <= before) AS not_rising
FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM ticket) d;

-- sets
SELECT * FROM segment_next_many('t', 3);
SELECT id, n FROM segment_next_many('t', 2) WITH ORDINALITY AS m (id, n);
SELECT segment_next_many('t', 2) AS id, 'beside' AS what;
-- a set in the select list is streamed; LIMIT discards values that were already drawn
SELECT segment_next_many('t', 5) LIMIT 2;
SELECT segment_next('t') > 10016 AS goes_on;
SELECT count(*) FROM segment_next_many('t', 0);
SELECT count(*) FROM (SELECT segment_next_many('t', 2000000000) LIMIT 5) streamed;
-- of a set that is read in part, no more values are drawn and left than were read, and no more than a step
SELECT segment_create('part', upper_bound => 2147483647);
SELECT segment_next_many('part', 2147483647) LIMIT 1;
SELECT count(*) FROM (SELECT segment_next_many('part', 2147483647) LIMIT 100) streamed;
SELECT segment_next('part') AS after_1_and_127;
BEGIN;
SELECT segment_create('here', upper_bound => 2147483647);
SELECT segment_next_many('here', 2147483647) LIMIT 1;
SELECT segment_next('here');
COMMIT;
SELECT segment_create('bounded', step => 10, max_step => 10);
SELECT count(*) FROM (SELECT segment_next_many('bounded', 2147483647) LIMIT 100) streamed;
SELECT segment_next('bounded') BETWEEN 101 AND 110 AS bounded;
SELECT n, count(id) FROM generate_series(0, 3) n LEFT JOIN LATERAL segment_next_many('t', n) id ON true GROUP BY n ORDER BY n;
SELECT 1 + segment_next_many('t', 2) IS NOT NULL AS in_an_expression;
SELECT 1 WHERE segment_next_many('t', 2) > 0;

-- contiguous blocks
SELECT segment_create('block', step => 10);
SELECT * FROM segment_reserve('block', 3);
SELECT * FROM segment_reserve('block', 100);
SELECT segment_next('block');
SELECT (segment_reserve('block', 1)).first_id;

-- the tag can change from row to row
SELECT segment_create('u', start => 100);
SELECT tag, segment_next(tag) > 0 AS drawn FROM unnest(ARRAY['t', 'u', 't', 'u']) tag;
SELECT segment_next('u');

-- several servers: values are residue modulo stride
SELECT segment_create('even', stride => 2, residue => 0), segment_create('odd', stride => 2, residue => 1);
SELECT a.id AS even, b.id AS odd FROM segment_next_many('even', 4) WITH ORDINALITY AS a (id, n)
JOIN segment_next_many('odd', 4) WITH ORDINALITY AS b (id, n) USING (n);
SELECT * FROM segment_reserve('even', 3);
SELECT segment_create('from', start => 0, stride => 10, residue => 7);
SELECT segment_next('from'), segment_next('from');

-- an int column, and an upper bound that fails before the column overflows
SELECT segment_create('small', start => 2147483646, upper_bound => 2147483647);
CREATE TABLE small (id int PRIMARY KEY DEFAULT segment_next('small'), note text);
INSERT INTO small (note) VALUES ('one') RETURNING id;
INSERT INTO small (note) VALUES ('the last') RETURNING id;
INSERT INTO small (note) VALUES ('one too many');
\echo :SQLSTATE
SELECT * FROM segment_next_many('small', 2);
SELECT segment_reserve('small', 1);
-- a block that does not fit uses no value
SELECT segment_create('ten', upper_bound => 10);
CALL outcomes($$segment_reserve('ten', 11)$$);
SELECT count(*), max(id) FROM segment_next_many('ten', 10) id;
SELECT segment_next('ten');
-- a raised bound takes effect at once
SELECT segment_alter('ten', upper_bound => 12);
SELECT segment_next('ten'), segment_next('ten');
-- up to the largest bigint
SELECT segment_create('last', start => 9223372036854775806);
SELECT * FROM segment_next_many('last', 2);
SELECT segment_next('last');
SELECT segment_create('zero', start => 0);
SELECT segment_next('zero'), segment_next('zero');

-- invalid arguments
CALL outcomes($$
    segment_next(NULL)
    segment_next('nowhere')
    segment_next('it''s')
    segment_next('')
    segment_next(repeat('x', 256))
    segment_alter('', step => 10)
    segment_drop('')
    segment_next_many(NULL, 1)
    segment_next_many('zero', NULL)
    segment_next_many('zero', -1)
    segment_next_many('nowhere', 0)
    segment_reserve(NULL, 1)
    segment_reserve('zero', NULL)
    segment_reserve('zero', 0)
    segment_reserve('zero', -1)
    segment_reserve('zero', 1000000001)
    segment_reserve('nowhere', 1)
$$);
-- none of these used a value
SELECT segment_next('zero');

-- a rollback returns no values; a read-only transaction can draw
BEGIN READ ONLY;
SELECT segment_next('zero') AS lost;
ROLLBACK;
SELECT segment_next('zero') AS goes_on;
BEGIN;
SAVEPOINT s;
SELECT segment_next('nowhere');
ROLLBACK TO s;
SELECT segment_next('zero');
COMMIT;

-- a prepared statement, and a function called with different tags
PREPARE draw(text) AS SELECT segment_next($1);
EXECUTE draw('zero');
EXECUTE draw('from');
EXECUTE draw('zero');
CREATE FUNCTION draw(tag text) RETURNS bigint LANGUAGE plpgsql AS 'BEGIN RETURN segment_next(tag); END';
SELECT draw('zero'), draw('from'), draw('zero');
DROP FUNCTION draw(text);
DEALLOCATE draw;

SELECT segment_create('prepared');
-- after an uncommitted change only other sessions can draw
BEGIN;
SELECT segment_alter('prepared', max_id => 1000000);
SELECT segment_next('prepared');
\echo :SQLSTATE
ROLLBACK;
SELECT segment_next('prepared');
SELECT segment_alter('prepared', max_id => 1000000);
SELECT segment_next('prepared');
-- the same for a change that does not affect values, because a refill could not lock the row
BEGIN;
SELECT segment_alter('prepared', max_step => 5000);
SELECT segment_next('prepared');
COMMIT;
RESET ALL;
