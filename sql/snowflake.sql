CREATE FUNCTION snowflake_parts(
    id bigint, OUT ts timestamptz, OUT datacenter int, OUT worker int, OUT tag int, OUT sequence bigint)
STABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_parts_wrapper';
COMMENT ON FUNCTION snowflake_parts(bigint) IS 'parts of an id of idgen.layout; NULL for a field that the layout lacks';

CREATE FUNCTION snowflake_parts(
    id bigint, layout text, OUT ts timestamptz, OUT datacenter int, OUT worker int, OUT tag int, OUT sequence bigint)
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_parts_in_wrapper';
COMMENT ON FUNCTION snowflake_parts(bigint, text) IS
    'parts of an id of a layout; NULL for a field that the layout lacks';

CREATE FUNCTION snowflake_time(id bigint) RETURNS timestamptz
STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_time_wrapper';
COMMENT ON FUNCTION snowflake_time(bigint) IS 'start of the tick of an id of idgen.layout';

CREATE FUNCTION snowflake_time(id bigint, layout text) RETURNS timestamptz
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_time_in_wrapper';
COMMENT ON FUNCTION snowflake_time(bigint, text) IS 'start of the tick of an id of a layout';

CREATE FUNCTION snowflake_floor(ts timestamptz) RETURNS bigint
STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_floor_wrapper';
COMMENT ON FUNCTION snowflake_floor(timestamptz) IS
    'least id of the tick that contains a time, in the layout of idgen.layout; clamped to the layout';

CREATE FUNCTION snowflake_floor(ts timestamptz, layout text) RETURNS bigint
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_floor_in_wrapper';
COMMENT ON FUNCTION snowflake_floor(timestamptz, text) IS
    'least id of the tick that contains a time, in a layout; clamped to the layout';

CREATE FUNCTION snowflake_ceil(ts timestamptz) RETURNS bigint
STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_ceil_wrapper';
COMMENT ON FUNCTION snowflake_ceil(timestamptz) IS
    'greatest id of the tick that contains a time, in the layout of idgen.layout; clamped to the layout';

CREATE FUNCTION snowflake_ceil(ts timestamptz, layout text) RETURNS bigint
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_ceil_in_wrapper';
COMMENT ON FUNCTION snowflake_ceil(timestamptz, text) IS
    'greatest id of the tick that contains a time, in a layout; clamped to the layout';

CREATE FUNCTION snowflake_make(
    ts timestamptz, worker int, sequence bigint, datacenter int DEFAULT 0) RETURNS bigint
STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_make_wrapper';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, int) IS
    'id with these parts in the layout of idgen.layout, for backfill';

CREATE FUNCTION snowflake_make(ts timestamptz, worker int, sequence bigint, layout text) RETURNS bigint
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_make_in_wrapper';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, text) IS 'id with these parts in a layout, for backfill';

CREATE FUNCTION snowflake_make(
    ts timestamptz, worker int, sequence bigint, datacenter int, layout text) RETURNS bigint
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_make_with_datacenter_in_wrapper';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, int, text) IS
    'id with these parts in a layout with datacenters, for backfill';

CREATE FUNCTION snowflake_layout(
    OUT spec text, OUT bits int, OUT unit interval, OUT epoch timestamptz, OUT workers bigint,
    OUT ids_per_second bigint, OUT ends_at timestamptz)
STABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_layout_wrapper';
COMMENT ON FUNCTION snowflake_layout() IS
    'canonical spec, bits, unit, epoch, capacity and end of the layout of idgen.layout';

CREATE FUNCTION snowflake_layout(
    layout text, OUT spec text, OUT bits int, OUT unit interval, OUT epoch timestamptz, OUT workers bigint,
    OUT ids_per_second bigint, OUT ends_at timestamptz)
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_layout_in_wrapper';
COMMENT ON FUNCTION snowflake_layout(text) IS 'canonical spec, bits, unit, epoch, capacity and end of a layout';

CREATE FUNCTION snowflake_encode(id bigint, format text) RETURNS text
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_encode_wrapper';
COMMENT ON FUNCTION snowflake_encode IS
    'id as text: base2, base32, base36, base58, base62, base64, hex, sort32 or sort62; the last two sort like the ids in COLLATE "C"';

CREATE FUNCTION snowflake_decode(text text, format text) RETURNS bigint
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_decode_wrapper';
COMMENT ON FUNCTION snowflake_decode IS 'id of a text in one of the formats of snowflake_encode';

CREATE FUNCTION snowflake_next() RETURNS bigint
PARALLEL SAFE SUPPORT idgen.allow_copy_batches LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_next_wrapper';
COMMENT ON FUNCTION snowflake_next() IS 'next id in the layout of idgen.layout';

CREATE FUNCTION snowflake_next(layout text) RETURNS bigint
PARALLEL SAFE SUPPORT idgen.allow_copy_batches LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_next_in_wrapper';
COMMENT ON FUNCTION snowflake_next(text) IS 'next id in a layout, a preset or a spec';

