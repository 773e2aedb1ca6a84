CREATE FUNCTION uuidv7_next() RETURNS uuid
PARALLEL SAFE SUPPORT idgen.allow_copy_batches LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_next_wrapper';
COMMENT ON FUNCTION uuidv7_next() IS 'next UUID of version 7: greater than all that this server made before';

CREATE FUNCTION uuidv7_next(node boolean) RETURNS uuid
PARALLEL SAFE SUPPORT idgen.allow_copy_batches LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_next_of_node_wrapper';
COMMENT ON FUNCTION uuidv7_next(boolean) IS
    'next UUID of version 7; if node is true, its first 31 random bits are the worker id of this server';

CREATE FUNCTION uuidv7_next_many(count int) RETURNS SETOF uuid
PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_next_many_wrapper';
COMMENT ON FUNCTION uuidv7_next_many(int) IS 'count increasing UUIDs of version 7';

CREATE FUNCTION uuidv7_next_many(count int, node boolean) RETURNS SETOF uuid
PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_next_many_of_node_wrapper';
COMMENT ON FUNCTION uuidv7_next_many(int, boolean) IS
    'count increasing UUIDs of version 7, as uuidv7_next(node) makes them';

CREATE FUNCTION uuidv7_settled() RETURNS uuid
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_settled_wrapper';
COMMENT ON FUNCTION uuidv7_settled() IS
    'greatest UUID up to which no transaction of this server can commit a row any more; for use in a later statement';

CREATE FUNCTION uuidv7_floor(ts timestamptz) RETURNS uuid
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_floor_wrapper';
COMMENT ON FUNCTION uuidv7_floor IS 'least UUID of version 7 of the millisecond that contains a time';

CREATE FUNCTION uuidv7_ceil(ts timestamptz) RETURNS uuid
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_ceil_wrapper';
COMMENT ON FUNCTION uuidv7_ceil IS 'greatest UUID of version 7 of the millisecond that contains a time';

CREATE FUNCTION uuidv7_time(id uuid) RETURNS timestamptz
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_time_wrapper';
COMMENT ON FUNCTION uuidv7_time IS 'time in a UUID of version 7';
