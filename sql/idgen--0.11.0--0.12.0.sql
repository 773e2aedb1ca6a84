\echo Use "ALTER EXTENSION idgen UPDATE TO '0.12.0'" to load this file. \quit

-- The settled id.
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

-- Keys of public ids, one row for each key of a prefix. A retired key has no secret. Its row stays, because its texts may
-- still be in use: a prefix has at most one key of the short form, ever.
CREATE TABLE idgen.public_key (
    prefix text NOT NULL
        CHECK ((prefix COLLATE pg_catalog."C") OPERATOR(pg_catalog.~) '^[a-z]([a-z0-9_]{0,61}[a-z0-9])?$'),
    version int NOT NULL CHECK (version OPERATOR(pg_catalog.>=) 1 AND version OPERATOR(pg_catalog.<=) 1000000000),
    form text NOT NULL CHECK (form OPERATOR(pg_catalog.=) ANY (ARRAY['short', 'long'])),
    secret bytea CHECK (pg_catalog.octet_length(secret) OPERATOR(pg_catalog.=) 32),
    owner regrole NOT NULL,
    -- 0, shown as "-", is PUBLIC.
    users regrole[] NOT NULL DEFAULT '{}'
        CHECK (pg_catalog.array_position(users, NULL) IS NULL
               AND coalesce(pg_catalog.array_ndims(users), 1) OPERATOR(pg_catalog.=) 1),
    created timestamptz NOT NULL DEFAULT pg_catalog.now(),
    retired timestamptz,
    PRIMARY KEY (prefix, version),
    CHECK ((secret IS NULL) OPERATOR(pg_catalog.=) (retired IS NOT NULL))
);
-- ANALYZE would keep secrets that are retired or dropped.
ALTER TABLE idgen.public_key ALTER COLUMN secret SET STATISTICS 0;
CREATE UNIQUE INDEX public_key_one_short ON idgen.public_key (prefix) WHERE form OPERATOR(pg_catalog.=) 'short';

-- As for segments, a dump gives the keys of a dropped role to the owner of the database, and omits its grants.
SELECT pg_catalog.pg_extension_config_dump('idgen.public_key', $condition$WHERE false UNION ALL
    SELECT prefix, version, form, secret,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END,
           ARRAY(SELECT granted.role FROM pg_catalog.unnest(users) WITH ORDINALITY AS granted (role, place)
                 WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.=) 0::pg_catalog.oid
                    OR EXISTS (SELECT FROM pg_catalog.pg_roles AS role
                               WHERE role.oid OPERATOR(pg_catalog.=) granted.role::pg_catalog.oid)
                 ORDER BY granted.place),
           created, retired
    FROM idgen.public_key$condition$);

-- Public ids.
CREATE FUNCTION id_mask(prefix text, id bigint) RETURNS bigint STRICT STABLE PARALLEL SAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'id_mask_wrapper';
CREATE FUNCTION id_unmask(prefix text, masked bigint) RETURNS bigint STRICT STABLE PARALLEL SAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'id_unmask_wrapper';
CREATE FUNCTION public_id(prefix text, id bigint) RETURNS text STRICT STABLE PARALLEL SAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_wrapper';
CREATE FUNCTION public_id_alter(prefix text, owner text) RETURNS void VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_alter_wrapper';
CREATE FUNCTION public_id_decode(prefix text, text text) RETURNS bigint STRICT STABLE PARALLEL SAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_decode_wrapper';
CREATE FUNCTION public_id_define(prefix text, form text DEFAULT 'short') RETURNS void VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_define_wrapper';
CREATE FUNCTION public_id_drop(prefix text) RETURNS void VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_drop_wrapper';
CREATE FUNCTION public_id_grant(prefix text, role text) RETURNS void VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_grant_wrapper';
CREATE FUNCTION public_id_retire(prefix text, version int) RETURNS void VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_retire_wrapper';
CREATE FUNCTION public_id_revoke(prefix text, role text) RETURNS void VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_revoke_wrapper';
CREATE FUNCTION public_id_rotate(prefix text, form text DEFAULT NULL) RETURNS int VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_rotate_wrapper';
CREATE FUNCTION public_id_try_decode(prefix text, text text) RETURNS bigint STRICT STABLE PARALLEL SAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_try_decode_wrapper';
CREATE FUNCTION idgen.public_key_row() RETURNS trigger
    LANGUAGE c AS 'MODULE_PATHNAME', 'public_key_row_wrapper';
