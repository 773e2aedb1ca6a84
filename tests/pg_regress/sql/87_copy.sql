-- COPY writes the rows in batches although a default draws, and nothing else changes.
SELECT segment_create('copied');
CREATE TABLE loaded (place int, id bigint DEFAULT snowflake_next(), js53 bigint DEFAULT snowflake_next('js53'), u uuid DEFAULT uuidv7_next(),
                     of_node uuid DEFAULT uuidv7_next(node => true), ticket bigint DEFAULT segment_next('copied'));
-- Rows are drawn in a batch before the first one of it is written: a row that cannot be written takes the ids of later ones.
CREATE UNIQUE INDEX loaded_place ON loaded (place);
CREATE FUNCTION is_batch() RETURNS boolean LANGUAGE sql
RETURN CASE segment_next('copied') WHEN 3 THEN false WHEN 6 THEN true END;
CREATE PROCEDURE begin_counting() LANGUAGE sql AS $$
SELECT segment_drop('copied'), segment_create('copied');
DELETE FROM loaded;
$$;
COPY loaded (place) FROM stdin;
1
1
3
4
5
\.
SELECT is_batch();
-- the next call works, in the order of the rows
COPY loaded (place) FROM stdin;
1
2
3
4
5
\.
SELECT count(*), bool_and(id > id_before AND js53 > js53_before AND u > u_before AND of_node > of_node_before) AS rise, array_agg(ticket) AS tickets
FROM (SELECT *, lag(id, 1, 0::bigint) OVER w AS id_before, lag(js53, 1, 0::bigint) OVER w AS js53_before,
             lag(u, 1, '00000000-0000-0000-0000-000000000000') OVER w AS u_before,
             lag(of_node, 1, '00000000-0000-0000-0000-000000000000') OVER w AS of_node_before
      FROM loaded WINDOW w AS (ORDER BY place)) AS l;
-- in a function, and through a function in SQL that is inlined
CREATE FUNCTION next_copied(tag text) RETURNS bigint LANGUAGE sql AS 'SELECT segment_next(tag) + 0';
ALTER TABLE loaded ALTER ticket SET DEFAULT next_copied('copied');
CALL begin_counting();
DO $$ BEGIN COPY loaded (place) FROM PROGRAM 'printf "1\n1\n3\n4\n5\n"'; EXCEPTION WHEN unique_violation THEN RAISE NOTICE 'refused'; END $$;
SELECT is_batch();
-- One draw stays one: a function that reads its argument twice is not inlined.
CREATE FUNCTION less_itself(id bigint) RETURNS bigint LANGUAGE sql AS 'SELECT id - id';
CREATE TABLE differences (place int, a bigint DEFAULT less_itself(snowflake_next()));
COPY differences (place) FROM stdin;
1
\.
SELECT a FROM differences;
DROP TABLE differences;
DROP FUNCTION less_itself;
-- row by row beside another volatile default, and below a trigger that may look at the table
ALTER TABLE loaded ALTER ticket SET DEFAULT segment_next('copied'), ADD other float8 DEFAULT random();
CALL begin_counting();
COPY loaded (place) FROM stdin;
1
1
3
4
5
\.
SELECT is_batch();
ALTER TABLE loaded DROP other;
CREATE FUNCTION count_loaded() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN NEW.js53 := (SELECT count(*) FROM loaded); RETURN NEW; END';
CREATE TRIGGER count_loaded BEFORE INSERT ON loaded FOR EACH ROW EXECUTE FUNCTION count_loaded();
CALL begin_counting();
COPY loaded (place) FROM stdin;
1
1
3
4
5
\.
SELECT is_batch();
COPY loaded (place) FROM stdin;
1
2
3
\.
SELECT place, js53, ticket FROM loaded ORDER BY place;
DROP TRIGGER count_loaded ON loaded;
DROP TABLE loaded;
-- partitions by the id that is drawn, and a condition that draws
CREATE TABLE parted (place int, id bigint DEFAULT segment_next('copied')) PARTITION BY RANGE (id);
CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (3);
CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (3) TO (100);
SELECT segment_drop('copied'), segment_create('copied');
COPY parted (place) FROM stdin;
1
2
3
4
\.
COPY parted (place) FROM stdin WHERE segment_next('copied') > id;
5
6
\.
SELECT tableoid::regclass, * FROM parted ORDER BY place;
DROP TABLE parted;

