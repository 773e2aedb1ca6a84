-- Keys of public ids, one row for each key of a prefix. A retired key has no secret. Its row stays, because its texts may
-- still be in use: a prefix has at most one key of the short form, ever.
CREATE TABLE idgen.public_key (
    prefix text NOT NULL
        CHECK ((prefix COLLATE pg_catalog."C") ~ '^[a-z]([a-z0-9_]{0,61}[a-z0-9])?$'),
    version int NOT NULL CHECK (version >= 1 AND version <= 1000000000),
    form text NOT NULL CHECK (form = ANY (ARRAY['short', 'long'])),
    secret bytea CHECK (pg_catalog.octet_length(secret) = 32),
    owner regrole NOT NULL,
    -- 0, shown as "-", is PUBLIC.
    users regrole[] NOT NULL DEFAULT '{}'
        CHECK (pg_catalog.array_position(users, NULL) IS NULL
               AND coalesce(pg_catalog.array_ndims(users), 1) = 1),
    created timestamptz NOT NULL DEFAULT pg_catalog.now(),
    retired timestamptz,
    CHECK ((secret IS NULL) = (retired IS NOT NULL))
) USING heap;
CREATE UNIQUE INDEX public_key_key ON idgen.public_key (prefix text_pattern_ops, version);
ALTER TABLE idgen.public_key REPLICA IDENTITY USING INDEX public_key_key;
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
-- The secrets are for dumps by the owner of the database only. Every role may see the rest.
REVOKE ALL ON idgen.public_key FROM PUBLIC;
GRANT SELECT (prefix, version, form, owner, users, created, retired) ON idgen.public_key TO PUBLIC;
GRANT SELECT, INSERT ON idgen.public_key TO pg_database_owner;

-- ANALYZE would keep secrets that are retired or dropped.
ALTER TABLE idgen.public_key ALTER COLUMN secret SET STATISTICS 0;

CREATE UNIQUE INDEX public_key_one_short ON idgen.public_key (prefix text_pattern_ops) WHERE form = 'short';

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

CREATE FUNCTION public_id_define(prefix text, form text DEFAULT 'short') RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_define_wrapper';
COMMENT ON FUNCTION public_id_define IS 'creates a prefix that the caller owns, with a key of the form short or long';
REVOKE EXECUTE ON FUNCTION public_id_define FROM PUBLIC;

CREATE FUNCTION public_id_rotate(prefix text, form text DEFAULT NULL) RETURNS int
LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_rotate_wrapper';
COMMENT ON FUNCTION public_id_rotate IS
    'adds a key to a prefix and returns its version; texts of older keys go on decoding';

CREATE FUNCTION public_id_retire(prefix text, version int) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_retire_wrapper';
COMMENT ON FUNCTION public_id_retire IS 'removes the secret of an older key: its texts no longer decode';

CREATE FUNCTION public_id_drop(prefix text) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_drop_wrapper';
COMMENT ON FUNCTION public_id_drop IS 'drops a prefix with all of its keys';

CREATE FUNCTION public_id_alter(prefix text, owner text) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_alter_wrapper';
COMMENT ON FUNCTION public_id_alter IS 'makes another role the owner of a prefix';

CREATE FUNCTION public_id_grant(prefix text, role text) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_grant_wrapper';
COMMENT ON FUNCTION public_id_grant IS 'lets a role, or public, make and decode texts of a prefix';

CREATE FUNCTION public_id_revoke(prefix text, role text) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_revoke_wrapper';
COMMENT ON FUNCTION public_id_revoke IS 'revokes what public_id_grant granted';

CREATE FUNCTION idgen.public_key_secret() RETURNS bytea
LANGUAGE c AS 'MODULE_PATHNAME', 'public_key_secret_wrapper';
COMMENT ON FUNCTION idgen.public_key_secret IS 'a new secret, for the statements that add a key';
REVOKE EXECUTE ON FUNCTION idgen.public_key_secret FROM PUBLIC;

CREATE FUNCTION public_id(prefix text, id bigint) RETURNS text
STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_wrapper';
COMMENT ON FUNCTION public_id IS 'text of an id, by the newest key of a prefix';

CREATE FUNCTION public_id_decode(prefix text, text text) RETURNS bigint
STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_decode_wrapper';
COMMENT ON FUNCTION public_id_decode IS 'id of a text that public_id made';

CREATE FUNCTION public_id_try_decode(prefix text, text text) RETURNS bigint
STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'public_id_try_decode_wrapper';
COMMENT ON FUNCTION public_id_try_decode IS 'id of a text that public_id made; NULL for another text';

CREATE FUNCTION id_mask(prefix text, id bigint) RETURNS bigint
STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_mask_wrapper';
COMMENT ON FUNCTION id_mask IS 'number that stands for an id, by the newest key of a prefix';

CREATE FUNCTION id_unmask(prefix text, masked bigint) RETURNS bigint
STRICT STABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'id_unmask_wrapper';
COMMENT ON FUNCTION id_unmask IS 'id of a number that id_mask made';

CREATE FUNCTION idgen.public_key_row() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'public_key_row_wrapper';
COMMENT ON FUNCTION idgen.public_key_row IS 'trigger of idgen.public_key: announces changes to all sessions';
REVOKE EXECUTE ON FUNCTION idgen.public_key_row FROM PUBLIC;

CREATE TRIGGER public_key_row AFTER INSERT OR UPDATE OR DELETE ON idgen.public_key
FOR EACH ROW EXECUTE FUNCTION idgen.public_key_row();
COMMENT ON TRIGGER public_key_row ON idgen.public_key IS 'announces changes to all sessions';

ALTER TABLE idgen.public_key ENABLE ALWAYS TRIGGER public_key_row;
