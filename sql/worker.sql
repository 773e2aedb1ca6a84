-- The id times of the last holder of each worker id (column number). The rows outlive leases, pools and a dump: the next
-- holder begins after them.
CREATE TABLE idgen.worker_number (
    pool text NOT NULL,
    number int NOT NULL,
    not_before timestamptz NOT NULL,
    not_after timestamptz NOT NULL,
    token bigint NOT NULL,
    owner text,
    released boolean NOT NULL DEFAULT false,
    PRIMARY KEY (pool, number)
) WITH (fillfactor = 50);
COMMENT ON TABLE idgen.worker_number IS 'id times of the last holder of each worker id';
COMMENT ON COLUMN idgen.worker_number.pool IS 'name of the pool';
COMMENT ON COLUMN idgen.worker_number.number IS 'the worker id: a slot of the lease of that name';
COMMENT ON COLUMN idgen.worker_number.not_before IS 'start of the id times of the last holder';
COMMENT ON COLUMN idgen.worker_number.not_after IS 'no id of that holder has this time or a later one';
COMMENT ON COLUMN idgen.worker_number.token IS 'token of the lease of that holder';
COMMENT ON COLUMN idgen.worker_number.owner IS 'name that the holder gave itself';
COMMENT ON COLUMN idgen.worker_number.released IS 'released by worker_release()';
GRANT SELECT, INSERT ON idgen.worker_number TO pg_database_owner;

-- To find free worker ids without reading a pool. They are here because an index on the end of a term in idgen.lease would
-- cost every lease an entry for each renewal and each release. An owner can be longer than an index allows.
CREATE INDEX worker_number_released ON idgen.worker_number (pool, not_after) WHERE released;

CREATE INDEX worker_number_unreleased ON idgen.worker_number (pool, not_after) WHERE NOT released;

CREATE INDEX worker_number_owner ON idgen.worker_number (pool, pg_catalog.hashtext(owner), token) WHERE owner IS NOT NULL;

SELECT pg_catalog.pg_extension_config_dump('idgen.worker_number', '');

-- The server, timeline, database and data directory that grant worker ids from this database, to detect that another one
-- continues with its data. At most one row.
CREATE TABLE idgen.worker_history (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    system_identifier bigint NOT NULL,
    timeline int NOT NULL,
    database oid NOT NULL,
    place text NOT NULL,
    since timestamptz NOT NULL,
    first_token bigint NOT NULL,
    longest interval NOT NULL
);
COMMENT ON TABLE idgen.worker_history IS 'server, timeline and data directory that grant worker ids from this database';
COMMENT ON COLUMN idgen.worker_history.one IS 'always true: there is at most one row';
COMMENT ON COLUMN idgen.worker_history.system_identifier IS 'system identifier of the server; 0 in a dump';
COMMENT ON COLUMN idgen.worker_history.timeline IS 'timeline of the server; 0 in a dump';
COMMENT ON COLUMN idgen.worker_history.database IS 'OID of the database; 0 in a dump';
COMMENT ON COLUMN idgen.worker_history.place IS
    'inode and birth time of PG_VERSION in the data directory, which a copy does not share; those of global/pg_control; and the number in the file idgen_place';
COMMENT ON COLUMN idgen.worker_history.since IS
    'when a failover, a restore or a new history was last noticed; -infinity if the history is complete';
COMMENT ON COLUMN idgen.worker_history.first_token IS 'lowest token granted since then; lower ones cannot be renewed';
COMMENT ON COLUMN idgen.worker_history.longest IS
    'longest time from the clock to the end of id times, under any settings so far';
GRANT SELECT, INSERT ON idgen.worker_history TO pg_database_owner;

-- A restored database must not pass for the one that granted.
SELECT pg_catalog.pg_extension_config_dump('idgen.worker_history', $condition$WHERE false UNION ALL
    SELECT one, 0, 0, 0::oid, place, since, first_token, longest FROM idgen.worker_history$condition$);

CREATE FUNCTION worker_acquire(
    pool text, owner text DEFAULT NULL, ttl interval DEFAULT NULL, reached timestamptz DEFAULT NULL,
    prefer int DEFAULT NULL, OUT worker_id int, OUT token bigint, OUT not_before timestamptz,
    OUT not_after timestamptz, OUT expires_at timestamptz)
SUPPORT idgen.refuse_row_expansion LANGUAGE c AS 'MODULE_PATHNAME', 'worker_acquire_wrapper';
COMMENT ON FUNCTION worker_acquire IS
    'acquires a worker id of a pool and an interval of id time; bound to the session unless a ttl is given';

CREATE FUNCTION worker_confirm(pool text, token bigint) RETURNS timestamptz
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_confirm_wrapper';
COMMENT ON FUNCTION worker_confirm IS
    'waits until the synchronous standbys have the id time of a worker id, and returns its end';

CREATE FUNCTION worker_begin_history(since timestamptz DEFAULT NULL) RETURNS timestamptz
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_begin_history_wrapper';
COMMENT ON FUNCTION worker_begin_history IS
    'lets a copy of the coordinator grant worker ids; returns the time from which it grants them without a wait';
-- The caller declares that the origin of a copy grants no more worker ids. Grant it to administrators only.
REVOKE EXECUTE ON FUNCTION worker_begin_history FROM PUBLIC;

CREATE FUNCTION worker_move(from_pool text, to_pool text) RETURNS int
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_move_wrapper';
COMMENT ON FUNCTION worker_move IS
    'moves the worker ids of a pool to another one with their id times and leases, and drops the pool; returns their count';

