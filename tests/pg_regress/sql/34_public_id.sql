-- Public ids: texts of ids under a key.
CREATE FUNCTION counting() RETURNS bytea LANGUAGE sql AS $$
    SELECT decode(string_agg(lpad(to_hex(n), 2, '0'), '' ORDER BY n), 'hex') FROM generate_series(0, 31) n
$$;
SELECT public_id_define('ord'), public_id_define('usr', 'short'), public_id_define('inv', 'long');
SELECT prefix, version, form, owner::text = current_user AS mine, users, created = now() AS now, retired,
       octet_length(secret) AS bytes
FROM idgen.public_key ORDER BY prefix;
-- secrets are random
SELECT count(DISTINCT secret) FROM idgen.public_key;
-- a text is its prefix and 11 or 22 characters
SELECT public_id('ord', 7) ~ '^ord_[1-9a-km-zA-HJ-NP-Z]{11}$' AS short, public_id('inv', 7) ~ '^inv_[1-9a-km-zA-HJ-NP-Z]{22}$' AS long;
SELECT count(DISTINCT public_id('ord', n)) AS texts, bool_and(public_id_decode('ord', public_id('ord', n)) = n) AS decoded,
       bool_and(id_unmask('ord', id_mask('ord', n)) = n AND id_mask('ord', n) >= 0) AS unmasked
FROM generate_series(1, 1000) n;

-- the texts of a known secret; a session that has used the old one notices
UPDATE idgen.public_key SET secret = counting();
SELECT id, id_mask('ord', id), public_id('ord', id), public_id_decode('ord', public_id('ord', id)) = id AS same
FROM unnest(ARRAY[0, 1, 9223372036854775807]) id;
SELECT id_mask('usr', 1), id_unmask('usr', 5733542033166122805);
SELECT public_id_drop('inv'), public_id_rotate('ord', 'long');
UPDATE idgen.public_key SET secret = counting();
SELECT id, public_id('ord', id), public_id_decode('ord', public_id('ord', id)) = id AS same
FROM unnest(ARRAY[0, 1, 9223372036854775807]) id;
-- after the rotation, old texts and masked numbers are still read
SELECT public_id_decode('ord', 'ord_jSvceAeDoUz'), public_id_try_decode('ord', 'ord_2QuNpqi7rZN'), id_unmask('ord', 8129597295730760601);
CALL outcomes($$id_mask('ord', 1)$$);
-- a number that was masked by nothing is some id
SELECT id_unmask('usr', 0) BETWEEN 0 AND 9223372036854775807 AS some_id;

-- NULL is NULL
SELECT public_id('ord', NULL) IS NULL, public_id(NULL, 1) IS NULL, public_id_decode('ord', NULL) IS NULL,
       public_id_try_decode('ord', NULL) IS NULL, id_mask('usr', NULL) IS NULL, id_unmask('usr', NULL) IS NULL;
-- negative numbers are no ids
CALL outcomes($$
    public_id('ord', -1)
    public_id('usr', (-9223372036854775807 - 1))
    id_mask('usr', -1)
    id_unmask('usr', -1)
    -- texts that are none
    public_id_decode('usr', '')
    public_id_decode('usr', 'ord_jSvceAeDoUz')
    public_id_decode('usr', 'jSvceAeDoUz')
    public_id_decode('usr', 'usr_jSvceAeDoU')
    public_id_decode('usr', 'usr_jSvceAeDoU0')
    public_id_decode('usr', 'usr_jSvceAeDoUé')
    public_id_decode('usr', 'usr_ZZZZZZZZZZZ')
    public_id_decode('usr', 'usr_c6szXY8m2WZ7pbrdM2JsWQ')
    public_id_decode('ord', 'ord_c6szXY8m2WZ7pbrdM2JsWR')
    public_id_decode('ord', 'ord_ZZZZZZZZZZZZZZZZZZZZZZ')
$$);
SELECT count(*) AS tried, count(public_id_try_decode('ord', text)) AS decoded
FROM unnest(ARRAY['', 'ord_', 'ORD_jSvceAeDoUz', ' ord_jSvceAeDoUz', 'ord_jSvceAeDoUz ', 'ord_山', repeat('x', 100000),
                  'ord_ahtwxLFvtKfrABXFQDRvjT', 'ord-jSvceAeDoUz']) text;