CREATE FUNCTION snowflake_next_many(count int) RETURNS SETOF bigint
PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_next_many_wrapper';
COMMENT ON FUNCTION snowflake_next_many(int) IS 'count increasing ids in the layout of idgen.layout';

CREATE FUNCTION snowflake_next_many(count int, layout text) RETURNS SETOF bigint
PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_next_many_in_wrapper';
COMMENT ON FUNCTION snowflake_next_many(int, text) IS 'count increasing ids in a layout';

CREATE FUNCTION snowflake_observe(id bigint, force boolean DEFAULT false) RETURNS timestamptz
STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_observe_wrapper';
COMMENT ON FUNCTION snowflake_observe(bigint, boolean) IS
    'moves all ids of this server past an id of idgen.layout, as setval does for a sequence; returns the time where they begin';
REVOKE EXECUTE ON FUNCTION snowflake_observe(bigint, boolean) FROM PUBLIC;

CREATE FUNCTION snowflake_observe(id bigint, layout text, force boolean DEFAULT false) RETURNS timestamptz
STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_observe_in_wrapper';
COMMENT ON FUNCTION snowflake_observe(bigint, text, boolean) IS
    'moves all ids of this server past an id of a layout, as setval does for a sequence; returns the time where they begin';
REVOKE EXECUTE ON FUNCTION snowflake_observe(bigint, text, boolean) FROM PUBLIC;

CREATE FUNCTION snowflake_settled() RETURNS bigint
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_settled_wrapper';
COMMENT ON FUNCTION snowflake_settled() IS
    'greatest id of idgen.layout up to which no transaction of this server can commit a row any more; for use in a later statement';

CREATE FUNCTION snowflake_settled(layout text) RETURNS bigint
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_settled_in_wrapper';
COMMENT ON FUNCTION snowflake_settled(text) IS
    'greatest id of a layout up to which no transaction of this server can commit a row any more; for use in a later statement';

CREATE FUNCTION snowflake_change() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_change_wrapper';
COMMENT ON FUNCTION snowflake_change() IS
    'trigger: draws an id into a column before an insertion or update; keeps the keys of deleted rows in a table after it';

CREATE FUNCTION idgen.stat_get_snowflake(
    OUT layout text, OUT datacenter int, OUT worker int, OUT last_id bigint, OUT last_time timestamptz,
    OUT issued bigint, OUT batches bigint, OUT borrowed bigint, OUT waits bigint, OUT wait_us bigint,
    OUT ends_at timestamptz) RETURNS SETOF record
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_snowflake_wrapper';
COMMENT ON FUNCTION idgen.stat_get_snowflake IS 'rows of the view idgen.stat_snowflake';
GRANT EXECUTE ON FUNCTION idgen.stat_get_snowflake TO pg_monitor;

CREATE VIEW idgen.stat_snowflake AS
SELECT layout, datacenter, worker, last_id, last_time, issued, batches, borrowed, waits,
       pg_catalog.make_interval(secs => wait_us OPERATOR(pg_catalog./) 1000000.0) AS wait_time,
       ends_at, idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_snowflake();
COMMENT ON VIEW idgen.stat_snowflake IS
    'statistics of ids, one row for each layout and worker id in use on this server';
COMMENT ON COLUMN idgen.stat_snowflake.layout IS
    'canonical spec, as (snowflake_layout(''js53'')).spec returns it, not the preset''s name';
COMMENT ON COLUMN idgen.stat_snowflake.datacenter IS 'datacenter id of the ids';
COMMENT ON COLUMN idgen.stat_snowflake.worker IS 'worker id of the ids';
COMMENT ON COLUMN idgen.stat_snowflake.last_id IS
    'the id issued last, not one that snowflake_observe has skipped; NULL before the first';
COMMENT ON COLUMN idgen.stat_snowflake.last_time IS 'its time';
COMMENT ON COLUMN idgen.stat_snowflake.issued IS 'ids issued';
COMMENT ON COLUMN idgen.stat_snowflake.batches IS 'reservations made by snowflake_next_many';
COMMENT ON COLUMN idgen.stat_snowflake.borrowed IS 'ids whose time was ahead of the clock when they were issued';
COMMENT ON COLUMN idgen.stat_snowflake.waits IS 'times a statement waited for the clock';
COMMENT ON COLUMN idgen.stat_snowflake.wait_time IS 'time spent waiting';
COMMENT ON COLUMN idgen.stat_snowflake.ends_at IS 'the first time for which the layout has no ids';
COMMENT ON COLUMN idgen.stat_snowflake.stats_reset IS
    'when the counters of all views were last set to zero: by idgen.reset_stats(), or at a start';
GRANT SELECT ON idgen.stat_snowflake TO PUBLIC, pg_monitor;
