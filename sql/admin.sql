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
-- others: who writes a table of idgen, or sets the sequence, breaks its promises. The page "Upgrading" has this query too.
DO $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT pg_catalog.format('REVOKE %s%s ON %s FROM %s CASCADE;', CASE WHEN is_meant THEN 'GRANT OPTION FOR ' END,
                                 privilege_type, object, COALESCE(pg_catalog.quote_ident(rolname), 'PUBLIC'))
        FROM (
            SELECT 'n', nspname, 'SCHEMA idgen', nspowner, nspacl
            FROM pg_catalog.pg_namespace WHERE nspname = 'idgen'
            UNION ALL
            SELECT relkind, relname, pg_catalog.format('%s idgen.%I', CASE relkind WHEN 'S' THEN 'SEQUENCE' END, relname),
                   relowner, relacl
            FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace AS schema ON schema.oid = relnamespace
            WHERE nspname = 'idgen' AND relkind IN ('r', 'v', 'S')
        ) AS created (kind, name, object, owner, acl)
        CROSS JOIN LATERAL pg_catalog.aclexplode(acl)
        LEFT JOIN pg_catalog.pg_roles AS role ON role.oid = grantee
        CROSS JOIN LATERAL (SELECT CASE
            WHEN rolname = 'pg_database_owner' THEN
                kind = 'r' AND name <> 'lease' AND privilege_type IN ('SELECT', 'INSERT')
            WHEN rolname <> 'pg_monitor' THEN false
            -- To pg_monitor, and to PUBLIC.
            WHEN kind = 'n' THEN privilege_type = 'USAGE'
            WHEN kind = 'S' OR privilege_type <> 'SELECT' THEN false
            ELSE kind = 'v' OR name IN ('lease_definition', 'worker_pool')
                OR name = 'segment_server' AND rolname IS NOT NULL
        END) AS rule (is_meant)
        WHERE grantee <> owner AND (is_grantable OR NOT is_meant)
    LOOP
        EXECUTE statement;
    END LOOP;
END $$;