-- errors other than of the text stay errors
CALL outcomes($$
    public_id_try_decode('nowhere', 'nowhere_jSvceAeDoUz')
    -- also for a prefix that cannot be defined
    public_id('ORD', 1)
    public_id('', 1)
    id_mask(repeat('z', 64), 1)
    public_id_try_decode('ORD', 'ORD_jSvceAeDoUz')
    public_id_rotate('ORD')
    public_id_drop('ORD')
$$);

-- definitions
CALL outcomes($$public_id_define('ord')$$);
SELECT public_id_define(prefix) FROM unnest(ARRAY['a', 'a1', 'sk_live', repeat('z', 63)]) prefix;
SELECT public_id_drop(prefix) FROM unnest(ARRAY['a', 'a1', 'sk_live', repeat('z', 63)]) prefix;
CALL outcomes($$
    public_id_define('')
    public_id_define('Ord')
    public_id_define('ord_')
    public_id_define('1a')
    public_id_define('é')
    public_id_define(repeat('z', 64))
    public_id_define('other', 'medium')
    public_id_define(NULL)
    public_id_define('other', NULL)
$$);
CALL outcomes($$INSERT INTO idgen.public_key (prefix, version, form, secret, owner) VALUES (E'a\n', 1, 'long', sha256('x'), 'postgres')$$);
CALL outcomes($$idgen.public_key_row()$$);
CREATE TEMP TABLE own ();
CREATE TRIGGER own AFTER INSERT ON own FOR EACH ROW EXECUTE FUNCTION idgen.public_key_row();
CALL outcomes($$INSERT INTO own DEFAULT VALUES$$);
DROP TABLE own;

-- rotation and retirement
CALL outcomes($$public_id_rotate('usr')$$);
CALL outcomes($$public_id_rotate('ord', 'short')$$);
SELECT public_id_rotate('ord'), public_id_rotate('ord', 'long');
SELECT version, form FROM idgen.public_key WHERE prefix = 'ord' ORDER BY version;
-- the last version: an error without the row, which would have the secret
BEGIN;
INSERT INTO idgen.public_key (prefix, version, form, secret, owner, users)
SELECT prefix, 1000000000, 'long', secret, owner, users FROM idgen.public_key WHERE prefix = 'ord' LIMIT 1;
SELECT public_id_rotate('ord', 'long');
\echo :SQLSTATE
ROLLBACK;
SELECT public_id('ord', 1) AS newest, public_id('ord', 1) <> 'ord_ahtwxLFvtKfrABXFQDRvjt' AS rotated \gset
SELECT :'rotated' AS rotated, public_id_decode('ord', :'newest'), public_id_decode('ord', 'ord_ahtwxLFvtKfrABXFQDRvjt') AS long,
       public_id_decode('ord', 'ord_jSvceAeDoUz') AS short;
SELECT public_id_retire('ord', 1), public_id_retire('ord', 1), public_id_retire('ord', 2);
CALL outcomes($$
    public_id_decode('ord', 'ord_jSvceAeDoUz')
    public_id_decode('ord', 'ord_ahtwxLFvtKfrABXFQDRvjt')
    id_unmask('ord', 8129597295730760601)
$$);
SELECT public_id_decode('ord', :'newest');
SELECT version, secret IS NULL AS no_secret, retired = now() AS now FROM idgen.public_key WHERE prefix = 'ord' ORDER BY version;
-- not even now, because its texts are still in use
CALL outcomes($$
    public_id_rotate('ord', 'short')
    public_id_retire('ord', 4)
    public_id_retire('ord', 5)
    public_id_retire('ord', NULL)
    public_id_rotate('ord', 'medium')
    public_id_rotate(NULL)
    public_id_rotate('nowhere')
$$);
SELECT public_id_define('inv', 'long'), public_id_rotate('inv', 'short');
SELECT length(public_id('inv', 1)), id_unmask('inv', id_mask('inv', 1));

