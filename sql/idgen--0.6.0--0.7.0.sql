\echo Use "ALTER EXTENSION idgen UPDATE TO '0.7.0'" to load this file. \quit

-- Worker ids from a pool.
CREATE TABLE idgen.worker_number (
    pool text NOT NULL,
    number int NOT NULL,
    not_before timestamptz NOT NULL,
    not_after timestamptz NOT NULL,
    token bigint NOT NULL,
    PRIMARY KEY (pool, number)
) WITH (fillfactor = 50);
SELECT pg_catalog.pg_extension_config_dump('idgen.worker_number', '');

CREATE FUNCTION worker_acquire(pool text, owner text DEFAULT NULL, ttl interval DEFAULT NULL, OUT worker_id int, OUT token bigint, OUT not_before timestamptz, OUT not_after timestamptz, OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_acquire_wrapper';
CREATE FUNCTION worker_release(pool text, token bigint, last_time timestamptz DEFAULT NULL) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_release_wrapper';
CREATE FUNCTION worker_renew(pool text, token bigint, ttl interval DEFAULT NULL, OUT not_after timestamptz, OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_renew_wrapper';

CREATE VIEW idgen.workers AS
SELECT lease.name AS pool, lease.slot AS worker_id, lease.state, lease.token, lease.owner, lease.role, lease.acquired_at,
       lease.expires_at, lease.bound, known.not_before, known.not_after
FROM idgen.leases AS lease JOIN idgen.worker_number AS known
  ON known.pool OPERATOR(pg_catalog.=) lease.name AND known.number OPERATOR(pg_catalog.=) lease.slot;

CREATE FUNCTION idgen.stat_get_worker(OUT source text, OUT state text, OUT worker_id int, OUT datacenter_id int, OUT pool text, OUT not_before timestamptz, OUT not_after timestamptz, OUT coordinator text, OUT pid int, OUT renewals bigint, OUT failures bigint, OUT failing_since timestamptz, OUT last_error text, OUT changes bigint) RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_worker_wrapper';

CREATE VIEW idgen.stat_worker AS
SELECT source, state, worker_id, datacenter_id, pool, not_before, not_after, coordinator, pid, renewals, failures, failing_since,
       last_error, changes
FROM idgen.stat_get_worker();

COMMENT ON FUNCTION worker_acquire(text, text, interval) IS
    'acquires a number of a pool, and the interval of id time that it may be used for; without a ttl bound to the session';
COMMENT ON FUNCTION worker_renew(text, bigint, interval) IS
    'makes a number last, and moves on the end of the id time that it may be used for';
COMMENT ON FUNCTION worker_release(text, bigint, timestamptz) IS
    'gives a number back; with the last time in its ids the next holder can begin right after it';
COMMENT ON TABLE idgen.worker_number IS 'which id times the last holder of each number of a pool was allowed';
COMMENT ON COLUMN idgen.worker_number.pool IS 'name of the pool';
COMMENT ON COLUMN idgen.worker_number.number IS 'the number, a slot of the lease of that name';
COMMENT ON COLUMN idgen.worker_number.not_before IS 'begin of the id times of its holder, or its last one';
COMMENT ON COLUMN idgen.worker_number.not_after IS 'no id of its holder has this time or a later one';
COMMENT ON COLUMN idgen.worker_number.token IS 'token of the lease that they were allowed with';
COMMENT ON VIEW idgen.workers IS 'numbers of pools that were ever taken, and who holds them';
COMMENT ON VIEW idgen.stat_worker IS 'the worker id of this server, and how its lease stands';
COMMENT ON FUNCTION idgen.stat_get_worker() IS 'what the view idgen.stat_worker reads';

GRANT SELECT ON idgen.workers, idgen.stat_worker TO PUBLIC;