-- Elsewhere a draw stays a volatile call of its function.
CREATE TABLE elsewhere (place int, id bigint DEFAULT snowflake_next());
\d elsewhere
EXPLAIN (VERBOSE, COSTS OFF) INSERT INTO elsewhere (place) SELECT n FROM generate_series(1, 3) AS n;
EXPLAIN (VERBOSE, COSTS OFF) INSERT INTO elsewhere (place) VALUES (1), (2);
EXPLAIN (VERBOSE, COSTS OFF) SELECT * FROM elsewhere WHERE id > snowflake_next() AND uuidv7_next() IS NOT NULL;
EXPLAIN (VERBOSE, COSTS OFF) CREATE TABLE made AS SELECT snowflake_next(), uuidv7_next(true), segment_next('copied') FROM elsewhere;
INSERT INTO elsewhere (place) SELECT n FROM generate_series(1, 100) AS n;
INSERT INTO elsewhere (place) VALUES (101), (102);
ALTER TABLE elsewhere ADD added bigint DEFAULT snowflake_next(), ADD u uuid DEFAULT uuidv7_next();
CREATE TABLE made AS SELECT snowflake_next() AS id FROM elsewhere;
SELECT count(DISTINCT id), count(DISTINCT added) AS added, count(DISTINCT u) AS u, (SELECT count(DISTINCT id) FROM made) AS made FROM elsewhere;
ANALYZE elsewhere;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
EXPLAIN (VERBOSE, COSTS OFF) SELECT snowflake_next() FROM elsewhere;
RESET ALL;
CALL outcomes($$
    CREATE INDEX ON elsewhere ((snowflake_next() + id))
    CREATE INDEX ON elsewhere (place) WHERE snowflake_next() > id
    ALTER TABLE elsewhere ADD made bigint GENERATED ALWAYS AS (snowflake_next()) STORED
    CREATE TABLE refused (id bigint) PARTITION BY RANGE ((snowflake_next() + id))
$$);
DROP TABLE made;
-- Neither a plan nor an estimate draws, also in COPY TO.
SELECT idgen.reset_stats();
EXPLAIN (COSTS OFF) SELECT * FROM elsewhere WHERE id > snowflake_next() + place AND id < next_copied('copied') LIMIT segment_next('copied');
EXPLAIN (COSTS OFF) INSERT INTO elsewhere (place) VALUES (1);
COPY elsewhere (place) FROM stdin;
\.
-- In an estimate, a STABLE function is a constant, so the function around it can be inlined.
CREATE FUNCTION costly() RETURNS bigint STABLE COST 1000 LANGUAGE plpgsql AS 'BEGIN RETURN 1; END';
CREATE FUNCTION combined(a bigint, b bigint) RETURNS bigint LANGUAGE sql AS 'SELECT a + a + b';
EXPLAIN (COSTS OFF) SELECT * FROM elsewhere WHERE id > combined(costly(), snowflake_next());
COPY (SELECT id FROM elsewhere WHERE id > combined(costly(), snowflake_next()) LIMIT 0) TO stdout;
DROP FUNCTION costly, combined;
SELECT sum(issued) AS issued FROM idgen.stat_snowflake;
SELECT segment_next('copied');
-- Where else PostgreSQL plans an expression without a query, the draw itself is called. The session has planned no domain before.
\c -
SET track_functions = 'all';
CREATE DOMAIN late AS bigint CHECK (VALUE < snowflake_next());
COPY (SELECT 1::late) TO stdout;
PREPARE given AS SELECT $1 < $2;
EXECUTE given(snowflake_next(), snowflake_next());
CREATE PROCEDURE called(a bigint, b bigint) LANGUAGE plpgsql AS 'BEGIN RAISE NOTICE ''%'', a < b; END';
CALL called(snowflake_next(), snowflake_next());
CREATE TABLE bounded (id bigint) PARTITION BY RANGE (id);
CREATE TABLE bounded_some PARTITION OF bounded FOR VALUES FROM (segment_next('copied')) TO (segment_next('copied'));
SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'bounded_some';
ALTER TABLE elsewhere ADD CHECK (id < snowflake_next());
INSERT INTO elsewhere (place) VALUES (200);
SELECT pg_stat_force_next_flush();
SELECT funcname, calls > 0 AS is_called FROM pg_stat_user_functions
WHERE funcname IN ('snowflake_next', 'segment_next', 'allow_copy_batches') ORDER BY funcname;
CREATE TABLE limited (place int, id late DEFAULT snowflake_next());
COPY limited (place) FROM stdin;
1
2
\.
SELECT count(DISTINCT id) FROM limited;

