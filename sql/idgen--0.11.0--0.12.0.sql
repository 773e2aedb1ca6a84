\echo Use "ALTER EXTENSION idgen UPDATE TO '0.12.0'" to load this file. \quit

CREATE FUNCTION snowflake_settled() RETURNS bigint VOLATILE PARALLEL RESTRICTED
    LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_settled_wrapper';
COMMENT ON FUNCTION snowflake_settled() IS
    'greatest id of idgen.layout up to which no transaction of this server can commit a row any more; for use in a later statement';
CREATE FUNCTION snowflake_settled(layout text) RETURNS bigint VOLATILE PARALLEL RESTRICTED
    LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_settled_in_wrapper';
COMMENT ON FUNCTION snowflake_settled(text) IS
    'greatest id of a layout up to which no transaction of this server can commit a row any more; for use in a later statement';
