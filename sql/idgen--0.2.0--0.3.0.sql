\echo Use "ALTER EXTENSION idgen UPDATE TO '0.3.0'" to load this file. \quit

-- Ids as text.
CREATE FUNCTION snowflake_encode(id bigint, format text) RETURNS text
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_encode_wrapper';
CREATE FUNCTION snowflake_decode(text text, format text) RETURNS bigint
IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_decode_wrapper';
COMMENT ON FUNCTION snowflake_encode(bigint, text) IS
    'an id as text: base2, base32, base36, base58, base62, base64, hex, or sort32 and sort62, which sort as the ids do by COLLATE "C"';
COMMENT ON FUNCTION snowflake_decode(text, text) IS
    'the id of a text in one of the formats of snowflake_encode';
