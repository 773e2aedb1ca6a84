-- Layouts: presets, specs, and invalid specs. Ids as their parts and as text.
\x on
SELECT p AS preset, l.* FROM unnest(string_to_array('snowflake twitter sonyflake instagram discord tsid pgedge seconds js53', ' ')) p,
    snowflake_layout(p) l;
\x off
SELECT spec FROM snowflake_layout();

-- invalid specs
\set VERBOSITY default
SELECT snowflake_layout('');
\echo :SQLSTATE
SELECT snowflake_layout('snowflak');
SELECT snowflake_layout('time');
SELECT snowflake_layout('time:41');
SELECT snowflake_layout('time:41 sequence:12');
SELECT snowflake_layout('sequence:12 time:41 epoch:2020-01-01');
SELECT snowflake_layout('time:41 sequence:12 colour:3 epoch:2020-01-01');
SELECT snowflake_layout('time:41 sequence:12 sequence:12 epoch:2020-01-01');
SELECT snowflake_layout('time:19 sequence:12 epoch:2020-01-01');
SELECT snowflake_layout('time:41 worker:11 sequence:12 epoch:2020-01-01');
SELECT snowflake_layout('time:41 datacenter:5 sequence:12 epoch:2020-01-01');
SELECT snowflake_layout('time:41 tag:4 sequence:12 epoch:2020-01-01');
SELECT snowflake_layout('time:41 tag:4=16 sequence:12 epoch:2020-01-01');
SELECT snowflake_layout('time:41 sequence:12 unit:2s epoch:2020-01-01');
SELECT snowflake_layout('time:41 sequence:12 epoch:2020-02-30');
SELECT snowflake_layout(repeat('x', 100) || E'\n"quoted"');

-- the next call works
SELECT bits FROM snowflake_layout('js53');
SELECT snowflake_layout(NULL) IS NULL AS null_in_null_out;

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
-- composing is the inverse
SELECT snowflake_make(ts, worker, sequence, datacenter, 'twitter') FROM snowflake_parts(1888944671579078656, 'twitter');
SELECT snowflake_floor('2026-01-01') = snowflake_floor('2026-01-01', 'snowflake') AS floor,
       snowflake_ceil('2026-01-01') = snowflake_ceil('2026-01-01', 'snowflake') AS ceil;

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

-- Ids as text.
SELECT f AS format, snowflake_encode(1888944671579078656, f), snowflake_encode(0, f),
       snowflake_decode(snowflake_encode(9223372036854775807, f), f) = 9223372036854775807 AS reads_back
FROM unnest(string_to_array('base2 base32 base36 base58 base62 base64 hex sort32 sort62', ' ')) f;

-- two formats sort like the ids
SELECT f AS format, array_agg(id ORDER BY snowflake_encode(id, f) COLLATE "C") = array_agg(id ORDER BY id) AS sorts
FROM unnest(ARRAY['sort32', 'sort62']) f, unnest(ARRAY[0, 9, 10, 35, 36, 61, 62, 1888944671579078656, 9223372036854775807]) id
GROUP BY f ORDER BY f;

-- NULL in, NULL out
SELECT snowflake_encode(NULL, 'hex') AS id, snowflake_encode(1, NULL) AS format, snowflake_decode(NULL, 'hex') AS text;

-- invalid arguments
CALL outcomes($$
    snowflake_encode(1, 'base63')
    snowflake_encode(-1, 'hex')
    snowflake_decode('', 'hex')
    snowflake_decode('FF', 'hex')
    snowflake_decode('007', 'base36')
    snowflake_decode('abc', 'sort32')
    snowflake_decode('!!!!', 'base64')
    snowflake_decode('8000000000000000', 'hex')
    snowflake_decode('-1', 'base36')
$$);
