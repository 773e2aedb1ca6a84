-- Privileges on segments.
SET idgen.segment_timeout = '1min';
CREATE ROLE idgen_maker;
CREATE ROLE idgen_drawer;
CREATE ROLE idgen_group;
CREATE ROLE "idgen ""odd"" role";

-- creating requires a grant
CALL outcomes($$
    idgen_maker: segment_create('shop')
    GRANT EXECUTE ON FUNCTION segment_create TO idgen_maker
    idgen_maker: segment_create('shop', start => 10)
    idgen_maker: segment_next('shop')
    idgen_maker: segment_alter('shop', max_step => 5000)
    -- no ordinary role may touch the table, not even the creator
    idgen_maker: SELECT * FROM idgen.segment
    idgen_maker: UPDATE idgen.segment SET max_id = 0
    idgen_maker: DELETE FROM idgen.segment
    idgen_maker: TRUNCATE idgen.segment
    idgen_maker: SELECT count(*) FROM idgen.stat_get_segment() WHERE false
    -- nor its trigger function
    idgen_maker: idgen.segment_row()
    idgen_maker: CREATE TEMP TABLE own ()
    idgen_maker: CREATE TRIGGER own BEFORE INSERT ON own FOR EACH ROW EXECUTE FUNCTION idgen.segment_row()
    SELECT tag, owner, drawers FROM idgen.segment WHERE tag = 'shop'
$$);

-- another role can do nothing
CALL outcomes($$
    idgen_drawer: segment_next('shop')
    idgen_drawer: segment_next_many('shop', 1)
    idgen_drawer: segment_reserve('shop', 1)
    idgen_drawer: segment_alter('shop', max_id => 100)
    idgen_drawer: segment_drop('shop')
    idgen_drawer: segment_grant('shop', 'idgen_drawer')
    idgen_drawer: segment_revoke('shop', 'idgen_drawer')
    idgen_drawer: SELECT tag FROM idgen.stat_segment WHERE tag = 'shop'
    idgen_drawer: segment_next('nowhere')
$$);

-- until it gets a grant
CALL outcomes($$
    idgen_maker: segment_grant('shop', 'idgen_drawer')
    idgen_maker: segment_grant('shop', 'idgen_drawer')
    idgen_drawer: segment_next('shop')
    idgen_drawer: SELECT * FROM segment_next_many('shop', 2)
    idgen_drawer: SELECT * FROM segment_reserve('shop', 2)
    idgen_drawer: SELECT tag, issued FROM idgen.stat_segment WHERE tag = 'shop'
    idgen_drawer: segment_alter('shop', max_id => 100)
    idgen_drawer: segment_grant('shop', 'public')
    SELECT drawers FROM idgen.segment WHERE tag = 'shop'
    -- and no longer after the revoke
    segment_revoke('shop', 'idgen_drawer')
    segment_revoke('shop', 'idgen_drawer')
    idgen_drawer: segment_next('shop')
    -- a NULL that a superuser has written grants nothing
    UPDATE idgen.segment SET drawers = '{NULL}' WHERE tag = 'shop'
    idgen_drawer: segment_next('shop')
    segment_grant('shop', 'idgen_drawer')
    idgen_drawer: segment_next('shop')
    UPDATE idgen.segment SET drawers = '{}' WHERE tag = 'shop'
$$);
-- a grant that is rolled back has no effect
BEGIN;
SELECT segment_grant('shop', 'idgen_drawer');
SET LOCAL ROLE idgen_drawer;
SELECT segment_next('shop');
ROLLBACK;
CALL outcomes($$idgen_drawer: segment_next('shop')$$);

CALL outcomes($$
    -- roles that may read all statistics see this
    GRANT pg_read_all_stats TO idgen_drawer
    idgen_drawer: SELECT tag FROM idgen.stat_segment WHERE tag = 'shop'
    idgen_drawer: segment_next('shop')
    REVOKE pg_read_all_stats FROM idgen_drawer
$$);

-- a column default draws with the rights of the inserting role
CALL outcomes($$
    CREATE TABLE sale (id bigint PRIMARY KEY DEFAULT segment_next('shop'), note text)
    GRANT INSERT (note), SELECT ON sale TO idgen_drawer
    idgen_drawer: INSERT INTO sale (note) VALUES ('without the grant')
    segment_grant('shop', 'idgen_drawer')
    idgen_drawer: INSERT INTO sale (note) VALUES ('with it') RETURNING note
    SELECT id > 0, note FROM sale
    DROP TABLE sale
$$);

-- unknown roles, and unusual names
CALL outcomes($$
    segment_grant('shop', 'nobody_of_this_name')
    segment_grant('shop', '')
    segment_grant('shop', NULL)
    segment_grant(NULL, 'public')
    segment_revoke('shop', 'nobody_of_this_name')
    segment_revoke('shop', NULL)
    segment_grant('nowhere', 'public')
    segment_revoke('nowhere', 'public')
    segment_grant('shop', 'idgen "odd" role')
    "idgen ""odd"" role": SELECT segment_next('shop') > 0 AS drawn
    segment_revoke('shop', 'idgen "odd" role')
    "idgen ""odd"" role": segment_next('shop')
$$);

-- an owner can give it to a role of which it is a member, a superuser to any role
CALL outcomes($$
    idgen_maker: segment_alter('shop', owner => 'idgen_group')
    idgen_maker: segment_alter('shop', owner => 'public')
    GRANT idgen_group TO idgen_maker
    idgen_maker: segment_alter('shop', owner => 'idgen_group')
    -- the old owner is still a member of the new one
    idgen_maker: segment_alter('shop', max_step => 6000)
    REVOKE idgen_group FROM idgen_maker
    idgen_maker: segment_alter('shop', max_step => 7000)
    idgen_maker: segment_next('shop')
$$);
SET ROLE idgen_group;
SELECT segment_next('shop') > 0 AS drawn;
RESET ROLE;
SELECT segment_alter('shop', owner => 'idgen_maker');
-- the owner drops it
SET ROLE idgen_maker;
SELECT segment_drop('shop');
RESET ROLE;

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
