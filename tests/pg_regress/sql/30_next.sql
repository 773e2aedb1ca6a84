-- Drawing ids, and settled ids.
-- each layout has its own ids, which its spellings share
SELECT snowflake_next() < snowflake_next('twitter') AND snowflake_next('twitter') <
       snowflake_next('time:41 worker:10 sequence:12 unit:1ms epoch:2010-11-04T01:42:54.657Z') AS one_line;
SELECT l, (snowflake_parts(snowflake_next(l), l)).worker, snowflake_next(l) <= 9007199254740991 AS fits_53_bits
FROM unnest(ARRAY['snowflake', 'sonyflake', 'instagram', 'discord', 'tsid', 'pgedge', 'seconds', 'js53']) l;
SELECT tag FROM snowflake_parts(snowflake_next('time:41 tag:4=7 worker:8 sequence:10 epoch:2020-01-01'),
                                'time:41 tag:4=7 worker:8 sequence:10 epoch:2020-01-01');

-- invalid arguments draw nothing
SELECT idgen.reset_stats();
CALL outcomes($$
    snowflake_next(NULL)
    snowflake_next('')
    snowflake_next_many(NULL)
    snowflake_next_many(1, NULL)
    snowflake_next_many(-1)
    snowflake_next_many(-2147483648, 'js53')
    SELECT * FROM snowflake_next_many(3, NULL)
    SELECT * FROM snowflake_next_many(3, 'no')
$$);
SELECT sum(issued) AS issued FROM idgen.stat_snowflake;

-- sets around the size of a tick, and in reservations of 16, 32, 64 and so on, which the mark can divide
SELECT wanted, count(*), bool_and(id > before) AS rise
FROM (SELECT wanted, id, lag(id, 1, 0::bigint) OVER () AS before
      FROM unnest('{0,1,2,4095,4096,4097,20000}'::int[]) AS wanted, LATERAL snowflake_next_many(wanted) AS id) AS drawn
GROUP BY wanted ORDER BY wanted;
SELECT issued, batches BETWEEN 40 AND 45 AS batches FROM idgen.stat_snowflake WHERE layout = (snowflake_layout()).spec;
-- counts and layouts from row to row; LIMIT cuts sets short, and the next row uses the call again
CREATE TABLE wanted AS
SELECT n, n % 4 AS tag, format('time:41 tag:10=%s sequence:12 epoch:2020-01-01', n % 4) AS l
FROM unnest('{3,0,5,1,0,8,2}'::int[]) AS n;
CREATE TABLE sets (place serial, way int, tag int, id bigint);
INSERT INTO sets (way, tag, id) SELECT 1, tag, id FROM wanted, LATERAL snowflake_next_many(n, l) AS id;
INSERT INTO sets (way, tag, id) SELECT 2, tag, snowflake_next_many(n, l) FROM wanted;
INSERT INTO sets (way, tag, id) SELECT 3, tag, id FROM wanted, LATERAL (SELECT snowflake_next_many(n, l) AS id OFFSET 0) AS s;
INSERT INTO sets (way, tag, id) SELECT 4, tag, id FROM wanted, ROWS FROM (snowflake_next_many(n, l)) AS id;
INSERT INTO sets (way, tag, id) SELECT 5, tag, id FROM wanted, LATERAL (SELECT snowflake_next_many(n, l) AS id LIMIT 2) AS s;
INSERT INTO sets (way, tag, id) SELECT 6, tag, (SELECT snowflake_next_many(n + 3, l) LIMIT 1) FROM wanted;
SELECT way, count(*), bool_and(id >> 12 & 1023 = tag) AS of_their_layouts, bool_and(id > before) AS rise
FROM (SELECT *, lag(id, 1, 0::bigint) OVER (PARTITION BY tag ORDER BY place) AS before FROM sets) AS s
GROUP BY way ORDER BY way;
SELECT count(*) FROM wanted WHERE EXISTS (SELECT snowflake_next_many(n, l));
DROP TABLE wanted, sets;
-- several sets in one row
SELECT count(*) AS rows, count(DISTINCT a) AS a, count(DISTINCT b) AS b, count(c) AS c,
       bool_and(a >> 12 & 1023 = 1 AND b >> 12 & 1023 = 2) AS of_their_layouts, bool_and(a > a_before AND b > b_before) AS rise
FROM (SELECT *, max(a) OVER before AS a_before, max(b) OVER before AS b_before
      FROM (SELECT snowflake_next_many(3, 'time:41 tag:10=1 sequence:12 epoch:2020-01-01') AS a,
                   snowflake_next_many(5, 'time:41 tag:10=2 sequence:12 epoch:2020-01-01') AS b, snowflake_next_many(0) AS c
            FROM generate_series(1, 4)) AS drawn
      WINDOW before AS (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS s;
SELECT 1 + snowflake_next_many(2) IS NOT NULL AS in_an_expression;
SELECT 1 WHERE snowflake_next_many(2) > 0;
-- the clock outside the layout (the DETAIL has the current time)
\set VERBOSITY terse
SELECT snowflake_next('time:41 sequence:12 epoch:2099-01-01') > 0 AS before_epoch;
\echo :SQLSTATE
SELECT snowflake_next('time:20 sequence:12 epoch:2020-01-01') > 0 AS ended;
\echo :SQLSTATE
\set VERBOSITY default
-- the next call works
SELECT snowflake_next() > 0 AS works, snowflake_next('js53') > 0 AS works_too;

-- in a read-only transaction, and after a rollback to a savepoint
BEGIN READ ONLY;
SELECT snowflake_next() > 0 AS read_only;
SELECT count(*) FROM snowflake_next_many(3);
SAVEPOINT s;
SELECT snowflake_next('nonsense');
ROLLBACK TO s;
SELECT snowflake_next() > 0 AS after_error;
COMMIT;

-- a rollback takes no ids back
BEGIN;
SELECT snowflake_next() AS lost \gset
ROLLBACK;
SELECT snowflake_next() > :lost AS goes_on;

-- a layout that ends within a year raises a warning (with the date, so not shown here)
SET client_min_messages = error;
SELECT snowflake_next(format('time:35 sequence:12 epoch:%s', (now() - interval '380 days')::date)) > 0 AS works;
RESET client_min_messages;

-- Settled ids: those up to which no transaction can commit a row any more.
CREATE TABLE event (id bigint PRIMARY KEY DEFAULT snowflake_next(), body text);
INSERT INTO event (body) SELECT 'early' FROM generate_series(1, 3);
SELECT snowflake_settled() = max(id) AS all_are FROM event;
SELECT snowflake_settled() = snowflake_settled('snowflake') AS same;

-- a consumer: the bound in one statement, the rows in the next
SELECT snowflake_settled() AS settled \gset
SELECT count(*) FROM event WHERE id > 0 AND id <= :settled;

-- the caller's own ids too are settled after its transaction only
BEGIN;
INSERT INTO event (body) VALUES ('mine') RETURNING id AS mine \gset
SELECT snowflake_settled() < :mine AS is_open;
COMMIT;
SELECT snowflake_settled() >= :mine AS is_settled;

-- a layout that no session has drawn in
SELECT snowflake_settled('tsid') < snowflake_next('tsid') AS before_the_first;

-- errors
\set VERBOSITY default
CALL outcomes($$snowflake_settled(NULL)$$);
CALL outcomes($$snowflake_settled('nonsense')$$);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT snowflake_settled();
\echo :SQLSTATE
ROLLBACK;
SELECT snowflake_settled() > 0 AS works_after_errors;
DROP TABLE event;
