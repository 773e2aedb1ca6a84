\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.0'" to load this file. \quit

CREATE FUNCTION snowflake_change() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_change_wrapper';
COMMENT ON FUNCTION snowflake_change() IS
    'trigger: draws an id into a column before an insertion or update; keeps the keys of deleted rows in a table after it';

CREATE FUNCTION uuidv7_settled() RETURNS uuid
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'uuidv7_settled_wrapper';
COMMENT ON FUNCTION uuidv7_settled() IS
    'greatest UUID up to which no transaction of this server can commit a row any more; for use in a later statement';

CREATE FUNCTION segment_settled(tag text) RETURNS bigint
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'segment_settled_wrapper';
COMMENT ON FUNCTION segment_settled IS
    'greatest value of a segment up to which no transaction of this server can commit a row any more; for use in a later statement';
