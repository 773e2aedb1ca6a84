CREATE FUNCTION idgen.reset_stats() RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'reset_stats_wrapper';
COMMENT ON FUNCTION idgen.reset_stats IS 'sets the counters of all views to zero';
REVOKE EXECUTE ON FUNCTION idgen.reset_stats FROM PUBLIC;

CREATE FUNCTION idgen.status() RETURNS jsonb
LANGUAGE c AS 'MODULE_PATHNAME', 'status_wrapper';
COMMENT ON FUNCTION idgen.status IS 'versions, settings, worker id and checks';
GRANT EXECUTE ON FUNCTION idgen.status TO pg_monitor;

CREATE FUNCTION idgen.stat_get_checks(
    OUT "check" text, OUT ok boolean, OUT severity text, OUT since timestamptz, OUT affects text, OUT message text,
    OUT action text) RETURNS SETOF record
LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_checks_wrapper';
COMMENT ON FUNCTION idgen.stat_get_checks IS 'rows of the view idgen.checks';
GRANT EXECUTE ON FUNCTION idgen.stat_get_checks TO pg_monitor;

CREATE VIEW idgen.checks AS
SELECT "check", ok, severity, since, affects, message, action FROM idgen.stat_get_checks();
COMMENT ON VIEW idgen.checks IS 'what fails on this server and in this database, since when, and what to do';
COMMENT ON COLUMN idgen.checks."check" IS 'name of the check';
COMMENT ON COLUMN idgen.checks.ok IS 'false if it fails';
COMMENT ON COLUMN idgen.checks.severity IS
    'of a check that fails: error if calls fail or a promise may be broken, warning if they still succeed';
COMMENT ON COLUMN idgen.checks.since IS 'when it began to fail; NULL if that is not known';
COMMENT ON COLUMN idgen.checks.affects IS 'segments, pools, processes or kinds of ids that it is about, the first five';
COMMENT ON COLUMN idgen.checks.message IS 'the state';
COMMENT ON COLUMN idgen.checks.action IS 'what to do';
GRANT SELECT ON idgen.checks TO PUBLIC, pg_monitor;

-- Only what these scripts grant counts, not what the default privileges of the role that runs CREATE EXTENSION have given to
-- others: who writes a table of idgen breaks its promises.
DO $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT CASE WHEN is_meant THEN 'GRANT OPTION FOR ' ELSE '' END AS what, acl.privilege_type AS privilege,
               object.name AS object, COALESCE(pg_catalog.quote_ident(role.rolname), 'PUBLIC') AS role
        FROM (
            SELECT 'SCHEMA idgen', schema.nspowner, schema.nspacl, 's', schema.nspname
            FROM pg_catalog.pg_namespace AS schema WHERE schema.nspname = 'idgen'
            UNION ALL
            SELECT relation.oid::pg_catalog.regclass::text, relation.relowner, relation.relacl, relation.relkind, relation.relname
            FROM pg_catalog.pg_namespace AS schema
            JOIN pg_catalog.pg_class AS relation ON relation.relnamespace = schema.oid
            WHERE schema.nspname = 'idgen' AND relation.relkind IN ('r', 'v')
        ) AS object (name, owner, acl, kind, plain_name)
        CROSS JOIN LATERAL pg_catalog.aclexplode(object.acl) AS acl
        LEFT JOIN pg_catalog.pg_roles AS role ON role.oid = acl.grantee
        CROSS JOIN LATERAL (SELECT CASE
            WHEN role.rolname = 'pg_database_owner' THEN
                acl.privilege_type IN ('SELECT', 'INSERT') AND object.kind = 'r' AND object.plain_name <> 'lease'
            WHEN role.rolname = 'pg_monitor' AND object.plain_name = 'segment_server' THEN
                acl.privilege_type = 'SELECT'
            WHEN (role.rolname = 'pg_monitor' OR role.oid IS NULL) AND object.kind = 's' THEN
                acl.privilege_type = 'USAGE'
            WHEN role.rolname = 'pg_monitor' OR role.oid IS NULL THEN
                acl.privilege_type = 'SELECT'
                AND (object.kind = 'v' OR object.plain_name IN ('lease_definition', 'worker_pool'))
            ELSE false
        END) AS rule (is_meant)
        WHERE acl.grantee <> object.owner AND (acl.is_grantable OR NOT is_meant)
    LOOP
        EXECUTE pg_catalog.format('REVOKE %s%s ON %s FROM %s', given.what, given.privilege, given.object, given.role);
    END LOOP;
END $$;
