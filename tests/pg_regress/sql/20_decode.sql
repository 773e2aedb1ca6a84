-- Decoding ids, and the bounds of times.
SELECT * FROM snowflake_parts(1888944671579078656, 'twitter');
SELECT * FROM snowflake_parts(1888944671579078656, 'snowflake');
SELECT * FROM snowflake_parts(1888944671579078656);
SELECT * FROM snowflake_parts(175928847299117063, 'discord');
SELECT * FROM snowflake_parts(4198401, 'tsid');
SELECT * FROM snowflake_parts(0, 'sonyflake');
SELECT * FROM snowflake_parts(9223372036854775807, 'time:41 tag:4=7 worker:8 sequence:10 epoch:2020-01-01');
SELECT snowflake_time(9007199254740991, 'js53'), snowflake_time(1888944671579078656);

SELECT snowflake_make('2026-01-01', 0, 4294967295, 'seconds');

-- bounds of a tick, also outside the layout
SELECT l, ts, snowflake_floor(ts, l), snowflake_ceil(ts, l)
FROM unnest(ARRAY['snowflake', 'seconds', 'js53']) l,
     unnest(ARRAY['-infinity', '1900-01-01', '2026-01-01 00:00:00.0005', '2300-01-01', 'infinity']::timestamptz[]) ts;

-- a time filter uses the primary key
CREATE TABLE events (id bigint PRIMARY KEY DEFAULT snowflake_next());
SET enable_seqscan = off;
SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT * FROM events WHERE id >= snowflake_floor(now() - interval '1 hour');
RESET enable_seqscan;
RESET enable_bitmapscan;
DROP TABLE events;

-- NULL in, NULL out
SELECT snowflake_parts(NULL) IS NULL AS parts, snowflake_parts(1, NULL) IS NULL AS parts_in, snowflake_time(NULL) AS time,
       snowflake_floor(NULL) AS floor, snowflake_ceil(now(), NULL) AS ceil, snowflake_make(now(), NULL, 0) AS make;

-- invalid arguments
CALL outcomes($$
    snowflake_parts(-1)
    snowflake_time(9007199254740992, 'js53')
    snowflake_time(1, 'nonsense')
    snowflake_time(9223372036854775807, 'time:62 sequence:1 unit:1s epoch:2020-01-01')
    snowflake_make('2009-01-01', 0, 0)
    snowflake_make('2090-01-01', 0, 0)
    snowflake_make('infinity', 0, 0)
    snowflake_make('2026-01-01', 1024, 0)
    snowflake_make('2026-01-01', -1, 0)
    snowflake_make('2026-01-01', 0, 4096)
    snowflake_make('2026-01-01', 0, -1)
    snowflake_make('2026-01-01', 1, 0, 'seconds')
    snowflake_make('2026-01-01', 0, 0, 1)
    snowflake_make('2026-01-01', 0, 0, 32, 'twitter')
$$);
