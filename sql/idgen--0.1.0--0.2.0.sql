\echo Use "ALTER EXTENSION idgen UPDATE TO '0.2.0'" to load this file. \quit

-- The durable clock: where ids begin can be said, and what the clock has done can be seen.
CREATE FUNCTION snowflake_observe(id bigint, force boolean DEFAULT false) RETURNS timestamptz
VOLATILE PARALLEL UNSAFE STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_observe_wrapper';
CREATE FUNCTION snowflake_observe(id bigint, layout text, force boolean DEFAULT false) RETURNS timestamptz
VOLATILE PARALLEL UNSAFE STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_observe_in_wrapper';
REVOKE EXECUTE ON FUNCTION snowflake_observe(bigint, boolean), snowflake_observe(bigint, text, boolean) FROM PUBLIC;
COMMENT ON FUNCTION snowflake_observe(bigint, boolean) IS
    'makes all ids of this server begin after this one of idgen.layout, as setval does; returns where they begin';
COMMENT ON FUNCTION snowflake_observe(bigint, text, boolean) IS
    'makes all ids of this server begin after this one of a layout, as setval does; returns where they begin';

CREATE FUNCTION idgen.stat_get_clock(OUT mark timestamptz, OUT lead interval, OUT backward_steps bigint,
    OUT largest_step interval, OUT mark_writes bigint, OUT mark_write_time interval) RETURNS SETOF record
VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_clock_wrapper';
CREATE VIEW idgen.stat_clock AS
SELECT mark, lead, backward_steps, largest_step, mark_writes, mark_write_time
FROM idgen.stat_get_clock();
GRANT SELECT ON idgen.stat_clock TO PUBLIC;
COMMENT ON VIEW idgen.stat_clock IS
    'the durable mark, how far ids are ahead of the clock, and the backward steps it has made';
COMMENT ON FUNCTION idgen.stat_get_clock() IS
    'what idgen.stat_clock shows';

COMMENT ON FUNCTION idgen.reset_stats() IS
    'sets the counters of the views to zero';
