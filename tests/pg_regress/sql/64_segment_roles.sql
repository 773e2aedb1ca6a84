-- Privileges on segments.
SET idgen.segment_timeout = '1min';
CREATE ROLE idgen_maker;
CREATE ROLE idgen_drawer;
CREATE ROLE idgen_group;
CREATE ROLE "idgen ""odd"" role";

-- creating requires a grant
SET ROLE idgen_maker;
SELECT segment_create('shop');
\echo :SQLSTATE
RESET ROLE;
GRANT EXECUTE ON FUNCTION segment_create TO idgen_maker;
SET ROLE idgen_maker;
SELECT segment_create('shop', start => 10);
SELECT segment_next('shop');
SELECT segment_alter('shop', max_step => 5000);
-- no ordinary role may touch the table, not even the creator
SELECT * FROM idgen.segment;
\echo :SQLSTATE
UPDATE idgen.segment SET max_id = 0;
DELETE FROM idgen.segment;
TRUNCATE idgen.segment;
SELECT count(*) FROM idgen.stat_get_segment() WHERE false;
-- nor its trigger function
SELECT idgen.segment_row();
\echo :SQLSTATE
CREATE TEMP TABLE own ();
CREATE TRIGGER own BEFORE INSERT ON own FOR EACH ROW EXECUTE FUNCTION idgen.segment_row();
RESET ROLE;
SELECT tag, owner, drawers FROM idgen.segment WHERE tag = 'shop';

-- another role can do nothing
SET ROLE idgen_drawer;
SELECT segment_next('shop');
\echo :SQLSTATE
SELECT segment_next_many('shop', 1);
\echo :SQLSTATE
SELECT segment_reserve('shop', 1);
\echo :SQLSTATE
SELECT segment_alter('shop', max_id => 100);
\echo :SQLSTATE
SELECT segment_drop('shop');
SELECT segment_grant('shop', 'idgen_drawer');
SELECT segment_revoke('shop', 'idgen_drawer');
SELECT tag FROM idgen.stat_segment WHERE tag = 'shop';
SELECT segment_next('nowhere');

-- until it gets a grant
SET ROLE idgen_maker;
SELECT segment_grant('shop', 'idgen_drawer');
SELECT segment_grant('shop', 'idgen_drawer');
SET ROLE idgen_drawer;
SELECT segment_next('shop');
SELECT * FROM segment_next_many('shop', 2);
SELECT * FROM segment_reserve('shop', 2);
SELECT tag, issued FROM idgen.stat_segment WHERE tag = 'shop';
SELECT segment_alter('shop', max_id => 100);
SELECT segment_grant('shop', 'public');
RESET ROLE;
SELECT drawers FROM idgen.segment WHERE tag = 'shop';
-- and no longer after the revoke
SELECT segment_revoke('shop', 'idgen_drawer');
SELECT segment_revoke('shop', 'idgen_drawer');
SET ROLE idgen_drawer;
SELECT segment_next('shop');
-- a grant that is rolled back has no effect
RESET ROLE;
BEGIN;
SELECT segment_grant('shop', 'idgen_drawer');
SET LOCAL ROLE idgen_drawer;
SELECT segment_next('shop');
ROLLBACK;
SET ROLE idgen_drawer;
SELECT segment_next('shop');

-- by membership, as long as it lasts
RESET ROLE;
SELECT segment_grant('shop', 'idgen_group');
GRANT idgen_group TO idgen_drawer;
SET ROLE idgen_drawer;
SELECT segment_next('shop');
RESET ROLE;
REVOKE idgen_group FROM idgen_drawer;
SET ROLE idgen_drawer;
SELECT segment_next('shop');
-- PUBLIC
RESET ROLE;
SELECT segment_grant('shop', 'public');
SELECT drawers FROM idgen.segment WHERE tag = 'shop';
SET ROLE idgen_drawer;
SELECT segment_next('shop');
SELECT tag FROM idgen.stat_segment WHERE tag = 'shop';
RESET ROLE;
SELECT segment_revoke('shop', 'public');
SET ROLE idgen_drawer;
SELECT segment_next('shop');
RESET ROLE;
-- roles that may read all statistics see this
GRANT pg_read_all_stats TO idgen_drawer;
SET ROLE idgen_drawer;
SELECT tag FROM idgen.stat_segment WHERE tag = 'shop';
SELECT segment_next('shop');
RESET ROLE;
REVOKE pg_read_all_stats FROM idgen_drawer;

