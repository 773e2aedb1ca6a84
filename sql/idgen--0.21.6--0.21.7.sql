\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.7'" to load this file. \quit

-- A pattern without backslashes, whose meaning depended on standard_conforming_strings.
CREATE OR REPLACE FUNCTION idgen.snowflake_adopt_columns(
    target regclass, column_name name,
    OUT relation regclass, OUT attnum smallint, OUT name name, OUT has_identity boolean, OUT attrdef oid, OUT value text,
    OUT is_serial boolean, OUT is_snowflake boolean)
RETURNS SETOF record LANGUAGE sql STABLE PARALLEL UNSAFE ROWS 1
SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE member AS (
        SELECT target AS relation
        UNION SELECT i.inhrelid::regclass FROM pg_inherits i JOIN member m ON i.inhparent = m.relation)
    SELECT m.relation, a.attnum, a.attname, a.attidentity <> '', a.attrdef, a.value,
           a.attidentity <> '' OR coalesce(a.value ~ '^([[:alnum:]_]+[.])?nextval[(]', false),
           coalesce(starts_with(a.value, rtrim('@extschema@.snowflake_next()'::regprocedure::text, ')')), false)
    FROM member m CROSS JOIN LATERAL (
        SELECT a.*, d.oid AS attrdef, pg_get_expr(d.adbin, d.adrelid) AS value
        FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = m.relation AND a.attnum > 0 AND NOT a.attisdropped
          AND a.attname = coalesce(column_name, a.attname)
        OFFSET 0) a
$$;

-- The schema is an argument of format(), because its name can have a %. The HINT keeps the arguments of the call.
CREATE OR REPLACE FUNCTION idgen.snowflake_adopt_plan(target regclass, INOUT column_name name, layout text, probe bigint,
                                           OUT statements text[])
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- An argument of format(): the name of a schema can have a %.
    next_call CONSTANT text := format('%s.snowflake_next(%s)', '@extschema@', quote_literal(layout));
    -- As PostgreSQL shows it: without a schema that is in the search path.
    next_value CONSTANT text := format('%s%s)', rtrim('@extschema@.snowflake_next()'::regprocedure::text, ')'),
                                       quote_literal(layout) || '::text');
    given CONSTANT text := concat(', column_name => ' || quote_literal(column_name), ', layout => ' || quote_literal(layout));
    other text;
    candidates name[];
    defaults oid[];
    this record;
