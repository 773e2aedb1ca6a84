-- REASSIGN OWNED and DROP OWNED include segments and lease definitions.
SET idgen.segment_timeout = '1min';
CREATE ROLE idgen_leaver;
CREATE ROLE idgen_heir;
CREATE ROLE idgen_other;
CREATE VIEW owned AS
    SELECT 'segment' AS kind, tag AS name, owner, drawers FROM idgen.segment WHERE tag IN ('hers', 'others')
    UNION ALL SELECT 'lease', name, owner, NULL FROM idgen.lease_definition;
GRANT EXECUTE ON FUNCTION segment_create, lease_define TO idgen_leaver, idgen_other, idgen_heir;
SET ROLE idgen_leaver;
SELECT segment_create('hers'), lease_define('job', slots => 2);
SET ROLE idgen_other;
SELECT segment_create('others'), segment_grant('others', 'idgen_leaver'), segment_grant('others', 'public');
SELECT lease_define('others');
-- a role that may not reassign changes nothing
-- Without the DETAIL, which PostgreSQL adds from 16 on.
\set VERBOSITY terse
SET ROLE idgen_heir;
REASSIGN OWNED BY idgen_leaver TO idgen_heir;
\echo :SQLSTATE
DROP OWNED BY idgen_leaver;
\echo :SQLSTATE
\set VERBOSITY default
RESET ROLE;
SELECT * FROM owned ORDER BY kind, name;

SELECT segment_next('hers');
BEGIN;
REASSIGN OWNED BY idgen_leaver TO idgen_heir;
SELECT * FROM owned ORDER BY kind, name;
ROLLBACK;
SELECT count(*) FROM owned WHERE owner = 'idgen_leaver'::regrole;
REASSIGN OWNED BY idgen_leaver, idgen_other TO idgen_heir;
SELECT * FROM owned ORDER BY kind, name;
-- the new owner continues the segment
CALL outcomes($$
    idgen_heir: segment_next('hers')
    idgen_heir: segment_alter('hers', max_step => 2000), lease_define('job', slots => 3)
    idgen_leaver: segment_next('hers')
$$);

-- DROP OWNED removes the grants too
CALL outcomes($$
    DROP OWNED BY idgen_leaver
    SELECT * FROM owned ORDER BY kind, name
$$);
-- a held lease prevents it
SELECT token FROM lease_acquire('job', ttl => '1 hour') \gset
DROP OWNED BY idgen_heir;
\echo :SQLSTATE
SELECT count(*) FROM owned;
SELECT lease_release('job', :token);
SET ROLE idgen_heir;
DROP OWNED BY CURRENT_USER;
RESET ROLE;
SELECT * FROM owned ORDER BY kind, name;
SELECT name FROM idgen.leases WHERE name = 'job';
CALL outcomes($$segment_next('hers')$$);

-- nothing else depends on the roles
DROP OWNED BY idgen_leaver, idgen_heir, idgen_other;
DROP VIEW owned;
DROP ROLE idgen_leaver, idgen_heir, idgen_other;
RESET idgen.segment_timeout;
