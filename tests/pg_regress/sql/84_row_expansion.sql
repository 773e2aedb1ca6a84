-- PostgreSQL expands (f(x)).* to a call for each column. Functions that change something refuse that.
\set VERBOSITY default
SELECT segment_create('expanded');
SELECT lease_define('expanded', slots => 4), worker_pool_define('expanded', count => 4);

-- where the planner sees several calls
SELECT (segment_reserve('expanded', 3)).*;
SELECT (segment_reserve('expanded', n)).* FROM generate_series(1, 3) AS n;
\set VERBOSITY sqlstate
SELECT ((SELECT segment_reserve('expanded', 3))).*;
SELECT (r).* FROM (SELECT (segment_reserve('expanded', 3)).* OFFSET 0) AS r;
SELECT (segment_reserve('expanded', 3)).last_id, (segment_reserve('expanded', 3)).first_id;
SELECT ROW((segment_reserve('expanded', 3)).*);
WITH w AS (SELECT (segment_reserve('expanded', 3)).*) SELECT count(*) FROM w;
CREATE TEMP TABLE blocks (first_id int, last_id int, stride int);
INSERT INTO blocks SELECT (segment_reserve('expanded', 3)).*;
INSERT INTO blocks VALUES ((segment_reserve('expanded', 3)).*);
INSERT INTO blocks VALUES ((segment_reserve('expanded', 3)).*), ((segment_reserve('expanded', 4)).*);
INSERT INTO blocks VALUES (1, 2, 3) RETURNING (segment_reserve('expanded', 3)).*;
CREATE TEMP VIEW blocks_view AS SELECT (segment_reserve('expanded', 3)).*;
SELECT * FROM blocks_view;
PREPARE block AS SELECT (segment_reserve('expanded', $1)).*;
EXECUTE block(3);
DO $$ DECLARE a bigint; b bigint; c bigint; BEGIN SELECT (segment_reserve('expanded', 3)).* INTO a, b, c; END $$;
-- nothing was drawn, and no row written
SELECT segment_next('expanded'), (SELECT count(*) FROM blocks) AS blocks;

-- every such function
SELECT (segment_request('expanded', 1, 'elsewhere', 0, 0)).*;
SELECT (lease_acquire('expanded')).*;
SELECT (lease_try_acquire('expanded')).*;
SELECT (lease_renew_many('{expanded}', '{1}')).*;
SELECT (worker_acquire('expanded')).*;
SELECT (worker_renew('expanded', 1, now())).*;
SELECT (SELECT count(*) FROM idgen.leases WHERE name = 'expanded') AS terms,
       (SELECT count(*) FROM idgen.workers WHERE pool = 'expanded') AS worker_ids;
-- none of several OUT columns that changes something is left out
SELECT p.oid::regprocedure AS without_support
FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
WHERE d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'idgen')
  AND prorettype = 'record'::regtype AND provolatile = 'v' AND prosupport = 0 AND pronamespace <> 'idgen'::regnamespace;

-- one call stays one call
\set VERBOSITY default
SELECT last_id - first_id AS rest FROM segment_reserve('expanded', 3);
SELECT n, r.last_id - r.first_id AS rest FROM generate_series(1, 3) AS n, segment_reserve('expanded', n) AS r;
SELECT (r).last_id - (r).first_id AS rest FROM (SELECT segment_reserve('expanded', 3) AS r) AS q;
-- equal calls that read the same column are several calls
SELECT (segment_reserve('expanded', 1)).first_id < (segment_reserve('expanded', 1)).first_id AS rises;
CREATE FUNCTION pg_temp.inlined(tag text) RETURNS bigint LANGUAGE sql AS 'SELECT (segment_reserve($1, 1)).first_id';
SELECT pg_temp.inlined('expanded') < pg_temp.inlined('expanded') AS rises;
SELECT (segment_reserve('expanded', 1)).first_id, (segment_reserve('expanded', 2)).stride;
-- the support function is for the planner
DO $$
BEGIN
    PERFORM idgen.refuse_row_expansion(NULL);
    RAISE NOTICE 'called';
EXCEPTION
    -- By version: there is no such function, or the argument cannot be made.
    WHEN undefined_function OR feature_not_supported THEN RAISE NOTICE 'refused';
END
$$;
SELECT segment_drop('expanded'), lease_drop('expanded'), worker_pool_drop('expanded');
DROP VIEW blocks_view;
