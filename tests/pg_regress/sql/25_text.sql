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
