COMMENT ON SCHEMA idgen IS 'idgen: views and functions for operators';

COMMENT ON FUNCTION snowflake_next() IS
    'next id of this server in the layout of idgen.layout';
COMMENT ON FUNCTION snowflake_next(text) IS
    'next id of this server in a layout: a preset''s name or a spec';
COMMENT ON FUNCTION snowflake_next_many(int) IS
    'that many ids of this server, increasing, in the layout of idgen.layout';
COMMENT ON FUNCTION snowflake_next_many(int, text) IS
    'that many ids of this server, increasing, in a layout';
COMMENT ON FUNCTION snowflake_parts(bigint) IS
    'an id of idgen.layout taken apart; NULL where the layout has no such field';
COMMENT ON FUNCTION snowflake_parts(bigint, text) IS
    'an id of a layout taken apart; NULL where the layout has no such field';
COMMENT ON FUNCTION snowflake_time(bigint) IS
    'start of the tick in which an id of idgen.layout was made';
COMMENT ON FUNCTION snowflake_time(bigint, text) IS
    'start of the tick in which an id of a layout was made';
COMMENT ON FUNCTION snowflake_floor(timestamptz) IS
    'least id of the tick that holds this time, in the layout of idgen.layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_floor(timestamptz, text) IS
    'least id of the tick that holds this time, in a layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_ceil(timestamptz) IS
    'greatest id of the tick that holds this time, in the layout of idgen.layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_ceil(timestamptz, text) IS
    'greatest id of the tick that holds this time, in a layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, int) IS
    'the id with these parts in the layout of idgen.layout, for backfill';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, text) IS
    'the id with these parts in a layout, for backfill';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, int, text) IS
    'the id with these parts in a layout with datacenters, for backfill';
COMMENT ON FUNCTION snowflake_observe(bigint, boolean) IS
    'makes all ids of this server begin after this one of idgen.layout, as setval does; returns where they begin';
COMMENT ON FUNCTION snowflake_observe(bigint, text, boolean) IS
    'makes all ids of this server begin after this one of a layout, as setval does; returns where they begin';
COMMENT ON FUNCTION snowflake_encode(bigint, text) IS
    'an id as text: base2, base32, base36, base58, base62, base64, hex, or sort32 and sort62, which sort as the ids do';
COMMENT ON FUNCTION snowflake_decode(text, text) IS
    'the id of a text in one of the formats of snowflake_encode';
COMMENT ON FUNCTION snowflake_layout() IS
    'what the layout of idgen.layout is: canonical spec, bits, unit, epoch, capacity, end';
COMMENT ON FUNCTION snowflake_layout(text) IS
    'what a layout is: canonical spec, bits, unit, epoch, capacity, end';

COMMENT ON VIEW idgen.stat_snowflake IS
    'one row for each layout and number of this server that issues ids: last id, counters, waits, end';
COMMENT ON FUNCTION idgen.stat_get_snowflake() IS
    'what idgen.stat_snowflake shows';
COMMENT ON VIEW idgen.stat_clock IS
    'the durable mark, how far ids are ahead of the clock, and the backward steps it has made';
COMMENT ON FUNCTION idgen.stat_get_clock() IS
    'what idgen.stat_clock shows';
COMMENT ON FUNCTION idgen.status() IS
    'versions, settings, and checks in words';
COMMENT ON FUNCTION idgen.reset_stats() IS
    'sets the counters of the views to zero';