BEGIN
    SELECT c.relname INTO other FROM pg_class c WHERE c.oid = target AND NOT pg_has_role(c.relowner, 'USAGE');
    IF other IS NOT NULL THEN
        RAISE EXCEPTION 'must be owner of table %', other USING ERRCODE = '42501';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = target AND c.relkind IN ('r', 'p')) THEN
        RAISE EXCEPTION '"%" is not a table', target USING ERRCODE = '42809';
    END IF;
    SELECT e.extname INTO other FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
    WHERE d.classid = 'pg_class'::regclass AND d.objid = target AND d.deptype = 'e';
    IF other IS NOT NULL THEN
        RAISE EXCEPTION 'table "%" belongs to extension "%"', target, other
            USING ERRCODE = '22023', DETAIL = 'A dump would not have the new default.';
    END IF;

    IF column_name IS NULL THEN
        SELECT array_agg(DISTINCT c.name) INTO candidates
        FROM idgen.snowflake_adopt_columns(target, NULL) c
        JOIN pg_attribute a ON a.attrelid = target AND a.attname = c.name
        JOIN pg_index i ON i.indrelid = target AND i.indisprimary AND a.attnum = ANY (i.indkey)
        WHERE c.is_serial OR c.is_snowflake;
        IF cardinality(candidates) = 1 THEN
            column_name := candidates[1];
        ELSE
            RAISE EXCEPTION 'the primary key of table "%" has no serial or identity column, or several', target
                USING ERRCODE = '42704', HINT = 'Pass the name of the column.';
        END IF;
    END IF;
    SELECT c.* INTO this FROM idgen.snowflake_adopt_columns(target, column_name) c WHERE c.relation = target;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'column "%" of table "%" does not exist', column_name, target USING ERRCODE = '42703';
    END IF;
    SELECT i.inhparent::regclass::text INTO other
    FROM pg_inherits i JOIN pg_attribute a ON a.attrelid = i.inhparent AND a.attname = column_name
    WHERE i.inhrelid = target ORDER BY i.inhseqno LIMIT 1;
    IF other IS NOT NULL THEN
        RAISE EXCEPTION 'table "%" inherits column "%" from table "%"', target, column_name, other
            USING ERRCODE = '22023', HINT = format('Run SELECT %s.snowflake_adopt(%L%s).', '@extschema@', other, given);
    END IF;

    IF NOT EXISTS (SELECT FROM idgen.snowflake_adopt_columns(target, column_name) c WHERE c.is_serial) THEN
        IF this.value = next_value THEN
            statements := '{}';
            RETURN;
        END IF;
        IF this.is_snowflake THEN
            RAISE EXCEPTION 'column "%" of table "%" already has the default %', column_name, target, this.value
                USING ERRCODE = '22023',
                HINT = format('To change its layout, run ALTER TABLE %s ALTER COLUMN %I SET DEFAULT %s.',
                              target, column_name, next_call);
        END IF;
        RAISE EXCEPTION 'column "%" of table "%" is neither serial nor identity', column_name, target
            USING ERRCODE = '22023', DETAIL = format('Its default is %s.', coalesce(this.value, 'NULL'));
    END IF;
    PERFORM idgen.snowflake_adopt_check(target, column_name, probe);

    -- From PostgreSQL 17 on, the identity of a partition is that of its parent.
    statements := ARRAY(
        SELECT format('ALTER TABLE %s ALTER COLUMN %I DROP IDENTITY;', c.relation, column_name)
        FROM idgen.snowflake_adopt_columns(target, column_name) c JOIN pg_class t ON t.oid = c.relation
        WHERE c.has_identity AND c.relation <> target
          AND NOT (t.relispartition AND current_setting('server_version_num')::int >= 170000)
        ORDER BY c.relation::text);
    statements := statements || format(
        'ALTER TABLE %s%s ALTER COLUMN %I SET DEFAULT %s;', target,
        CASE WHEN this.has_identity THEN format(' ALTER COLUMN %I DROP IDENTITY,', column_name) END, column_name, next_call);
    -- A sequence that the column owns is of no use any more, unless something else depends on it.
    defaults := ARRAY(SELECT c.attrdef FROM idgen.snowflake_adopt_columns(target, column_name) c);
    statements := statements || ARRAY(
        SELECT format('DROP SEQUENCE %s;', s.oid::regclass)
        FROM idgen.snowflake_adopt_columns(target, column_name) c
        JOIN pg_depend o ON o.refclassid = 'pg_class'::regclass AND o.refobjid = c.relation AND o.refobjsubid = c.attnum
                        AND o.classid = 'pg_class'::regclass AND o.deptype = 'a'
        JOIN pg_class s ON s.oid = o.objid AND s.relkind = 'S'
        WHERE c.is_serial
          AND NOT EXISTS (
              SELECT FROM pg_depend u WHERE u.refclassid = 'pg_class'::regclass AND u.refobjid = s.oid
                AND NOT (u.classid = 'pg_attrdef'::regclass AND u.objid = ANY (defaults)))
        ORDER BY s.oid::regclass::text);
END
$$;

-- The schema is an argument of format() here too.
CREATE OR REPLACE FUNCTION snowflake_adopt(relation regclass, column_name name DEFAULT NULL, layout text DEFAULT NULL,
                                dry_run boolean DEFAULT true, OUT statement text)
RETURNS SETOF text LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms' SET quote_all_identifiers = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET enable_material = off SET jit = off AS $$
DECLARE
    attempts CONSTANT int := 60;
    drawn bigint := -1;
    highest bigint := -1;
    name name := column_name;
    statements text[];
    observed text[] := '{}';
    sessions text;
