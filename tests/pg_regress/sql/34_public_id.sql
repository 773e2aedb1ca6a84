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
SELECT id_mask('ord', 1);
\echo :SQLSTATE
-- a number that was masked by nothing is some id
SELECT id_unmask('usr', 0) BETWEEN 0 AND 9223372036854775807 AS some_id;

-- NULL is NULL
SELECT public_id('ord', NULL) IS NULL, public_id(NULL, 1) IS NULL, public_id_decode('ord', NULL) IS NULL,
       public_id_try_decode('ord', NULL) IS NULL, id_mask('usr', NULL) IS NULL, id_unmask('usr', NULL) IS NULL;
-- negative numbers are no ids
SELECT public_id('ord', -1);
\echo :SQLSTATE
SELECT public_id('usr', (-9223372036854775807 - 1));
SELECT id_mask('usr', -1);
SELECT id_unmask('usr', -1);
\echo :SQLSTATE
-- texts that are none
SELECT public_id_decode('usr', '');
\echo :SQLSTATE
SELECT public_id_decode('usr', 'ord_jSvceAeDoUz');
SELECT public_id_decode('usr', 'jSvceAeDoUz');
SELECT public_id_decode('usr', 'usr_jSvceAeDoU');
SELECT public_id_decode('usr', 'usr_jSvceAeDoU0');
SELECT public_id_decode('usr', 'usr_jSvceAeDoUé');
SELECT public_id_decode('usr', 'usr_ZZZZZZZZZZZ');
SELECT public_id_decode('usr', 'usr_c6szXY8m2WZ7pbrdM2JsWQ');
SELECT public_id_decode('ord', 'ord_c6szXY8m2WZ7pbrdM2JsWR');
SELECT public_id_decode('ord', 'ord_ZZZZZZZZZZZZZZZZZZZZZZ');
SELECT count(*) AS tried, count(public_id_try_decode('ord', text)) AS decoded
FROM unnest(ARRAY['', 'ord_', 'ORD_jSvceAeDoUz', ' ord_jSvceAeDoUz', 'ord_jSvceAeDoUz ', 'ord_山', repeat('x', 100000),
                  'ord_ahtwxLFvtKfrABXFQDRvjT', 'ord-jSvceAeDoUz']) text;
-- errors other than of the text stay errors
SELECT public_id_try_decode('nowhere', 'nowhere_jSvceAeDoUz');
\echo :SQLSTATE

-- definitions
SELECT public_id_define('ord');
\echo :SQLSTATE
SELECT public_id_define(prefix) FROM unnest(ARRAY['a', 'a1', 'sk_live', repeat('z', 63)]) prefix;
SELECT public_id_drop(prefix) FROM unnest(ARRAY['a', 'a1', 'sk_live', repeat('z', 63)]) prefix;
SELECT public_id_define('');
\echo :SQLSTATE
SELECT public_id_define('Ord');
SELECT public_id_define('ord_');
SELECT public_id_define('1a');
SELECT public_id_define('é');
SELECT public_id_define(repeat('z', 64));
SELECT public_id_define('other', 'medium');
\echo :SQLSTATE
SELECT public_id_define(NULL);
\echo :SQLSTATE
SELECT public_id_define('other', NULL);
-- the constraints refuse the same rows
\set VERBOSITY sqlstate
INSERT INTO idgen.public_key (prefix, version, form, secret, owner) VALUES ('Ord', 1, 'short', counting(), 'postgres');
INSERT INTO idgen.public_key (prefix, version, form, secret, owner) VALUES (E'a\n', 1, 'short', counting(), 'postgres');
INSERT INTO idgen.public_key (prefix, version, form, secret, owner) VALUES ('a', 1, 'medium', counting(), 'postgres');
INSERT INTO idgen.public_key (prefix, version, form, secret, owner) VALUES ('a', 1, 'long', '\x00', 'postgres');
INSERT INTO idgen.public_key (prefix, version, form, secret, owner) VALUES ('a', 1, 'long', NULL, 'postgres');
INSERT INTO idgen.public_key (prefix, version, form, secret, owner) VALUES ('ord', 9, 'short', counting(), 'postgres');
\set VERBOSITY default
SELECT idgen.public_key_row();
\echo :SQLSTATE
CREATE TEMP TABLE own ();
CREATE TRIGGER own AFTER INSERT ON own FOR EACH ROW EXECUTE FUNCTION idgen.public_key_row();
INSERT INTO own DEFAULT VALUES;
\echo :SQLSTATE
DROP TABLE own;

