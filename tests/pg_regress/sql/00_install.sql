-- The objects of the extension and their privileges.
CREATE EXTENSION idgen;

-- without the row types of views and tables, which are members from PostgreSQL 17 on
CREATE TEMP VIEW members AS
SELECT pg_describe_object(classid, objid, objsubid) AS member,
       obj_description(objid, (SELECT relname FROM pg_class c WHERE c.oid = classid)) AS comment
FROM pg_depend d
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
  AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idgen')
  AND NOT EXISTS (SELECT FROM pg_type t JOIN pg_class c ON c.reltype IN (t.oid, t.typelem) AND c.relkind <> 'c'
                  WHERE d.classid = 'pg_type'::regclass AND d.objid = t.oid);
SELECT member FROM members ORDER BY member COLLATE "C";

-- every member has a comment
SELECT member AS without_comment FROM members WHERE comment IS NULL;
-- and so has every column of its views
SELECT attrelid::regclass, attname AS without_comment FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE relnamespace = 'idgen'::regnamespace AND (relkind = 'v' OR relname = 'segment') AND attnum > 0
  AND col_description(attrelid, attnum) IS NULL;

-- volatility, parallel safety, strictness and EXECUTE privileges
SELECT p.oid::regprocedure AS function, provolatile AS volatile, proparallel AS parallel, proisstrict AS strict,
       has_function_privilege('public', p.oid, 'EXECUTE') AS public
FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idgen')
ORDER BY p.oid::regprocedure::text COLLATE "C";

\d idgen.segment
\d idgen.public_key
-- a dump includes the tables, which only their owner and the owner of the database may read
SELECT has_table_privilege('public', 'idgen.segment', 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE') AS public,
       EXISTS (SELECT FROM aclexplode(relacl) WHERE grantee NOT IN (relowner, 'pg_database_owner'::regrole)) AS others,
       oid = ANY (SELECT unnest(extconfig) FROM pg_extension WHERE extname = 'idgen') AS dumped
FROM pg_class WHERE oid = 'idgen.segment'::regclass;

-- settings: name, unit, context, range, default
SELECT name, unit, vartype, context, min_val, max_val, boot_val, short_desc
FROM pg_settings WHERE name LIKE 'idgen.%' ORDER BY name;
SET idgen.nonsense = 1;
SET idgen.layout = 'js53';

-- user functions go to the schema of choice, the rest to schema idgen
DROP EXTENSION idgen;
CREATE SCHEMA ids;
CREATE EXTENSION idgen SCHEMA ids;
SELECT ids.snowflake_next() < ids.snowflake_next() AS rises;
SELECT ids.segment_create('elsewhere');
SELECT ids.segment_next('elsewhere'), ids.segment_next('elsewhere');
SELECT count(*) FROM idgen.stat_snowflake;
-- a HINT can be typed: it has the schema unless the search path does
SELECT ids.segment_next('orders lease_alter(');
SELECT ids.segment_next('orders \ lease_alter(');
SELECT ids.row_version();
SET search_path = ids;
SELECT segment_next('orders');
-- and it creates no temporary schema
\c -
SET search_path = pg_temp, ids;
SELECT segment_next('orders');
SELECT pg_my_temp_schema();
RESET search_path;
DROP EXTENSION idgen;
DROP SCHEMA ids;
CREATE EXTENSION idgen;

-- For the tests below: runs statements, one a line, each in a transaction of its own, and shows its rows or its error,
-- with the DETAIL and the HINT. A line that is a call is selected. `role: call` runs as this role. In a block, all run in
-- its transaction. Tokens, rows and times, which differ from run to run, are not shown.
CREATE PROCEDURE outcomes(statements text) LANGUAGE plpgsql AS $$
DECLARE
    is_top_level bool := now() = statement_timestamp();
    role text := current_setting('role');
    line text;
    parts text[];
    outcome text;
    detail text;
    hint text;
BEGIN
    FOREACH line IN ARRAY string_to_array(statements, E'\n') LOOP
        CONTINUE WHEN line ~ '^\s*(--.*)?$';
        parts := regexp_match(trim(line), '^(?:(\w+|".*"): )?(.*)$');
        BEGIN
            PERFORM set_config('role', coalesce(replace(trim('"' FROM parts[1]), '""', '"'), role), false);
            outcome := 'ok';
            detail := '';
            hint := '';
            IF parts[2] ~ '^(SELECT|[a-z])' THEN
                EXECUTE format('SELECT coalesce(string_agg(trim(r::text, ''()''), '', ''), ''no row'') FROM (%s) AS r',
                               regexp_replace(parts[2], '^(?=[a-z])', 'SELECT ')) INTO outcome;
            ELSE
                EXECUTE parts[2];
            END IF;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS outcome = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
            outcome := SQLSTATE || ' ' || outcome;
        END;
        PERFORM set_config('role', role, false);
        detail := regexp_replace(detail, '^Failing row.*', '');
        outcome := concat_ws(E'\n    ', trim(line) || ' -> ' || outcome,
                             'DETAIL:  ' || nullif(detail, ''), 'HINT:  ' || nullif(hint, ''));
        outcome := regexp_replace(outcome, 'since \d{4}-\S+ \S+', 'since <time>.');
        -- Tokens of leases count from a time in microseconds. Those of worker ids are random.
        outcome := regexp_replace(outcome, '(token (?:= )?|worker_[cr]\w+\(''[^'']*'', )\d{4,}', '\1<token>', 'g');
        RAISE WARNING '%', regexp_replace(outcome, '\m1\d{15}\M', '<token>', 'g');
        IF is_top_level THEN
            COMMIT;
        END IF;
    END LOOP;
END $$;
