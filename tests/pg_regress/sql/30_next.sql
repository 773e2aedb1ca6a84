-- Drawing ids.
CREATE TABLE drawn (n serial, id bigint PRIMARY KEY DEFAULT snowflake_next(), note text);
INSERT INTO drawn (note) SELECT 'one statement' FROM generate_series(1, 1000);
INSERT INTO drawn (note) VALUES ('a'), ('b'), ('c');
INSERT INTO drawn (id, note) SELECT snowflake_next_many(1000), 'batch';
COPY drawn (note) FROM stdin;
copied
copied too
\.
-- distinct by the primary key, increasing in the order drawn, and at most a second ahead of the clock
SELECT count(*), count(*) FILTER (WHERE id <= before) AS not_rising,
       bool_and(snowflake_time(id) <= clock_timestamp() + interval '1 second') AS within_drift,
       bool_and(snowflake_time(id) > now() - interval '1 minute') AS of_now
FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM drawn) d;

-- each layout has its own ids, which its spellings share
SELECT snowflake_next() < snowflake_next('twitter') AND snowflake_next('twitter') <
       snowflake_next('time:41 worker:10 sequence:12 unit:1ms epoch:2010-11-04T01:42:54.657Z') AS one_line;
SELECT l, (snowflake_parts(snowflake_next(l), l)).worker, snowflake_next(l) <= 9007199254740991 AS fits_53_bits
FROM unnest(ARRAY['snowflake', 'sonyflake', 'instagram', 'discord', 'tsid', 'pgedge', 'seconds', 'js53']) l;
SELECT tag FROM snowflake_parts(snowflake_next('time:41 tag:4=7 worker:8 sequence:10 epoch:2020-01-01'),
                                'time:41 tag:4=7 worker:8 sequence:10 epoch:2020-01-01');

-- sets: the requested count, increasing
SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE id <= before) AS not_rising
FROM (SELECT id, lag(id) OVER (ORDER BY ordinality) AS before FROM snowflake_next_many(10000) WITH ORDINALITY m(id)) d;
SELECT count(*) FROM snowflake_next_many(0);
SELECT count(*) FROM snowflake_next_many(3, 'js53');
SELECT n, count(id) FROM generate_series(0, 3) n LEFT JOIN LATERAL snowflake_next_many(n) id ON true GROUP BY n ORDER BY n;
SELECT count(*) FROM (SELECT snowflake_next_many(2000000000, 'seconds') LIMIT 5) streamed;

-- invalid arguments
CALL outcomes($$
    snowflake_next(NULL)
    snowflake_next('')
    snowflake_next_many(NULL)
    snowflake_next_many(1, NULL)
    snowflake_next_many(-1)
    snowflake_next_many(-2147483648, 'js53')
$$);
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
DROP TABLE drawn;