-- rotation and retirement
SELECT public_id_rotate('usr');
\echo :SQLSTATE
SELECT public_id_rotate('ord', 'short');
\echo :SQLSTATE
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
SELECT public_id_decode('ord', 'ord_jSvceAeDoUz');
\echo :SQLSTATE
SELECT public_id_decode('ord', 'ord_ahtwxLFvtKfrABXFQDRvjt');
SELECT id_unmask('ord', 8129597295730760601);
\echo :SQLSTATE
SELECT public_id_decode('ord', :'newest');
SELECT version, secret IS NULL AS no_secret, retired = now() AS now FROM idgen.public_key WHERE prefix = 'ord' ORDER BY version;
-- not even now, because its texts are still in use
SELECT public_id_rotate('ord', 'short');
SELECT public_id_retire('ord', 4);
\echo :SQLSTATE
SELECT public_id_retire('ord', 5);
\echo :SQLSTATE
SELECT public_id_retire('ord', NULL);
SELECT public_id_rotate('ord', 'medium');
SELECT public_id_rotate(NULL);
SELECT public_id_rotate('nowhere');
\echo :SQLSTATE
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
SELECT public_id('tmp', 5);
\echo :SQLSTATE
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
CREATE ROLE idgen_group;
SET ROLE idgen_maker;
SELECT public_id_define('shop');
\echo :SQLSTATE
SELECT idgen.public_key_secret();
\echo :SQLSTATE
RESET ROLE;
GRANT EXECUTE ON FUNCTION public_id_define TO idgen_maker;
SET ROLE idgen_maker;
SELECT public_id_define('shop');
SELECT public_id_decode('shop', public_id('shop', 3)), id_unmask('shop', id_mask('shop', 3));
-- every role may see the keys, and no ordinary role the secrets
SELECT prefix, version, form, owner, users, retired FROM idgen.public_key WHERE prefix = 'shop';
SELECT secret FROM idgen.public_key;
\echo :SQLSTATE
SELECT * FROM idgen.public_key;
UPDATE idgen.public_key SET secret = '\x';
DELETE FROM idgen.public_key;
SELECT public_id('shop', 3) AS text \gset
SET ROLE idgen_user;
SELECT public_id('shop', 3);
\echo :SQLSTATE
SELECT public_id_decode('shop', :'text') > 0;
\echo :SQLSTATE
\set VERBOSITY terse
SELECT public_id_try_decode('shop', :'text');
SELECT id_mask('shop', 3);
SELECT id_unmask('shop', 3);
SELECT public_id_rotate('shop', 'long');
\echo :SQLSTATE
SELECT public_id_retire('shop', 1);
SELECT public_id_drop('shop');
SELECT public_id_alter('shop', 'idgen_user');
SELECT public_id_grant('shop', 'idgen_user');
SELECT public_id_revoke('shop', 'idgen_user');
RESET ROLE;
GRANT pg_monitor TO idgen_user;
SET ROLE idgen_user;
SELECT secret FROM idgen.public_key;
RESET ROLE;
REVOKE pg_monitor FROM idgen_user;
-- one grant is for both directions
SET ROLE idgen_maker;
SELECT public_id_grant('shop', 'idgen_user'), public_id_grant('shop', 'idgen_user');
SET ROLE idgen_user;
SELECT public_id_decode('shop', :'text'), public_id('shop', 3) = :'text' AS same;
SELECT public_id_drop('shop');
RESET ROLE;
SELECT users FROM idgen.public_key WHERE prefix = 'shop';
SELECT public_id_revoke('shop', 'idgen_user');
SET ROLE idgen_user;
SELECT public_id('shop', 3);
-- a rotation keeps the grants; membership and PUBLIC count
RESET ROLE;
SELECT public_id_grant('shop', 'idgen_group'), public_id_rotate('shop', 'long');
GRANT idgen_group TO idgen_user;
SET ROLE idgen_user;
SELECT public_id_decode('shop', public_id('shop', 3)), public_id_decode('shop', :'text');
RESET ROLE;
REVOKE idgen_group FROM idgen_user;
SET ROLE idgen_user;
SELECT public_id('shop', 3);
RESET ROLE;
SELECT public_id_grant('shop', 'public');
SET ROLE idgen_user;
SELECT public_id_decode('shop', :'text');
RESET ROLE;
SELECT public_id_revoke('shop', 'public');
SELECT public_id_grant('shop', 'nobody_of_this_name');
\echo :SQLSTATE
SELECT public_id_grant('nowhere', 'public');
\echo :SQLSTATE
SELECT public_id_grant('shop', NULL);
-- a new owner
SET ROLE idgen_maker;
SELECT public_id_alter('shop', 'idgen_group');
\echo :SQLSTATE
RESET ROLE;
SELECT public_id_alter('shop', 'idgen_group');
SELECT public_id_alter('shop', NULL);
SET ROLE idgen_maker;
SELECT public_id('shop', 3);
SET ROLE idgen_group;
SELECT public_id_decode('shop', :'text');
RESET ROLE;
-- REASSIGN OWNED and DROP OWNED
REASSIGN OWNED BY idgen_group TO idgen_user;
SELECT public_id_grant('shop', 'idgen_group');
SELECT version, owner, users FROM idgen.public_key WHERE prefix = 'shop' ORDER BY version;
DROP OWNED BY idgen_group;
SELECT version, owner, users FROM idgen.public_key WHERE prefix = 'shop' ORDER BY version;
DROP OWNED BY idgen_user;
SELECT public_id('shop', 3);
\set VERBOSITY default

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
DROP FUNCTION counting();
DROP ROLE idgen_maker, idgen_user, idgen_group;
