-- UUIDs of version 7.
CREATE TABLE drawn (n serial, id uuid PRIMARY KEY DEFAULT uuidv7_next(), note text);
INSERT INTO drawn (note) SELECT 'one statement' FROM generate_series(1, 1000);
INSERT INTO drawn (note) VALUES ('a'), ('b'), ('c');
INSERT INTO drawn (id, note) SELECT uuidv7_next_many(1000), 'batch';
INSERT INTO drawn (id, note) SELECT uuidv7_next(node => false), 'no node' FROM generate_series(1, 10);
COPY drawn (note) FROM stdin;
copied
copied too
\.
-- distinct by the primary key, increasing in the order drawn, and at most a second ahead of the clock
SELECT count(*), count(*) FILTER (WHERE id <= before) AS not_rising,
       bool_and(uuidv7_time(id) <= clock_timestamp() + interval '1 second') AS within_drift,
       bool_and(uuidv7_time(id) > now() - interval '1 minute') AS of_now
FROM (SELECT id, lag(id) OVER (ORDER BY n) AS before FROM drawn) d;

-- version 7, variant 10, time and sequence number as of a snowflake id, then a worker id or random bits
CREATE FUNCTION bits(id uuid) RETURNS bit(128) IMMUTABLE RETURN ('x' || translate(id::text, '-', ''))::bit(128);
SELECT DISTINCT substring(bits(id) FROM 49 FOR 4) AS version, substring(bits(id) FROM 65 FOR 2) AS variant FROM drawn;
-- each of the 54 random bits is 0 in some UUIDs and 1 in others
SELECT bit_or(substring(bits(id) FROM 75)), bit_and(substring(bits(id) FROM 75)) FROM drawn WHERE note = 'batch';

-- the same generator as ids of the layout, and one row in the view
CREATE FUNCTION id(id uuid) RETURNS bigint IMMUTABLE RETURN
    (substring(bits(id) FROM 6 FOR 43) || substring(bits(id) FROM 53 FOR 12) || substring(bits(id) FROM 67 FOR 8))::bit(63)::bigint;
WITH drawn AS MATERIALIZED (
    SELECT id(uuidv7_next()) AS a, snowflake_next('time:43 sequence:20 epoch:1970-01-01') AS b, id(uuidv7_next()) AS c)
SELECT a < b AND b < c AS one_line FROM drawn;
SELECT layout, datacenter, worker, batches, ends_at,
       abs(extract(epoch FROM last_time - uuidv7_time(uuidv7_next()))) < 60 AS of_now
FROM idgen.stat_snowflake WHERE layout LIKE 'time:43 %';

-- sets: the requested count
SELECT count(DISTINCT id) FROM uuidv7_next_many(10000) AS id;
SELECT count(*) FROM uuidv7_next_many(0);
SELECT n, count(id) FROM generate_series(0, 3) n LEFT JOIN LATERAL uuidv7_next_many(n) id ON true GROUP BY n ORDER BY n;
SELECT count(*) FROM (SELECT uuidv7_next_many(2000000) LIMIT 5) streamed;
-- the argument may change from row to row
SELECT node, count(DISTINCT substring(bits(uuidv7_next(node)) FROM 75 FOR 31)) = 1 AS same
FROM generate_series(1, 100), (VALUES (true), (false)) AS of (node) GROUP BY node ORDER BY node;

-- the least and the greatest UUID of a millisecond
SELECT uuidv7_floor(ts), uuidv7_ceil(ts + interval '999 us'), ts
FROM uuidv7_time('018570bb-4a7d-7001-8000-000000000000') AS ts;
SELECT ts, uuidv7_floor(ts), uuidv7_time(uuidv7_ceil(ts))
FROM unnest(ARRAY['1970-01-01', '1969-12-31 23:59:59.999', '-infinity', '10889-08-02 05:31:50.655', '10889-08-02 05:31:50.656',
                  '2026-03-01 12:00:00.0009', 'infinity']::timestamptz[]) ts;
SELECT uuidv7_floor(NULL), uuidv7_ceil(NULL), uuidv7_time(NULL);
SELECT count(*) FROM drawn WHERE id < uuidv7_floor(uuidv7_time(id)) OR id > uuidv7_ceil(uuidv7_time(id));
-- the time of RFC 9562's example, which another generator made
SELECT uuidv7_time('017F22E2-79B0-7CC3-98C4-DC0C0C07398F');
CALL outcomes($$
    SELECT uuidv7_time('c232ab00-9414-11ec-b3c8-9f6bdeced846')
    SELECT uuidv7_time('919108f7-52d1-4320-9bac-f847db4148a8')
    SELECT uuidv7_time('00000000-0000-0000-0000-000000000000')
    SELECT uuidv7_time('017f22e2-79b0-7cc3-d8c4-dc0c0c07398f')
$$);

-- invalid arguments
CALL outcomes($$
    SELECT uuidv7_next(NULL)
    SELECT uuidv7_next_many(NULL)
    SELECT uuidv7_next_many(1, NULL)
    SELECT uuidv7_next_many(-1)
$$);

-- ranges for partitions, from the primary key
CREATE TABLE events (id uuid PRIMARY KEY DEFAULT uuidv7_next(), n int) PARTITION BY RANGE (id);
SELECT format('CREATE TABLE events_%s PARTITION OF events FOR VALUES FROM (%L) TO (%L)', name, uuidv7_floor(begins), uuidv7_floor(ends))
FROM (VALUES ('past', '-infinity'::timestamptz, '2026-01-01'::timestamptz), ('rest', '2026-01-01', 'infinity')) AS p (name, begins, ends)
\gexec
INSERT INTO events (n) SELECT 1 FROM generate_series(1, 10);
SELECT tableoid::regclass, count(*) FROM events GROUP BY 1;
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
SET enable_bitmapscan = off;
EXPLAIN (COSTS off) SELECT count(*) FROM events
WHERE id >= uuidv7_floor('2025-01-01') AND id <= uuidv7_ceil('2025-06-01');
RESET enable_indexscan;
RESET enable_indexonlyscan;
RESET enable_bitmapscan;

-- in a read-only transaction
BEGIN READ ONLY;
SELECT uuidv7_next() IS NOT NULL AS uuid, (SELECT count(*) FROM uuidv7_next_many(2)) AS uuids;
COMMIT;
-- settled UUIDs: all that were drawn, unless the transaction is open
SELECT bool_and(drawn.id <= settled.id) AS are_settled FROM drawn, uuidv7_settled() AS settled (id);
SELECT settled.id < uuidv7_next() AS is_before FROM uuidv7_settled() AS settled (id);
BEGIN;
SELECT uuidv7_next() > uuidv7_settled() AS is_open;
SELECT uuidv7_next(node => true) > uuidv7_settled() AS is_open;
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
CALL outcomes($$SELECT uuidv7_settled()$$);
COMMIT;

DROP TABLE drawn, events;
DROP FUNCTION id, bits;
