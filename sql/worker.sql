CREATE TABLE idgen.worker_pool (
    name text NOT NULL
        CHECK (pg_catalog.octet_length(name) BETWEEN 1 AND 255),
    first int NOT NULL CHECK (first >= 0),
    count int NOT NULL CHECK (count >= 1 AND count <= 65536),
    ttl interval NOT NULL CHECK (ttl > '0 seconds'),
    owner regrole NOT NULL,
    CHECK (first <= 65536 - count)
) USING heap;
CREATE UNIQUE INDEX worker_pool_key ON idgen.worker_pool (name text_pattern_ops);
ALTER TABLE idgen.worker_pool REPLICA IDENTITY USING INDEX worker_pool_key;
COMMENT ON TABLE idgen.worker_pool IS 'pools of worker ids';
COMMENT ON COLUMN idgen.worker_pool.name IS 'name, 1 to 255 bytes';
COMMENT ON COLUMN idgen.worker_pool.first IS 'lowest worker id';
COMMENT ON COLUMN idgen.worker_pool.count IS 'how many worker ids it has';
COMMENT ON COLUMN idgen.worker_pool.ttl IS 'how far ahead of its holder''s time a worker id is granted';
COMMENT ON COLUMN idgen.worker_pool.owner IS 'role that defined it; its members may change it';
GRANT SELECT ON idgen.worker_pool TO PUBLIC;
GRANT SELECT, INSERT ON idgen.worker_pool TO pg_database_owner;
GRANT SELECT ON idgen.worker_pool TO pg_monitor;

SELECT pg_catalog.pg_extension_config_dump('idgen.worker_pool', $condition$WHERE false UNION ALL
    SELECT name, first, count, ttl,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END
    FROM idgen.worker_pool$condition$);

-- A row exists from the definition of its pool on. It outlives its pool, the holder and a dump: the next holder begins after
-- its id times. The table has tokens, so it is not readable: the view hides them.
CREATE TABLE idgen.worker_id (
    pool text NOT NULL,
    worker_id int NOT NULL,
    token bigint,
    owner text,
    role regrole,
    acquired_at timestamptz,
    not_before timestamptz NOT NULL DEFAULT '-infinity',
    not_after timestamptz NOT NULL DEFAULT '-infinity',
    epoch int NOT NULL DEFAULT 0
) USING heap;
CREATE UNIQUE INDEX worker_id_key ON idgen.worker_id (pool text_pattern_ops, worker_id);
ALTER TABLE idgen.worker_id REPLICA IDENTITY USING INDEX worker_id_key;
COMMENT ON TABLE idgen.worker_id IS 'worker ids of pools, and id times of their holders; shown by the view idgen.workers';
COMMENT ON COLUMN idgen.worker_id.pool IS 'name of the pool';
COMMENT ON COLUMN idgen.worker_id.worker_id IS 'the worker id';
COMMENT ON COLUMN idgen.worker_id.token IS
    'identifies the holder; NULL if nobody may renew it, so that it can be granted from not_after on';
COMMENT ON COLUMN idgen.worker_id.owner IS 'name that the holder gave itself';
COMMENT ON COLUMN idgen.worker_id.role IS
    'role that acquired it, whose members may act as the holder; NULL if it was released or never granted';
COMMENT ON COLUMN idgen.worker_id.acquired_at IS 'when it was acquired; NULL if it was never granted';
COMMENT ON COLUMN idgen.worker_id.not_before IS 'start of the id times of the current or last holder';
COMMENT ON COLUMN idgen.worker_id.not_after IS
    'no id of that holder has this time or a later one; -infinity if it was never granted';
COMMENT ON COLUMN idgen.worker_id.epoch IS 'epoch of the history in which it was granted: the token is current in no other';
GRANT SELECT, INSERT ON idgen.worker_id TO pg_database_owner;

-- To find a token, the worker id to grant next, and the last one of an owner, without reading a pool. One that an earlier
-- release has written can be longer than an index allows.
CREATE UNIQUE INDEX worker_id_token ON idgen.worker_id (pool text_pattern_ops, token) WHERE token IS NOT NULL;

CREATE INDEX worker_id_ended ON idgen.worker_id (pool text_pattern_ops, not_after, worker_id) WHERE token IS NULL;

CREATE INDEX worker_id_held ON idgen.worker_id (pool text_pattern_ops, not_after, worker_id) WHERE token IS NOT NULL;

CREATE INDEX worker_id_owner ON idgen.worker_id (pool text_pattern_ops, pg_catalog.hashtext(owner), not_after) WHERE owner IS NOT NULL;

-- The server that restores it has no holders.
SELECT pg_catalog.pg_extension_config_dump('idgen.worker_id', $condition$WHERE false UNION ALL
    SELECT pool, worker_id, NULL, owner, NULL, acquired_at, not_before, not_after, epoch FROM idgen.worker_id$condition$);

-- To detect that something else continues with the data. At most one row, from the definition of the first pool on.
CREATE TABLE idgen.worker_history (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    since timestamptz NOT NULL,
    longest interval NOT NULL,
    identity text NOT NULL,
    epoch int NOT NULL DEFAULT 0
) USING heap;
COMMENT ON TABLE idgen.worker_history IS 'server, timeline and data directory that grant worker ids from this database';
COMMENT ON COLUMN idgen.worker_history.one IS 'always true: there is at most one row';
COMMENT ON COLUMN idgen.worker_history.since IS
    'when a failover, a restore or a new history was last noticed; -infinity if the history is complete';