CREATE FUNCTION idgen.public_key_secret() RETURNS bytea VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'public_key_secret_wrapper';

CREATE TRIGGER public_key_row AFTER INSERT OR UPDATE OR DELETE ON idgen.public_key
    FOR EACH ROW EXECUTE FUNCTION idgen.public_key_row();
ALTER TABLE idgen.public_key ENABLE ALWAYS TRIGGER public_key_row;

COMMENT ON TABLE idgen.public_key IS 'keys of public ids: one row for each key of a prefix';
COMMENT ON COLUMN idgen.public_key.prefix IS 'what the texts begin with, before an underscore';
COMMENT ON COLUMN idgen.public_key.version IS 'number of the key; the highest one makes texts';
COMMENT ON COLUMN idgen.public_key.form IS 'short or long';
COMMENT ON COLUMN idgen.public_key.secret IS '32 random bytes; NULL if the key is retired';
COMMENT ON COLUMN idgen.public_key.owner IS
    'role that may use, rotate, retire, drop, alter and grant; the same for all keys of a prefix';
COMMENT ON COLUMN idgen.public_key.users IS 'roles besides the owner that may make and decode texts; - is PUBLIC';
COMMENT ON COLUMN idgen.public_key.created IS 'time of the definition or the rotation';
COMMENT ON COLUMN idgen.public_key.retired IS 'time of the retirement; NULL if texts of the key decode';
COMMENT ON FUNCTION idgen.public_key_row() IS
    'trigger of idgen.public_key: announces changes to all sessions';
COMMENT ON TRIGGER public_key_row ON idgen.public_key IS 'announces changes to all sessions';
COMMENT ON FUNCTION idgen.public_key_secret() IS 'a new secret, for the statements that add a key';
COMMENT ON FUNCTION public_id(text, bigint) IS 'text of an id, by the newest key of a prefix';
COMMENT ON FUNCTION public_id_decode(text, text) IS 'id of a text that public_id made';
COMMENT ON FUNCTION public_id_try_decode(text, text) IS 'id of a text that public_id made; NULL for another text';
COMMENT ON FUNCTION id_mask(text, bigint) IS 'number that stands for an id, by the newest key of a prefix';
COMMENT ON FUNCTION id_unmask(text, bigint) IS 'id of a number that id_mask made';
COMMENT ON FUNCTION public_id_define(text, text) IS 'creates a prefix that the caller owns, with a key of the form short or long';
COMMENT ON FUNCTION public_id_rotate(text, text) IS
    'adds a key to a prefix and returns its version; texts of older keys go on decoding';
COMMENT ON FUNCTION public_id_retire(text, int) IS 'removes the secret of an older key: its texts no longer decode';
COMMENT ON FUNCTION public_id_drop(text) IS 'drops a prefix with all of its keys';
COMMENT ON FUNCTION public_id_alter(text, text) IS 'makes another role the owner of a prefix';
COMMENT ON FUNCTION public_id_grant(text, text) IS 'lets a role, or public, make and decode texts of a prefix';
COMMENT ON FUNCTION public_id_revoke(text, text) IS 'revokes what public_id_grant granted';

-- The creator owns the prefix. The secrets are for dumps by the owner of the database only; every role may see the rest.
REVOKE EXECUTE ON FUNCTION public_id_define(text, text) FROM PUBLIC;
-- For the trigger and the statements of idgen.public_key only.
REVOKE EXECUTE ON FUNCTION idgen.public_key_row(), idgen.public_key_secret() FROM PUBLIC;
REVOKE ALL ON idgen.public_key FROM PUBLIC;
GRANT SELECT (prefix, version, form, owner, users, created, retired) ON idgen.public_key TO PUBLIC;
GRANT SELECT, INSERT ON idgen.public_key TO pg_database_owner;
