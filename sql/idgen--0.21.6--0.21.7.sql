\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.7'" to load this file. \quit

-- Operators and functions of the system only, whatever was planted in the schema of the extension.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Where another role than the owner of the extension ran an update, the objects that the update created are that role's: views
-- of the owner could not read its tables, and a REVOKE by either did not concern the rights that the other had given.
DO $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT format('ALTER %s OWNER TO %s', object, extowner::regrole)
        FROM (
            SELECT 'pg_namespace'::regclass, oid, nspowner, format('SCHEMA %s', oid::regnamespace) FROM pg_namespace
            UNION ALL
            SELECT 'pg_class'::regclass, oid, relowner,
                   format('%s %s', CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, oid::regclass)
            FROM pg_class
            UNION ALL
            SELECT 'pg_proc'::regclass, oid, proowner, format('ROUTINE %s', oid::regprocedure) FROM pg_proc
        ) AS member (class, id, owner, object)
        JOIN pg_depend ON classid = class AND objid = id AND refclassid = 'pg_extension'::regclass AND deptype = 'e'
        JOIN pg_extension AS extension ON extension.oid = refobjid AND extname = 'idgen'
        WHERE owner <> extowner
    LOOP
        EXECUTE statement;
    END LOOP;
END $$;

-- Earlier updates copied the privileges of functions, with grantors that did not own the copies, and left dependencies of roles
-- without a privilege, or two of one: such a role could not be dropped.
DO $$
DECLARE
    routine record;
    privileges aclitem[];
BEGIN
    FOR routine IN
        SELECT member.oid, proowner AS owner, proacl
        FROM pg_proc AS member
        JOIN pg_depend ON classid = 'pg_proc'::regclass AND objid = member.oid AND refclassid = 'pg_extension'::regclass
                      AND deptype = 'e'
        JOIN pg_extension AS extension ON extension.oid = refobjid AND extname = 'idgen'
    LOOP
        SELECT array_agg(makeaclitem(holder, giver, 'EXECUTE', may_grant)) INTO privileges
        FROM (
            SELECT CASE WHEN grantee = grantor THEN routine.owner ELSE grantee END,
                   CASE WHEN grantor IN (SELECT option.grantee FROM aclexplode(routine.proacl) AS option WHERE is_grantable)
                        THEN grantor ELSE routine.owner END,
                   bool_or(is_grantable)
            FROM aclexplode(routine.proacl)
            WHERE grantee IN (0, grantor) OR grantee IN (SELECT oid FROM pg_authid)
            GROUP BY 1, 2
        ) AS given (holder, giver, may_grant);
        IF NOT (privileges @> routine.proacl AND routine.proacl @> privileges) THEN
            UPDATE pg_proc SET proacl = privileges WHERE oid = routine.oid;
        END IF;
        DELETE FROM pg_shdepend
        WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND classid = 'pg_proc'::regclass AND objid = routine.oid AND deptype = 'a';
        -- The roles that initdb makes have no dependencies.
        INSERT INTO pg_shdepend (dbid, classid, objid, objsubid, refclassid, refobjid, deptype)
        SELECT DISTINCT (SELECT oid FROM pg_database WHERE datname = current_database()),
                        'pg_proc'::regclass::oid, routine.oid, 0, 'pg_authid'::regclass::oid, role, 'a'::"char"
        FROM aclexplode(privileges), unnest(ARRAY[grantee, grantor]) AS role
        WHERE role <> routine.owner AND role >= 12000::oid;
    END LOOP;
END $$;

-- The default privileges of the role that runs the update gave others rights to the tables that it creates. Those of a table that
-- was there before may have been granted on purpose: the page "Upgrading" has a query for them. Its membership in the
-- extension is recorded when it is created, and never changed.
DO $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT format('REVOKE %s%s ON %s FROM %s CASCADE', CASE WHEN is_meant THEN 'GRANT OPTION FOR ' END, privilege_type,
                      object, COALESCE(quote_ident(rolname), 'PUBLIC'))
        FROM (
            SELECT relkind, relname, format('%s %s', CASE relkind WHEN 'S' THEN 'SEQUENCE' END, relation.oid::regclass),
                   relowner, relacl
            FROM pg_class AS relation
            JOIN pg_namespace AS schema ON schema.oid = relnamespace
            JOIN pg_depend AS membership ON classid = 'pg_class'::regclass AND objid = relation.oid AND deptype = 'e'
            WHERE nspname = 'idgen' AND relkind IN ('r', 'v', 'S')
              AND age(membership.xmin) <= age(pg_current_xact_id()::xid)
        ) AS created (kind, name, object, owner, acl)
        CROSS JOIN LATERAL aclexplode(acl)
        LEFT JOIN pg_roles AS role ON role.oid = grantee
        CROSS JOIN LATERAL (SELECT CASE
            WHEN rolname = 'pg_database_owner' THEN
                kind = 'r' AND name <> 'lease' AND privilege_type IN ('SELECT', 'INSERT')
            WHEN rolname <> 'pg_monitor' THEN false
            WHEN kind = 'S' OR privilege_type <> 'SELECT' THEN false
            ELSE kind = 'v' OR name IN ('lease_definition', 'worker_pool')
                OR name = 'segment_server' AND rolname IS NOT NULL
        END) AS rule (is_meant)
        WHERE grantee <> owner AND (is_grantable OR NOT is_meant)
    LOOP
        EXECUTE statement;
    END LOOP;
END $$;
