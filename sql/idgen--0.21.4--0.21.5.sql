\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.5'" to load this file. \quit

-- Only what the scripts grant counts, not what the default privileges of the role that runs CREATE EXTENSION have given to
-- others: who writes a table of idgen breaks its promises.
DO $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT relation.oid::pg_catalog.regclass AS relation, acl.privilege_type AS privilege,
               COALESCE(pg_catalog.quote_ident(role.rolname), 'PUBLIC') AS role
        FROM pg_catalog.pg_extension AS extension
        JOIN pg_catalog.pg_depend AS member ON member.refobjid = extension.oid AND member.deptype = 'e'
        JOIN pg_catalog.pg_class AS relation ON member.classid = relation.tableoid AND member.objid = relation.oid
        -- PostgreSQL has recorded them where a script has granted something, and may keep there who is dropped since then.
        LEFT JOIN pg_catalog.pg_init_privs AS initial
            ON initial.classoid = relation.tableoid AND initial.objoid = relation.oid AND initial.objsubid = 0
        CROSS JOIN LATERAL pg_catalog.aclexplode(COALESCE(initial.initprivs, relation.relacl)) AS acl
        LEFT JOIN pg_catalog.pg_roles AS role ON role.oid = acl.grantee
        WHERE extension.extname = 'idgen' AND acl.grantee <> relation.relowner
            AND (role.oid IS NOT NULL OR acl.grantee = 0::oid)
            AND NOT CASE
                WHEN role.rolname = 'pg_database_owner' THEN
                    acl.privilege_type IN ('SELECT', 'INSERT') AND relation.relkind = 'r' AND relation.relname <> 'lease'
                WHEN role.rolname = 'pg_monitor' AND relation.relname = 'segment_server' THEN
                    acl.privilege_type = 'SELECT'
                WHEN role.rolname = 'pg_monitor' OR role.oid IS NULL THEN
                    acl.privilege_type = 'SELECT'
                    AND (relation.relkind = 'v' OR relation.relname IN ('lease_definition', 'worker_pool'))
                ELSE false
            END
    LOOP
        EXECUTE pg_catalog.format('REVOKE %s ON %s FROM %s', given.privilege, given.relation, given.role);
    END LOOP;
END $$;