CREATE FUNCTION worker_correct(pool text, worker_id int, used_until timestamptz) RETURNS timestamptz
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_correct_wrapper';
COMMENT ON FUNCTION worker_correct IS
    'records that no id at or after a time was issued under a free worker id; returns the time recorded before';

CREATE FUNCTION worker_renew(
    pool text, token bigint, last_not_after timestamptz, reached timestamptz DEFAULT NULL, OUT not_after timestamptz,
    OUT expires_at timestamptz)
SUPPORT idgen.refuse_row_expansion LANGUAGE c AS 'MODULE_PATHNAME', 'worker_renew_compared_wrapper';
COMMENT ON FUNCTION worker_renew IS
    'extends the lease and the id time of a worker id, if its end is the one that the caller was last told';

CREATE FUNCTION worker_release(
    pool text, token bigint, last_time timestamptz DEFAULT NULL, last_not_after timestamptz DEFAULT NULL) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_release_compared_wrapper';
COMMENT ON FUNCTION worker_release IS
    'releases a worker id; given the last time in its ids, the next holder begins right after it';

CREATE FUNCTION idgen.stat_get_worker(
    OUT source text, OUT state text, OUT worker_id int, OUT datacenter_id int, OUT pool text,
    OUT not_before timestamptz, OUT not_after timestamptz, OUT coordinator text, OUT pid int, OUT renewals bigint,
    OUT failures bigint, OUT failing_since timestamptz, OUT last_error text, OUT changes bigint) RETURNS SETOF record
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_worker_wrapper';
COMMENT ON FUNCTION idgen.stat_get_worker IS 'row of the view idgen.stat_worker';
GRANT EXECUTE ON FUNCTION idgen.stat_get_worker TO pg_monitor;

CREATE VIEW idgen.workers AS
SELECT lease.name AS pool, lease.slot AS worker_id, lease.state, lease.token, lease.owner, lease.role, lease.acquired_at,
       lease.expires_at, lease.bound, known.not_before, known.not_after
FROM idgen.leases AS lease JOIN idgen.worker_number AS known
  ON known.pool = lease.name AND known.number = lease.slot;
COMMENT ON VIEW idgen.workers IS 'worker ids of pools that were ever granted, and their holders';
COMMENT ON COLUMN idgen.workers.pool IS 'name of the pool';
COMMENT ON COLUMN idgen.workers.worker_id IS 'the worker id';
COMMENT ON COLUMN idgen.workers.state IS 'as in idgen.leases';
COMMENT ON COLUMN idgen.workers.token IS 'token; NULL for other roles, and if free';
COMMENT ON COLUMN idgen.workers.owner IS 'name that the holder gave itself';
COMMENT ON COLUMN idgen.workers.role IS 'role that acquired it';
COMMENT ON COLUMN idgen.workers.acquired_at IS 'when it was acquired';
COMMENT ON COLUMN idgen.workers.expires_at IS
    'when the lease ends unless it is renewed; NULL if it is bound to a session';
COMMENT ON COLUMN idgen.workers.bound IS 'true while the session that it is bound to lives';
COMMENT ON COLUMN idgen.workers.not_before IS 'start of the id times of the current or last holder';
COMMENT ON COLUMN idgen.workers.not_after IS 'end of these id times';
GRANT SELECT ON idgen.workers TO PUBLIC, pg_monitor;

CREATE VIEW idgen.stat_worker AS
SELECT source, state, worker_id, datacenter_id, pool, not_before, not_after, coordinator, pid, renewals, failures, failing_since,
       last_error, changes, idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_worker();
COMMENT ON VIEW idgen.stat_worker IS 'worker id of this server, and the state of its lease';
COMMENT ON COLUMN idgen.stat_worker.source IS 'setting or pool';
COMMENT ON COLUMN idgen.stat_worker.state IS
    'set: by the setting. waiting: no worker id yet. leased. failing: leased, and the last try to renew failed. ended: the clock has reached the end of the lease, and no id is issued';
COMMENT ON COLUMN idgen.stat_worker.worker_id IS 'the worker id; NULL if there is none';
COMMENT ON COLUMN idgen.stat_worker.datacenter_id IS 'idgen.datacenter_id; NULL if there is no worker id';
COMMENT ON COLUMN idgen.stat_worker.pool IS 'pool of the lease, or the configured pool';
COMMENT ON COLUMN idgen.stat_worker.not_before IS 'start of the id times under this worker id';
COMMENT ON COLUMN idgen.stat_worker.not_after IS 'no id has this time or a later one until the lease is renewed';
COMMENT ON COLUMN idgen.stat_worker.coordinator IS 'host and port that last granted or renewed the lease';
COMMENT ON COLUMN idgen.stat_worker.pid IS 'process of the keeper; NULL without a pool, or if it does not run';
COMMENT ON COLUMN idgen.stat_worker.renewals IS 'renewals of the lease';
COMMENT ON COLUMN idgen.stat_worker.failures IS 'requests to the coordinator that failed';
COMMENT ON COLUMN idgen.stat_worker.failing_since IS
    'first failure since the last success; NULL if the last request succeeded';
COMMENT ON COLUMN idgen.stat_worker.last_error IS 'the last failure; NULL if the last request succeeded';
COMMENT ON COLUMN idgen.stat_worker.changes IS 'times a lease changed the worker id';
COMMENT ON COLUMN idgen.stat_worker.stats_reset IS
    'when the counters of all views were last set to zero: by idgen.reset_stats(), or at a start';
GRANT SELECT ON idgen.stat_worker TO PUBLIC, pg_monitor;
