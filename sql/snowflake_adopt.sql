-- snowflake_adopt() and snowflake_adopt_schema(): turn serial and identity columns into snowflake ids. They run as the
-- caller, who must own the table. Expressions of a table, also those that the planner evaluates, run as the table's owner,
-- by snowflake_adopt_as_owner(). Every function sets its search_path. The procedure commits, so it cannot set one, and
-- names the schema of all that it calls. What runs while the table is locked reads the catalogs by their indexes:
-- snowflake_adopt() has the settings for all of it.

CREATE FUNCTION idgen.snowflake_adopt_as_owner(relation regclass, query text) RETURNS text
STRICT LANGUAGE c AS 'MODULE_PATHNAME', 'snowflake_adopt_as_owner_wrapper';
COMMENT ON FUNCTION idgen.snowflake_adopt_as_owner IS
    'runs a query as the owner of a table, in a security-restricted operation, for snowflake_adopt';

-- A column, or each one, of a table and of all that inherit from it.
CREATE FUNCTION idgen.snowflake_adopt_columns(
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
COMMENT ON FUNCTION idgen.snowflake_adopt_columns IS
    'columns of a table and of those that inherit from it, for snowflake_adopt';

-- Columns that get the ids of a column: its own, in each table that inherits it, and those that reference them. A domain has
-- the type that it is based on.
CREATE FUNCTION idgen.snowflake_adopt_holders(
    target regclass, column_name name,
    OUT relation regclass, OUT owner oid, OUT is_partition boolean, OUT attnum smallint, OUT type regtype)
RETURNS SETOF record LANGUAGE sql STABLE PARALLEL UNSAFE ROWS 1
SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE holder AS (
        SELECT c.relation, c.attnum FROM idgen.snowflake_adopt_columns(target, column_name) c
        UNION
        SELECT f.conrelid, f.conkey[array_position(f.confkey, h.attnum)]
        FROM holder h
        JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = h.relation AND d.refobjsubid = h.attnum
                        AND d.classid = 'pg_constraint'::regclass
        JOIN pg_constraint f ON f.oid = d.objid AND f.contype = 'f' AND f.confrelid = h.relation
                            AND h.attnum = ANY (f.confkey)
    ), typed AS (
        SELECT h.relation, h.attnum, a.atttypid AS type
        FROM holder h JOIN pg_attribute a ON a.attrelid = h.relation AND a.attnum = h.attnum
        UNION ALL
        SELECT d.relation, d.attnum, t.typbasetype FROM typed d JOIN pg_type t ON t.oid = d.type AND t.typtype = 'd')
    SELECT d.relation, c.relowner, c.relispartition, d.attnum, d.type::regtype
    FROM typed d JOIN pg_class c ON c.oid = d.relation JOIN pg_type t ON t.oid = d.type AND t.typtype <> 'd'
$$;
COMMENT ON FUNCTION idgen.snowflake_adopt_holders IS
    'columns that get the ids of a column: its own and those that reference it, for snowflake_adopt';

-- Refuses a column that cannot hold the id probe, or that something else could not follow.
CREATE FUNCTION idgen.snowflake_adopt_check(target regclass, column_name name, probe bigint) RETURNS void
LANGUAGE plpgsql VOLATILE STRICT PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp SET enable_partition_pruning = on AS $$
DECLARE
    other record;
    dependent record;
    refusing text[];
BEGIN
    SELECT format_type(a.atttypid, a.atttypmod) AS type INTO other
    FROM idgen.snowflake_adopt_holders(target, column_name) h
    JOIN pg_attribute a ON a.attrelid = h.relation AND a.attnum = h.attnum
    WHERE h.relation = target AND a.attname = column_name AND h.type <> 'bigint'::regtype;
    IF FOUND THEN
        RAISE EXCEPTION 'column "%" of table "%" is of type %, not bigint', column_name, target, other.type
            USING ERRCODE = '22023',
            HINT = 'Make it bigint first. The guide docs/guides/adopt.md has the steps that block no writes.';
    END IF;

    -- The greatest id is read while the table is locked.
    SELECT c.oid::regclass AS relation, c.relkind INTO other
    FROM pg_class c JOIN idgen.snowflake_adopt_columns(target, column_name) m ON c.oid = m.relation
    WHERE c.relkind <> 'p'
      AND NOT EXISTS (SELECT FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am a ON a.oid = x.relam
                      WHERE i.indrelid = c.oid AND i.indkey[0] = m.attnum AND a.amname = 'btree'
                        AND i.indisvalid AND i.indpred IS NULL)
    ORDER BY c.oid::regclass::text LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'table "%" has no index to find its greatest "%"', other.relation, column_name
            USING ERRCODE = '55000', HINT = CASE
                WHEN other.relkind = 'f' THEN 'It is a foreign table. Detach it first.'
                ELSE format('Run CREATE INDEX CONCURRENTLY ON %s (%I).', other.relation, column_name) END;
    END IF;

    -- Every column that gets the id must accept it, and so must whatever depends on such a column alone. An assignment in
    -- PL/pgSQL refuses what an INSERT refuses. Quoted, because PL/pgSQL reserves more words than SQL does. Partitions have
    -- the same constraints: one test is enough.
    FOR dependent IN
        SELECT coalesce(string_agg(n.name, ', ' ORDER BY n.name) FILTER (WHERE NOT h.is_partition), min(n.name)) AS names,
               min(h.relation::oid) AS relation, pg_has_role(h.owner, 'USAGE') AS is_owned,
               format('DO %L', format('DECLARE %sBEGIN IF NOT (%s) THEN RAISE check_violation; END IF; END',
                                      d.declarations, t.condition)) AS statement
        FROM idgen.snowflake_adopt_holders(target, column_name) h
        CROSS JOIN LATERAL (
            SELECT array_agg(a.attnum ORDER BY v.place) AS attnums,
                   array_agg(format('%s "%s"', v.kind, a.attname) ORDER BY v.place) AS names,
                   array_agg(format('"%s" %s%s := (%s); ', replace(a.attname, '"', '""'), format_type(a.atttypid, a.atttypmod),
                                    CASE WHEN a.attnotnull THEN ' NOT NULL' END, v.value) ORDER BY v.place) AS declarations
            FROM (
                SELECT 0 AS place, 'column' AS kind, h.attnum AS attnum, probe::text AS value
                UNION ALL
                SELECT d.adnum, 'generated column', d.adnum, pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d
                WHERE d.adrelid = h.relation
                  AND ARRAY(SELECT DISTINCT p.refobjsubid FROM pg_depend p
                            WHERE p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid
                              AND p.refclassid = 'pg_class'::regclass AND p.refobjid = d.adrelid
                              AND p.refobjsubid <> d.adnum) = ARRAY[h.attnum::int]) v
            JOIN pg_attribute a ON a.attrelid = h.relation AND a.attnum = v.attnum) v
        CROSS JOIN LATERAL (
            SELECT u.name, ARRAY[u.attnum] AS uses, 'true' AS condition FROM unnest(v.names, v.attnums) AS u (name, attnum)
            UNION ALL
            SELECT format('constraint "%s"', c.conname), c.conkey, pg_get_expr(c.conbin, c.conrelid) FROM pg_constraint c
            WHERE c.conrelid = h.relation AND c.contype = 'c' AND c.conkey <@ v.attnums) t
        CROSS JOIN LATERAL (
            SELECT string_agg(u.declaration, '' ORDER BY u.place) AS declarations
            FROM unnest(v.attnums, v.declarations) WITH ORDINALITY AS u (attnum, declaration, place)
            WHERE u.attnum = ANY (t.uses || h.attnum)) d
        CROSS JOIN LATERAL (SELECT format('%s of table "%s"', t.name, h.relation) AS name) n
        WHERE pg_has_role(h.owner, 'USAGE')
           OR t.uses = ARRAY[h.attnum] AND h.type IN ('integer'::regtype, 'smallint'::regtype)
        GROUP BY h.owner, t.condition, d.declarations
        ORDER BY 1
    LOOP
        BEGIN
            IF NOT dependent.is_owned THEN
                RAISE numeric_value_out_of_range;
            END IF;
            PERFORM idgen.snowflake_adopt_as_owner(dependent.relation, dependent.statement);
            -- Undo what functions of the owner have done.
            RAISE SQLSTATE 'ID000';
        EXCEPTION
            WHEN SQLSTATE 'ID000' THEN
            WHEN data_exception OR integrity_constraint_violation THEN
                refusing := refusing || dependent.names;
        END;
    END LOOP;
    IF refusing IS NOT NULL THEN
        RAISE EXCEPTION 'column "%" of table "%" cannot have snowflake ids', column_name, target
            USING ERRCODE = '22023', DETAIL = format('They are refused by %s.', array_to_string(refusing, ', ')),
            HINT = 'Change these first. For columns that are too small, the guide docs/guides/adopt.md has the steps.';
    END IF;
    IF EXISTS (SELECT FROM pg_class c WHERE c.oid = target AND c.relkind = 'p')
       AND idgen.snowflake_adopt_as_owner(target, format('EXPLAIN (COSTS OFF, FORMAT JSON) SELECT FROM %s WHERE %I = %s',
                                                         target, column_name, probe)) ~ 'One-Time Filter": "false"' THEN
        RAISE EXCEPTION 'table "%" has no partition for snowflake ids', target
            USING ERRCODE = '22023', DETAIL = format('The next id is %s.', probe),
            HINT = 'Create partitions for times, or one by DEFAULT: see docs/guides/adopt.md.';
    END IF;
END
$$;
COMMENT ON FUNCTION idgen.snowflake_adopt_check IS
    'refuses a column that cannot hold snowflake ids, for snowflake_adopt';

-- The column, which may be given, and the statements that adopt it: none if it is adopted.
CREATE FUNCTION idgen.snowflake_adopt_plan(target regclass, INOUT column_name name, layout text, probe bigint,
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
COMMENT ON FUNCTION idgen.snowflake_adopt_plan IS 'statements for snowflake_adopt';

CREATE FUNCTION snowflake_adopt(relation regclass, column_name name DEFAULT NULL, layout text DEFAULT NULL,
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
COMMENT ON FUNCTION snowflake_adopt IS
    'statements that turn a serial or identity column into snowflake ids; runs them unless dry_run is true';

-- Tables of a schema whose columns are their own, as far as the schema goes. Those of extensions are not.
CREATE FUNCTION idgen.snowflake_adopt_tables(schema regnamespace) RETURNS SETOF regclass
LANGUAGE sql STABLE STRICT PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.oid::regclass FROM pg_class c
    WHERE c.relnamespace = schema AND c.relkind IN ('r', 'p')
      AND NOT EXISTS (SELECT FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent
                      WHERE i.inhrelid = c.oid AND p.relnamespace = schema)
      AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
    ORDER BY c.relname COLLATE "C"
$$;
COMMENT ON FUNCTION idgen.snowflake_adopt_tables IS 'tables of a schema, for snowflake_adopt_schema';

CREATE PROCEDURE snowflake_adopt_schema(schema regnamespace, layout text DEFAULT NULL, dry_run boolean DEFAULT true)
LANGUAGE plpgsql AS $$
DECLARE
    target pg_catalog.regclass;
    done pg_catalog.text;
BEGIN
    IF schema IS NULL OR dry_run IS NULL THEN
        RAISE EXCEPTION '% must not be null', CASE WHEN schema IS NULL THEN 'schema' ELSE 'dry_run' END
            USING ERRCODE = '22004';
    END IF;
    -- What no table could do without is an error of the call.
    IF layout IS NULL THEN
        PERFORM @extschema@.snowflake_next();
    ELSE
        PERFORM @extschema@.snowflake_next(layout);
    END IF;
    IF NOT dry_run THEN
        COMMIT;
    END IF;
    FOR target IN SELECT idgen.snowflake_adopt_tables(schema) LOOP
        BEGIN
            FOR done IN SELECT @extschema@.snowflake_adopt(target, NULL::pg_catalog.name, layout, dry_run) LOOP
                RAISE NOTICE '%', done;
            END LOOP;
        EXCEPTION
            WHEN undefined_object THEN
                RAISE NOTICE 'skipped table "%": %', target, SQLERRM;
            WHEN OTHERS THEN
                RAISE WARNING 'did not adopt table "%": %', target, SQLERRM;
        END;
        IF NOT dry_run THEN
            COMMIT;
        END IF;
    END LOOP;
END
$$;
COMMENT ON PROCEDURE snowflake_adopt_schema IS
    'snowflake_adopt for each table of a schema, with a commit after each; continues when called again';