COMMENT ON COLUMN idgen.worker_history.longest IS
    'longest time from the clock to the end of id times, under any settings so far';
COMMENT ON COLUMN idgen.worker_history.identity IS
    'system identifier and timeline of the server, OID of the database, and place: inode and birth time of PG_VERSION in the data directory, which a copy does not share; those of global/pg_control; and the number in the file idgen_place; empty in a dump';
COMMENT ON COLUMN idgen.worker_history.epoch IS 'how often it was interrupted';
GRANT SELECT, INSERT ON idgen.worker_history TO pg_database_owner;

-- A restored database must not pass for the one that granted.
SELECT pg_catalog.pg_extension_config_dump('idgen.worker_history', $condition$WHERE false UNION ALL
    SELECT one, since, longest, '', epoch FROM idgen.worker_history$condition$);

CREATE FUNCTION worker_pool_define(
    name text, first int DEFAULT 0, count int DEFAULT 1024, ttl interval DEFAULT '30 seconds') RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_pool_define_wrapper';
COMMENT ON FUNCTION worker_pool_define IS 'defines a pool of worker ids: the lowest one, how many, and the ttl of its holders';
-- A superuser grants it. The role that defines a name owns it.
REVOKE EXECUTE ON FUNCTION worker_pool_define FROM PUBLIC;

CREATE FUNCTION worker_pool_alter(
    name text, first int DEFAULT NULL, count int DEFAULT NULL, ttl interval DEFAULT NULL, force boolean DEFAULT false) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_pool_alter_wrapper';
COMMENT ON FUNCTION worker_pool_alter IS
    'changes a pool of worker ids; omitted arguments keep their values; force excludes holders';

CREATE FUNCTION worker_pool_drop(name text) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_pool_drop_wrapper';
COMMENT ON FUNCTION worker_pool_drop IS 'drops a pool of worker ids none of which is held';

CREATE FUNCTION worker_acquire(
    pool text, owner text DEFAULT NULL, ttl interval DEFAULT NULL, reached timestamptz DEFAULT NULL,
    prefer int DEFAULT NULL, OUT worker_id int, OUT token bigint, OUT not_before timestamptz,
    OUT not_after timestamptz, OUT expires_at timestamptz)
SUPPORT idgen.refuse_row_expansion LANGUAGE c AS 'MODULE_PATHNAME', 'worker_acquire_wrapper';
COMMENT ON FUNCTION worker_acquire IS
    'acquires a worker id of a pool and an interval of id time';

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
    'moves the worker ids of a pool to another one with their id times and holders, and drops the pool; returns their count';

CREATE FUNCTION worker_correct(
    pool text, worker_id int, used_until timestamptz DEFAULT NULL, force boolean DEFAULT false) RETURNS timestamptz
LANGUAGE c AS 'MODULE_PATHNAME', 'worker_correct_unless_held_wrapper';
COMMENT ON FUNCTION worker_correct IS
    'records that no id at or after a time was issued under a free worker id, and returns the time recorded before; force ends its holder';

CREATE FUNCTION worker_renew(
    pool text, token bigint, last_not_after timestamptz, reached timestamptz DEFAULT NULL, OUT not_after timestamptz,
    OUT expires_at timestamptz)
SUPPORT idgen.refuse_row_expansion LANGUAGE c AS 'MODULE_PATHNAME', 'worker_renew_compared_wrapper';
COMMENT ON FUNCTION worker_renew IS
    'extends the id time of a worker id, if its end is the one that the caller was last told';

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

-- Only members of the holder's role see the token.
CREATE VIEW idgen.workers AS
SELECT known.pool, known.worker_id,
       CASE WHEN known.role IS NULL THEN 'free'
            WHEN known.not_after > pg_catalog.clock_timestamp() THEN 'held' ELSE 'expired' END AS state,
       CASE WHEN pg_catalog.pg_has_role(known.role::oid, 'USAGE')
             AND known.epoch = COALESCE((SELECT history.epoch FROM idgen.worker_history AS history), 0) THEN known.token END AS token,
       known.owner, known.role, known.acquired_at,
       known.not_after AS expires_at, false AS bound, known.not_before, known.not_after
FROM idgen.worker_id AS known WHERE known.acquired_at IS NOT NULL;
COMMENT ON VIEW idgen.workers IS 'worker ids of pools that were ever granted, and their holders';
COMMENT ON COLUMN idgen.workers.pool IS 'name of the pool';
COMMENT ON COLUMN idgen.workers.worker_id IS 'the worker id';
COMMENT ON COLUMN idgen.workers.state IS
    'held; expired: its id times are over, and it was neither released nor granted again; free: released';
COMMENT ON COLUMN idgen.workers.token IS 'token; NULL for other roles, and if its holder may not renew it';
COMMENT ON COLUMN idgen.workers.owner IS 'name that the holder gave itself';
COMMENT ON COLUMN idgen.workers.role IS 'role that acquired it; NULL if free';
COMMENT ON COLUMN idgen.workers.acquired_at IS 'when it was acquired';
COMMENT ON COLUMN idgen.workers.expires_at IS 'the same as not_after; kept for views on this one, as the next one';
COMMENT ON COLUMN idgen.workers.bound IS 'always false';
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
COMMENT ON COLUMN idgen.stat_worker.datacenter_id IS 'idgen.datacenter_id; NULL without a worker id, and if worker ids number pairs';
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