-- a column default draws with the rights of the inserting role
CREATE TABLE sale (id bigint PRIMARY KEY DEFAULT segment_next('shop'), note text);
GRANT INSERT (note), SELECT ON sale TO idgen_drawer;
SET ROLE idgen_drawer;
INSERT INTO sale (note) VALUES ('without the grant');
RESET ROLE;
SELECT segment_grant('shop', 'idgen_drawer');
SET ROLE idgen_drawer;
INSERT INTO sale (note) VALUES ('with it') RETURNING note;
RESET ROLE;
DROP TABLE sale;

-- unknown roles, and unusual names
SELECT segment_grant('shop', 'nobody_of_this_name');
\echo :SQLSTATE
SELECT segment_grant('shop', '');
SELECT segment_grant('shop', NULL);
\echo :SQLSTATE
SELECT segment_grant(NULL, 'public');
SELECT segment_revoke('shop', 'nobody_of_this_name');
SELECT segment_revoke('shop', NULL);
SELECT segment_grant('nowhere', 'public');
\echo :SQLSTATE
SELECT segment_revoke('nowhere', 'public');
SELECT segment_grant('shop', 'idgen "odd" role');
SET ROLE "idgen ""odd"" role";
SELECT segment_next('shop') > 0 AS drawn;
RESET ROLE;
SELECT segment_revoke('shop', 'idgen "odd" role');
SET ROLE "idgen ""odd"" role";
SELECT segment_next('shop');
RESET ROLE;

-- an owner can give it to a role of which it is a member, a superuser to any role
SET ROLE idgen_maker;
SELECT segment_alter('shop', owner => 'idgen_group');
\echo :SQLSTATE
SELECT segment_alter('shop', owner => 'public');
RESET ROLE;
GRANT idgen_group TO idgen_maker;
SET ROLE idgen_maker;
SELECT segment_alter('shop', owner => 'idgen_group');
-- the old owner is still a member of the new one
SELECT segment_alter('shop', max_step => 6000);
RESET ROLE;
REVOKE idgen_group FROM idgen_maker;
SET ROLE idgen_maker;
SELECT segment_alter('shop', max_step => 7000);
SELECT segment_next('shop');
SET ROLE idgen_group;
SELECT segment_next('shop') > 0 AS drawn;
RESET ROLE;
SELECT segment_alter('shop', owner => 'idgen_maker');
-- the owner drops it
SET ROLE idgen_maker;
SELECT segment_drop('shop');
RESET ROLE;

-- the search_path of the caller has no effect
CREATE SCHEMA own;
CREATE FUNCTION own.pg_has_role(oid, oid, text) RETURNS bool LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION own.never(bigint, bigint) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RAISE ''taken in''; END';
CREATE OPERATOR own.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = own.never);
CREATE OPERATOR own.>= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = own.never);
CREATE OPERATOR own.< (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = own.never);
CREATE OPERATOR own.<= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = own.never);
SET search_path = own, pg_catalog, public;
SELECT segment_create('safe');
SELECT segment_next('safe'), segment_reserve('safe', 2);
SELECT segment_alter('safe', max_step => 5000), segment_grant('safe', 'public'), segment_revoke('safe', 'public');
SELECT tag, issued FROM idgen.stat_segment WHERE tag OPERATOR(pg_catalog.=) 'safe';
SELECT segment_drop('safe');
RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA own CASCADE;
RESET client_min_messages;

-- the settings
SET ROLE idgen_drawer;
SET idgen.segment_timeout = '1s';
RESET idgen.segment_timeout;
SET idgen.segment_low_water = 10;
\echo :SQLSTATE
SET idgen.max_segments = 10;
\set VERBOSITY sqlstate
SET idgen.segment_timeout = -1;
\set VERBOSITY default
RESET ROLE;
REVOKE EXECUTE ON FUNCTION segment_create FROM idgen_maker;
DROP ROLE idgen_maker, idgen_drawer, idgen_group, "idgen ""odd"" role";
