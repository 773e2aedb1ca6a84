\echo Use "ALTER EXTENSION idgen UPDATE TO '0.20.0'" to load this file. \quit

CREATE FUNCTION idgen.allow_copy_batches(request internal) RETURNS internal
STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'allow_copy_batches';
COMMENT ON FUNCTION idgen.allow_copy_batches IS
    'planner support: takes the place of a draw in COPY FROM, which then writes the rows in batches';
ALTER FUNCTION snowflake_next() SUPPORT idgen.allow_copy_batches;
ALTER FUNCTION snowflake_next(text) SUPPORT idgen.allow_copy_batches;
ALTER FUNCTION uuidv7_next() SUPPORT idgen.allow_copy_batches;
ALTER FUNCTION uuidv7_next(boolean) SUPPORT idgen.allow_copy_batches;
ALTER FUNCTION segment_next(text) SUPPORT idgen.allow_copy_batches;
