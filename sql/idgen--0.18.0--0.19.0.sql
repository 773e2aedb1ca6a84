\echo Use "ALTER EXTENSION idgen UPDATE TO '0.19.0'" to load this file. \quit

COMMENT ON COLUMN idgen.stat_worker.datacenter_id IS 'idgen.datacenter_id; NULL without a worker id, and if worker ids number pairs';

-- Rows of leases are reached by their primary key. Another index would make each grant write to both.
ALTER TABLE idgen.lease DROP CONSTRAINT lease_token_name_key;
DROP FUNCTION idgen.lease_lock_row(tid, boolean);

CREATE FUNCTION lease_acquire_many(
    names text[], ttl interval DEFAULT NULL, owner text DEFAULT NULL, data jsonb DEFAULT NULL,
    bind_session boolean DEFAULT false, shared boolean DEFAULT false, OUT name text, OUT slot int, OUT token bigint,
    OUT owner text, OUT acquired_at timestamptz, OUT expires_at timestamptz, OUT depth int) RETURNS SETOF record
SUPPORT idgen.refuse_row_expansion LANGUAGE c AS 'MODULE_PATHNAME', 'lease_acquire_many_wrapper';
COMMENT ON FUNCTION lease_acquire_many IS
    'acquires a term of each of several leases, or none; waits up to lock_timeout; returns them in the order of the names';

CREATE FUNCTION lease_try_acquire_many(
    names text[], timeout interval DEFAULT '0', ttl interval DEFAULT NULL, owner text DEFAULT NULL,
    data jsonb DEFAULT NULL, bind_session boolean DEFAULT false, shared boolean DEFAULT false, OUT name text,
    OUT slot int, OUT token bigint, OUT owner text, OUT acquired_at timestamptz, OUT expires_at timestamptz,
    OUT depth int) RETURNS SETOF record
SUPPORT idgen.refuse_row_expansion LANGUAGE c AS 'MODULE_PATHNAME', 'lease_try_acquire_many_wrapper';
COMMENT ON FUNCTION lease_try_acquire_many IS
    'acquires a term of each of several leases if all become free within the timeout; otherwise returns no row';

CREATE FUNCTION lease_release_many(
    names text[], tokens bigint[], OUT name text, OUT token bigint, OUT is_free boolean) RETURNS SETOF record
SUPPORT idgen.refuse_row_expansion LANGUAGE c AS 'MODULE_PATHNAME', 'lease_release_many_wrapper';
COMMENT ON FUNCTION lease_release_many IS
    'releases those of several leases that are still held once, and returns them; is_free as the result of lease_release';

CREATE FUNCTION lease_fence_many(names text[], tokens bigint[]) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_fence_many_wrapper';
COMMENT ON FUNCTION lease_fence_many IS 'fences by several leases, as lease_fence by one';

-- The functions for several leases get the privileges of those for one. A GRANT in this script would count as one of the
-- extension, and pg_dump would leave it out.
DO LANGUAGE plpgsql $update$
DECLARE
    pair record;
BEGIN
    FOR pair IN
        SELECT one.oid AS one, many.oid AS many, one.proacl AS privileges
        FROM pg_catalog.pg_proc AS one
        JOIN pg_catalog.pg_proc AS many ON many.pronamespace OPERATOR(pg_catalog.=) one.pronamespace
         AND many.proname OPERATOR(pg_catalog.=) (one.proname OPERATOR(pg_catalog.||) '_many')
        WHERE many.oid OPERATOR(pg_catalog.=) ANY (ARRAY[
            'lease_acquire_many(text[], interval, text, jsonb, boolean, boolean)',
            'lease_try_acquire_many(text[], interval, interval, text, jsonb, boolean, boolean)',
            'lease_release_many(text[], bigint[])', 'lease_fence_many(text[], bigint[])']::pg_catalog.regprocedure[]::pg_catalog.oid[])
    LOOP
        UPDATE pg_catalog.pg_proc SET proacl = pair.privileges WHERE oid OPERATOR(pg_catalog.=) pair.many;
        INSERT INTO pg_catalog.pg_shdepend (dbid, classid, objid, objsubid, refclassid, refobjid, deptype)
        SELECT dbid, classid, pair.many, objsubid, refclassid, refobjid, deptype FROM pg_catalog.pg_shdepend
        WHERE dbid OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
                                           WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
          AND classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
          AND objid OPERATOR(pg_catalog.=) pair.one AND deptype OPERATOR(pg_catalog.=) 'a';
    END LOOP;
END
$update$;