-- The privilege is that of the draw, also where the session has planned a constraint for another role.
CREATE ROLE copier;
GRANT ALL ON elsewhere, limited TO copier;
ALTER TABLE bounded OWNER TO copier;
GRANT CREATE ON SCHEMA public TO copier;
REVOKE EXECUTE ON FUNCTION snowflake_next() FROM PUBLIC;
-- psql may run what follows a COPY that fails before it reads
SET ROLE copier;
\copy elsewhere (place) FROM '/dev/null'
INSERT INTO limited VALUES (3, 1);
SELECT 1::late;
RESET ROLE;
CALL outcomes($$
    copier: EXECUTE given(snowflake_next(), 1)
    copier: CALL called(snowflake_next(), 1)
    copier: CREATE TABLE refused PARTITION OF bounded FOR VALUES FROM (snowflake_next()) TO (MAXVALUE)
    copier: INSERT INTO elsewhere (place, id) VALUES (1, 1)
    copier: SELECT 1 FROM elsewhere WHERE id > snowflake_next()
$$);
-- a role that may draw may copy, in batches or not
GRANT EXECUTE ON FUNCTION snowflake_next() TO copier;
REVOKE EXECUTE ON FUNCTION idgen.allow_copy_batches FROM PUBLIC;
SET ROLE copier;
COPY elsewhere (place) FROM stdin;
1
\.
RESET ROLE;
GRANT EXECUTE ON FUNCTION idgen.allow_copy_batches TO PUBLIC;
GRANT EXECUTE ON FUNCTION snowflake_next() TO PUBLIC;
-- What a user has set for the draw holds.
CREATE TABLE tickets (place int, id bigint DEFAULT segment_next('copied'));
GRANT INSERT ON tickets TO copier;
ALTER FUNCTION segment_next SECURITY DEFINER;
SET ROLE copier;
COPY tickets (place) FROM stdin;
1
\.
RESET ROLE;
ALTER FUNCTION segment_next SECURITY INVOKER;
SET ROLE copier;
COPY tickets (place) FROM stdin;
2
\.
RESET ROLE;
SELECT count(*) FROM tickets;
-- SQL cannot call the support function.
DO $$
BEGIN
    PERFORM idgen.allow_copy_batches(NULL);
    RAISE NOTICE 'called';
EXCEPTION
    -- By version: there is no such function, or the argument cannot be made.
    WHEN undefined_function OR feature_not_supported THEN RAISE NOTICE 'refused';
END
$$;
DROP TABLE tickets, limited, elsewhere, bounded;
DROP DOMAIN late;
DROP PROCEDURE called, begin_counting;
DROP FUNCTION next_copied, is_batch, count_loaded;
DROP OWNED BY copier;
DROP ROLE copier;
SELECT segment_drop('copied');