-- a key in an open transaction, and after its rollback
BEGIN;
SELECT public_id_define('tmp');
SELECT public_id_decode('tmp', public_id('tmp', 5));
SAVEPOINT s;
SELECT public_id_rotate('tmp', 'long');
SELECT length(public_id('tmp', 5)) AS long;
ROLLBACK TO s;
SELECT length(public_id('tmp', 5)) AS short;
SAVEPOINT s;
SELECT public_id_drop('tmp');
SELECT public_id('tmp', 5);
ROLLBACK TO s;
SELECT length(public_id('tmp', 5)) AS short;
ROLLBACK;
CALL outcomes($$public_id('tmp', 5)$$);
BEGIN READ ONLY;
SELECT public_id_decode('usr', public_id('usr', 5));
SELECT public_id_define('tmp');
\echo :SQLSTATE
ROLLBACK;

-- an index scan by a text, also for a parameter
CREATE TABLE sale (id bigint PRIMARY KEY, note text);
INSERT INTO sale SELECT n, 'sale ' || n FROM generate_series(1, 10000) n;
ANALYZE sale;
EXPLAIN (COSTS OFF) SELECT * FROM sale WHERE id = public_id_decode('usr', 'usr_jSvceAeDoUz');
PREPARE by_text(text) AS SELECT * FROM sale WHERE id = public_id_try_decode('usr', $1);
SET plan_cache_mode = force_generic_plan;
EXPLAIN (COSTS OFF) EXECUTE by_text('x');
SELECT public_id('usr', 42) AS text \gset
EXECUTE by_text(:'text');
EXECUTE by_text('usr_0');
RESET plan_cache_mode;
-- parallel workers read the keys themselves, also of the transaction that defined them
BEGIN;
SELECT public_id_define('par', 'long');
SET LOCAL parallel_setup_cost = 0;
SET LOCAL parallel_tuple_cost = 0;
SET LOCAL min_parallel_table_scan_size = 0;
SET LOCAL parallel_leader_participation = off;
EXPLAIN (COSTS OFF) SELECT count(*) FROM sale WHERE public_id_decode('par', public_id('par', id)) = id;
SELECT count(*) FROM sale WHERE public_id_decode('par', public_id('par', id)) = id;
ROLLBACK;
DEALLOCATE by_text;
DROP TABLE sale;

