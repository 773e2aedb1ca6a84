\echo Use "ALTER EXTENSION idgen UPDATE TO '0.12.0'" to load this file. \quit

CREATE FUNCTION snowflake_settled() RETURNS bigint VOLATILE PARALLEL RESTRICTED
    LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_settled_wrapper';
COMMENT ON FUNCTION snowflake_settled() IS
    'greatest id of idgen.layout up to which no transaction of this server can commit a row any more; for use in a later statement';
CREATE FUNCTION snowflake_settled(layout text) RETURNS bigint VOLATILE PARALLEL RESTRICTED
    LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_settled_in_wrapper';
COMMENT ON FUNCTION snowflake_settled(text) IS
    'greatest id of a layout up to which no transaction of this server can commit a row any more; for use in a later statement';

-- UUIDs of version 7.
CREATE FUNCTION uuidv7_next() RETURNS uuid VOLATILE PARALLEL SAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_next_wrapper';
CREATE FUNCTION uuidv7_next(node boolean) RETURNS uuid VOLATILE PARALLEL SAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_next_of_node_wrapper';
CREATE FUNCTION uuidv7_next_many(count int) RETURNS SETOF uuid VOLATILE PARALLEL SAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_next_many_wrapper';
CREATE FUNCTION uuidv7_next_many(count int, node boolean) RETURNS SETOF uuid VOLATILE PARALLEL SAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_next_many_of_node_wrapper';
CREATE FUNCTION uuidv7_floor(ts timestamptz) RETURNS uuid IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_floor_wrapper';
CREATE FUNCTION uuidv7_ceil(ts timestamptz) RETURNS uuid IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_ceil_wrapper';
CREATE FUNCTION uuidv7_time(id uuid) RETURNS timestamptz IMMUTABLE STRICT PARALLEL SAFE
LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_time_wrapper';

COMMENT ON FUNCTION uuidv7_next() IS 'next UUID of version 7: greater than all that this server made before';
COMMENT ON FUNCTION uuidv7_next(boolean) IS
    'next UUID of version 7; if node is true, its first 31 random bits are the worker id of this server';
COMMENT ON FUNCTION uuidv7_next_many(int) IS 'count increasing UUIDs of version 7';
COMMENT ON FUNCTION uuidv7_next_many(int, boolean) IS 'count increasing UUIDs of version 7, as uuidv7_next(node) makes them';
COMMENT ON FUNCTION uuidv7_floor(timestamptz) IS 'least UUID of version 7 of the millisecond that contains a time';
COMMENT ON FUNCTION uuidv7_ceil(timestamptz) IS 'greatest UUID of version 7 of the millisecond that contains a time';
COMMENT ON FUNCTION uuidv7_time(uuid) IS 'time in a UUID of version 7';