BEGIN
    IF relation IS NULL OR dry_run IS NULL THEN
        RAISE EXCEPTION '% must not be null', CASE WHEN relation IS NULL THEN 'relation' ELSE 'dry_run' END
            USING ERRCODE = '22004';
    END IF;
    IF NOT dry_run AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'snowflake_adopt() cannot be called in a REPEATABLE READ or SERIALIZABLE transaction'
            USING ERRCODE = '25001', DETAIL = 'Its snapshot may lack rows with greater ids.', HINT = 'Use READ COMMITTED.';
    END IF;
    -- The first attempt only plans. Each one is a subtransaction: rolling it back releases its locks.
    FOR attempt IN 0 .. attempts LOOP
        -- All later ids of this server are greater than the one drawn.
        IF highest >= drawn THEN
            IF highest >= 0 THEN
                IF layout IS NULL THEN
                    PERFORM @extschema@.snowflake_observe(highest, false);
                ELSE
                    PERFORM @extschema@.snowflake_observe(highest, layout, false);
                END IF;
            END IF;
            drawn := CASE WHEN layout IS NULL THEN @extschema@.snowflake_next() ELSE @extschema@.snowflake_next(layout) END;
        END IF;
        BEGIN
            -- Wait for the first lock without another one, and with it for no other: no session waits in a circle. Writes
            -- wait for it from here on.
            IF attempt > 0 AND NOT dry_run THEN
                EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', relation);
                EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE NOWAIT', relation);
                PERFORM set_config('lock_timeout', '1ms', true);
            END IF;
            SELECT p.* INTO name, statements FROM idgen.snowflake_adopt_plan(relation, name, layout, drawn) p;
            IF cardinality(statements) = 0 THEN
                RETURN;
            END IF;
            SELECT greatest(highest, max(idgen.snowflake_adopt_as_owner(c.relation, format(
                'SELECT %2$I FROM ONLY %1$s WHERE %2$I > %3$L ORDER BY %2$I DESC LIMIT 1', c.relation, c.name, highest))::bigint))
            INTO highest
            FROM idgen.snowflake_adopt_columns(relation, name) c JOIN pg_class t ON t.oid = c.relation
            WHERE t.relkind = 'r';
            IF highest >= drawn THEN
                observed := ARRAY[format('SELECT %s.snowflake_observe(%s%s);', '@extschema@', highest,
                                         ', ' || quote_literal(layout))];
            END IF;
            IF NOT dry_run THEN
                IF attempt = 0 OR highest >= drawn THEN
                    RAISE lock_not_available;
                END IF;
                FOREACH statement IN ARRAY statements LOOP
                    EXECUTE statement;
                END LOOP;
            END IF;
            RETURN QUERY SELECT unnest(observed || statements);
            RETURN;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            SELECT string_agg(DISTINCT coalesce('process ' || l.pid, 'a prepared transaction'), ', ') INTO sessions
            FROM pg_locks l
            WHERE l.granted AND l.pid IS DISTINCT FROM pg_backend_pid() AND l.locktype = 'relation'
              AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
              AND l.relation IN (
                  WITH RECURSIVE member AS (
                      SELECT snowflake_adopt.relation::oid AS id
                      UNION SELECT i.inhrelid FROM pg_inherits i JOIN member m ON i.inhparent = m.id)
                  SELECT m.id FROM member m);
        END;
        -- Let those pass that have queued behind the attempt.
        PERFORM pg_sleep(0.9) WHERE attempt > 0;
    END LOOP;
    RAISE EXCEPTION 'could not lock table "%" in % attempts', relation, attempts
        USING ERRCODE = '55P03',
        DETAIL = format('After the last attempt it was in use by %s.', coalesce(sessions, 'no session')),
        HINT = 'Repeat the call when the long transactions on the table, or its vacuum, have ended.';
END
$$;

-- Operators and functions of the system only, whatever was planted in the schema of the extension.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Where another role than the owner of the extension ran an update, the objects that the update created are that role's: views
-- of the owner could not read its tables, and a REVOKE by either did not concern the rights that the other had given.
DO $$
DECLARE
    member record;
BEGIN
    FOR member IN
        SELECT class, id, format('ALTER %s OWNER TO %s', object, extowner::regrole) AS statement,
               -- As the items of a list of privileges have the name of a role, with quotes where it needs them.
               split_part(makeaclitem(0, owner, 'SELECT', false)::text, '=r/', 2) AS before,
               split_part(makeaclitem(0, extowner, 'SELECT', false)::text, '=r/', 2) AS after
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
        EXECUTE member.statement;
        -- PostgreSQL keeps the initial privileges as the owner before gave them. DROP OWNED takes away those of the owner only.
        UPDATE pg_init_privs SET initprivs = (
            SELECT array_agg((CASE WHEN starts_with(grantee, member.before || '=')
                                   THEN member.after || substr(grantee, length(member.before) + 1) ELSE grantee END
                              || CASE WHEN grantor = member.before THEN member.after ELSE grantor END)::aclitem)
            FROM unnest(initprivs) AS item, regexp_match(item::text, '^(.*/)([^/]+|"([^"]|"")*")$') AS part,
                 LATERAL (SELECT part[1], part[2]) AS roles (grantee, grantor))
        WHERE classoid = member.class AND objoid = member.id;
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