-- privileges: defining requires a grant
CREATE ROLE idgen_maker;
CREATE ROLE idgen_user;
CALL outcomes($$
    CREATE ROLE idgen_group
    idgen_maker: public_id_define('shop')
    idgen_maker: idgen.public_key_secret()
    GRANT EXECUTE ON FUNCTION public_id_define TO idgen_maker
    idgen_maker: public_id_define('shop')
    idgen_maker: public_id_decode('shop', public_id('shop', 3)), id_unmask('shop', id_mask('shop', 3))
    -- every role may see the keys, and no ordinary role the secrets
    idgen_maker: SELECT prefix, version, form, owner, users, retired FROM idgen.public_key WHERE prefix = 'shop'
    idgen_maker: SELECT secret FROM idgen.public_key
    idgen_maker: SELECT * FROM idgen.public_key
    idgen_maker: UPDATE idgen.public_key SET secret = '\x'
    idgen_maker: DELETE FROM idgen.public_key
$$);
SET ROLE idgen_maker;
SELECT set_config('test.text', public_id('shop', 3), false) IS NOT NULL AS kept;
RESET ROLE;
CALL outcomes($$
    idgen_user: public_id('shop', 3)
    idgen_user: SELECT public_id_decode('shop', current_setting('test.text')) > 0
    idgen_user: public_id_try_decode('shop', current_setting('test.text'))
    idgen_user: id_mask('shop', 3)
    idgen_user: id_unmask('shop', 3)
    idgen_user: public_id_rotate('shop', 'long')
    idgen_user: public_id_retire('shop', 1)
    idgen_user: public_id_drop('shop')
    idgen_user: public_id_alter('shop', 'idgen_user')
    idgen_user: public_id_grant('shop', 'idgen_user')
    idgen_user: public_id_revoke('shop', 'idgen_user')
    GRANT pg_monitor TO idgen_user
    idgen_user: SELECT secret FROM idgen.public_key
    REVOKE pg_monitor FROM idgen_user
    -- one grant is for both directions
    idgen_maker: public_id_grant('shop', 'idgen_user'), public_id_grant('shop', 'idgen_user')
    idgen_user: SELECT public_id_decode('shop', current_setting('test.text')), public_id('shop', 3) = current_setting('test.text') AS same
    idgen_user: public_id_drop('shop')
    SELECT users FROM idgen.public_key WHERE prefix = 'shop'
    public_id_revoke('shop', 'idgen_user')
    idgen_user: public_id('shop', 3)
    -- a rotation keeps the grants; membership and PUBLIC count
    public_id_grant('shop', 'idgen_group'), public_id_rotate('shop', 'long')
    GRANT idgen_group TO idgen_user
    idgen_user: public_id_decode('shop', public_id('shop', 3)), public_id_decode('shop', current_setting('test.text'))
    REVOKE idgen_group FROM idgen_user
    idgen_user: public_id('shop', 3)
    public_id_grant('shop', 'public')
    idgen_user: public_id_decode('shop', current_setting('test.text'))
    public_id_revoke('shop', 'public')
    public_id_grant('shop', 'nobody_of_this_name')
    public_id_grant('nowhere', 'public')
    public_id_grant('shop', NULL)
    -- a new owner
    idgen_maker: public_id_alter('shop', 'idgen_group')
    public_id_alter('shop', 'idgen_group')
    public_id_alter('shop', NULL)
    idgen_maker: public_id('shop', 3)
    idgen_group: public_id_decode('shop', current_setting('test.text'))
    -- REASSIGN OWNED and DROP OWNED
    REASSIGN OWNED BY idgen_group TO idgen_user
    public_id_grant('shop', 'idgen_group')
    SELECT version, owner, users FROM idgen.public_key WHERE prefix = 'shop' ORDER BY version
    DROP OWNED BY idgen_group
    SELECT version, owner, users FROM idgen.public_key WHERE prefix = 'shop' ORDER BY version
    DROP OWNED BY idgen_user
    public_id('shop', 3)
$$);

-- the search_path of the caller has no effect
CREATE SCHEMA own;
CREATE FUNCTION own.never(text, text) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RAISE ''taken in''; END';
CREATE FUNCTION own.pg_has_role(oid, oid, text) RETURNS bool LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR own.= (LEFTARG = text, RIGHTARG = text, FUNCTION = own.never);
CREATE OPERATOR own.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = own.never);
SET search_path = own, pg_catalog, public;
SELECT public_id_define('safe', 'long'), public_id_rotate('safe'), public_id_retire('safe', 1), public_id_grant('safe', 'public');
SELECT public_id_decode('safe', public_id('safe', 3));
SELECT public_id_revoke('safe', 'public'), public_id_alter('safe', 'idgen_user'), public_id_drop('safe');
RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA own CASCADE;
RESET client_min_messages;
REVOKE EXECUTE ON FUNCTION public_id_define FROM idgen_maker;
SELECT public_id_drop(prefix) FROM (SELECT DISTINCT prefix FROM idgen.public_key) AS keys;
-- statistics keep no secret, also of a table that has become empty
SELECT public_id_define('one', 'long'), public_id_rotate('one');
ANALYZE idgen.public_key;
SELECT public_id_drop('one');
SELECT attname FROM pg_stats WHERE tablename = 'public_key' AND attname IN ('form', 'secret');
DROP FUNCTION counting();
DROP ROLE idgen_maker, idgen_user, idgen_group;
