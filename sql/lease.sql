-- Definitions of leases.
CREATE TABLE idgen.lease_definition (
    name text NOT NULL
        CHECK (pg_catalog.octet_length(name) BETWEEN 1 AND 255),
    slots int NOT NULL CHECK (slots >= 1 AND slots <= 65536),
    ttl interval NOT NULL CHECK (ttl > '0 seconds'),
    lock_delay interval NOT NULL CHECK (lock_delay >= '0 seconds'),
    owner regrole NOT NULL,
    notify boolean NOT NULL DEFAULT false
) USING heap;
CREATE UNIQUE INDEX lease_definition_key ON idgen.lease_definition (name text_pattern_ops);
ALTER TABLE idgen.lease_definition REPLICA IDENTITY USING INDEX lease_definition_key;
COMMENT ON TABLE idgen.lease_definition IS 'definitions of leases';
COMMENT ON COLUMN idgen.lease_definition.name IS 'name, 1 to 255 bytes';
COMMENT ON COLUMN idgen.lease_definition.slots IS 'how many holders it can have at once';
COMMENT ON COLUMN idgen.lease_definition.ttl IS 'length of a term unless its holder gives another';
COMMENT ON COLUMN idgen.lease_definition.lock_delay IS 'how long a slot stays unavailable after its holder vanished';
COMMENT ON COLUMN idgen.lease_definition.owner IS 'role that defined it; its members may change it';
COMMENT ON COLUMN idgen.lease_definition.notify IS 'NOTIFY idgen_lease tells of each term';
GRANT SELECT ON idgen.lease_definition TO PUBLIC;
GRANT SELECT, INSERT ON idgen.lease_definition TO pg_database_owner;
GRANT SELECT ON idgen.lease_definition TO pg_monitor;

SELECT pg_catalog.pg_extension_config_dump('idgen.lease_definition', $condition$WHERE false UNION ALL
    SELECT name, slots, ttl, lock_delay,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END, notify
    FROM idgen.lease_definition$condition$);

-- Fencing tokens. A dump contains neither the sequence nor the terms: the server that restores it has no holders.
CREATE SEQUENCE idgen.lease_token;
COMMENT ON SEQUENCE idgen.lease_token IS 'fencing tokens';

-- Past the tokens of an extension that was dropped: a session that raised its sequence does not raise this one.
SELECT pg_catalog.setval('idgen.lease_token', (pg_catalog.extract('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint);

-- Slots and their current or last terms. Times are microseconds of the clock in the column clock.
-- The table has tokens, so it is not readable: the view hides them.
CREATE TABLE idgen.lease (
    name text NOT NULL,
    slot int NOT NULL,
    token bigint NOT NULL,
    depth int NOT NULL,
    owner text,
    role regrole NOT NULL,
    data jsonb,
    acquired_at timestamptz NOT NULL,
    ttl_us bigint NOT NULL,
    ends_us bigint NOT NULL,
    clock text NOT NULL,
    revoked boolean NOT NULL,
    session bigint,
    session_key bigint
) USING heap WITH (fillfactor = 50); -- free space on each page, so that updates are HOT
CREATE UNIQUE INDEX lease_key ON idgen.lease (name text_pattern_ops, slot);
ALTER TABLE idgen.lease REPLICA IDENTITY USING INDEX lease_key;
COMMENT ON TABLE idgen.lease IS 'slots of leases and their terms; shown by the view idgen.leases';
COMMENT ON COLUMN idgen.lease.name IS 'name of the lease';
COMMENT ON COLUMN idgen.lease.slot IS 'number of the slot';
COMMENT ON COLUMN idgen.lease.token IS 'fencing token of the current or last term';
COMMENT ON COLUMN idgen.lease.depth IS 'how often acquired and not yet released; 0 if free';
COMMENT ON COLUMN idgen.lease.owner IS 'name that the holder gave itself';
COMMENT ON COLUMN idgen.lease.role IS 'role that acquired it; its members may act as the holder';
COMMENT ON COLUMN idgen.lease.data IS 'data that the holder publishes';
COMMENT ON COLUMN idgen.lease.acquired_at IS 'start of the term, by the wall clock';
COMMENT ON COLUMN idgen.lease.ttl_us IS 'length of the term after a renewal, in microseconds';
COMMENT ON COLUMN idgen.lease.ends_us IS
    'end of the term; for a free slot, when it was freed; microseconds of the clock';
COMMENT ON COLUMN idgen.lease.clock IS
    'identifies CLOCK_BOOTTIME: the boot of the machine, the offset of the time namespace, the file global/pg_control, and the number in idgen_place';
COMMENT ON COLUMN idgen.lease.revoked IS 'freed by lease_revoke(); the lock delay applies';
COMMENT ON COLUMN idgen.lease.session IS 'start time of the server whose session it is bound to; NULL if not bound';
COMMENT ON COLUMN idgen.lease.session_key IS
    'key of the advisory lock that the session holds; random, because pg_locks is public';

CREATE FUNCTION lease_acquire(
    name text, ttl interval DEFAULT NULL, owner text DEFAULT NULL, data jsonb DEFAULT NULL, token bigint DEFAULT NULL,
    bind_session boolean DEFAULT false, shared boolean DEFAULT false, OUT name text, OUT slot int, OUT token bigint,
    OUT owner text, OUT acquired_at timestamptz, OUT expires_at timestamptz, OUT depth int)
SUPPORT idgen.refuse_row_expansion LANGUAGE c AS 'MODULE_PATHNAME', 'lease_acquire_wrapper';
COMMENT ON FUNCTION lease_acquire IS 'acquires a lease and returns its fencing token; waits up to lock_timeout';

CREATE FUNCTION lease_try_acquire(
    name text, timeout interval DEFAULT '0', ttl interval DEFAULT NULL, owner text DEFAULT NULL,
    data jsonb DEFAULT NULL, token bigint DEFAULT NULL, bind_session boolean DEFAULT false,
    shared boolean DEFAULT false, OUT name text, OUT slot int, OUT token bigint, OUT owner text,
    OUT acquired_at timestamptz, OUT expires_at timestamptz, OUT depth int) RETURNS SETOF record
ROWS 1 SUPPORT idgen.refuse_row_expansion LANGUAGE c AS 'MODULE_PATHNAME', 'lease_try_acquire_wrapper';
COMMENT ON FUNCTION lease_try_acquire IS
    'acquires a lease if a slot becomes free within the timeout; otherwise returns no row';

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

CREATE FUNCTION lease_define(
    name text, slots int DEFAULT 1, ttl interval DEFAULT '30 seconds', lock_delay interval DEFAULT '0',
    notify boolean DEFAULT false, force boolean DEFAULT false) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_define_wrapper';
COMMENT ON FUNCTION lease_define IS
    'defines the slots of a lease, its ttl, the lock delay after a holder vanished, and if NOTIFY tells of its terms; force excludes holders';
-- A superuser grants it. The role that defines a name owns it.
REVOKE EXECUTE ON FUNCTION lease_define FROM PUBLIC;

CREATE FUNCTION lease_alter(
    name text, slots int DEFAULT NULL, ttl interval DEFAULT NULL, lock_delay interval DEFAULT NULL,
    notify boolean DEFAULT NULL, force boolean DEFAULT false) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_alter_definition_wrapper';
COMMENT ON FUNCTION lease_alter IS 'changes the definition of a lease; omitted arguments keep their values';

CREATE FUNCTION lease_drop(name text) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_drop_wrapper';
COMMENT ON FUNCTION lease_drop IS 'drops a lease that is not held';

CREATE FUNCTION lease_revoke(name text, slot int DEFAULT 0) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_revoke_wrapper';
COMMENT ON FUNCTION lease_revoke IS 'ends the term in a slot of a lease; false if the slot is free';

CREATE FUNCTION lease_guard() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_guard_wrapper';
COMMENT ON FUNCTION lease_guard IS
    'BEFORE trigger: refuses writes of transactions that have not fenced by the lease in its argument';

CREATE FUNCTION lease_renew(name text, token bigint, ttl interval DEFAULT NULL) RETURNS timestamptz
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_renew_wrapper';
COMMENT ON FUNCTION lease_renew IS
    'extends a lease from now on; returns its new end, or NULL if it is bound to a session';

CREATE FUNCTION lease_renew_many(
    names text[], tokens bigint[], ttl interval DEFAULT NULL, OUT name text, OUT token bigint,
    OUT expires_at timestamptz) RETURNS SETOF record
SUPPORT idgen.refuse_row_expansion LANGUAGE c AS 'MODULE_PATHNAME', 'lease_renew_many_wrapper';
COMMENT ON FUNCTION lease_renew_many IS 'extends those of several leases that are still held, and returns them';

CREATE FUNCTION lease_release(name text, token bigint) RETURNS boolean
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_release_wrapper';
COMMENT ON FUNCTION lease_release IS 'releases a lease once; false if it was acquired more often than released';

CREATE FUNCTION lease_release_many(
    names text[], tokens bigint[], OUT name text, OUT token bigint, OUT is_free boolean) RETURNS SETOF record
SUPPORT idgen.refuse_row_expansion LANGUAGE c AS 'MODULE_PATHNAME', 'lease_release_many_wrapper';
COMMENT ON FUNCTION lease_release_many IS
    'releases those of several leases that are still held once, and returns them; is_free as the result of lease_release';

CREATE FUNCTION lease_fence(name text, token bigint) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_fence_wrapper';
COMMENT ON FUNCTION lease_fence IS
    'lets the transaction commit only if the token is current; delays take-overs until it ends';

CREATE FUNCTION lease_fence_many(names text[], tokens bigint[]) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_fence_many_wrapper';
COMMENT ON FUNCTION lease_fence_many IS 'fences by several leases, as lease_fence by one';

CREATE FUNCTION idgen.lease_definition_changed() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_definition_changed_wrapper';
COMMENT ON FUNCTION idgen.lease_definition_changed IS 'trigger of idgen.lease_definition';
REVOKE EXECUTE ON FUNCTION idgen.lease_definition_changed FROM PUBLIC;

CREATE FUNCTION idgen.stat_get_lease(
    OUT grants bigint, OUT take_overs bigint, OUT renewals bigint, OUT releases bigint, OUT fences bigint,
    OUT refused bigint, OUT probes bigint, OUT wait_time interval) RETURNS SETOF record
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_lease_wrapper';
COMMENT ON FUNCTION idgen.stat_get_lease IS 'counters for the view idgen.stat_lease';
GRANT EXECUTE ON FUNCTION idgen.stat_get_lease TO pg_monitor;

CREATE FUNCTION idgen.lease_get_state(
    name text, depth int, ends_us bigint, ttl_us bigint, revoked boolean, clock text, session bigint,
    session_key bigint, lock_delay interval, OUT state text, OUT expires_at timestamptz, OUT bound boolean,
    OUT key bigint)
LANGUAGE c AS 'MODULE_PATHNAME', 'lease_get_state_wrapper';
COMMENT ON FUNCTION idgen.lease_get_state IS 'state of a slot, for the view idgen.leases';
GRANT EXECUTE ON FUNCTION idgen.lease_get_state TO pg_monitor;

CREATE TRIGGER lease_definition_changed AFTER INSERT OR UPDATE OR DELETE ON idgen.lease_definition
FOR EACH ROW EXECUTE FUNCTION idgen.lease_definition_changed();
COMMENT ON TRIGGER lease_definition_changed ON idgen.lease_definition IS 'announces changes to all sessions';

ALTER TABLE idgen.lease_definition ENABLE ALWAYS TRIGGER lease_definition_changed;

-- Slots that were ever granted. Only members of the holder's role see the token. 27761 is the kind of the locks of queues.
CREATE VIEW idgen.leases AS
SELECT lease.name, lease.slot, now.state,
       CASE WHEN lease.depth > 0 AND pg_catalog.pg_has_role(lease.role::oid, 'USAGE') THEN lease.token END AS token,
       lease.depth,
       CASE WHEN lease.depth > 0 THEN lease.owner END AS owner,
       CASE WHEN lease.depth > 0 THEN lease.role END AS role,
       CASE WHEN lease.depth > 0 THEN lease.data END AS data,
       CASE WHEN lease.depth > 0 THEN lease.acquired_at END AS acquired_at,
       now.expires_at,
       pg_catalog.make_interval(secs => lease.ttl_us OPERATOR(pg_catalog./) 1000000.0) AS ttl,
       now.bound, defined.slots, COALESCE(waiting.sessions, 0) AS queue,
       CASE WHEN lease.slot < 65536 THEN 'exclusive' ELSE 'shared' END AS mode,
       waiting.pids AS waiting_pids, waiting.blocked_by
FROM idgen.lease
LEFT JOIN idgen.lease_definition AS defined USING (name)
CROSS JOIN LATERAL idgen.lease_get_state(lease.name, lease.depth, lease.ends_us, lease.ttl_us, lease.revoked, lease.clock,
                                         lease.session, lease.session_key, defined.lock_delay) AS now
LEFT JOIN (SELECT queue.key, queue.sessions, queue.pids,
                  -- Those in the queue block each other. Others have locked or written the row.
                  (SELECT pg_catalog.array_agg(DISTINCT blocking.pid)
                   FROM pg_catalog.unnest(queue.pids) AS waiter (pid),
                        LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(waiter.pid)) AS blocking (pid)
                   WHERE blocking.pid <> ALL (queue.pids)) AS blocked_by
           FROM (SELECT (lock.classid::bigint << 32) | lock.objid::bigint AS key,
                        pg_catalog.count(*) AS sessions,
                        pg_catalog.array_agg(lock.pid ORDER BY lock.granted DESC, lock.waitstart) AS pids
                 FROM pg_catalog.pg_locks AS lock
                 WHERE lock.locktype = 'advisory' AND lock.objsubid = 27761
                   AND lock.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
                 GROUP BY 1) AS queue) AS waiting ON waiting.key = now.key;
COMMENT ON VIEW idgen.leases IS 'slots of leases, and their holders';
COMMENT ON COLUMN idgen.leases.name IS 'name of the lease';
COMMENT ON COLUMN idgen.leases.slot IS 'number of the slot; of a shared term, a number of its own from 65536 on';
COMMENT ON COLUMN idgen.leases.state IS
    'held; expired: the time is over, and no session has taken it; resting: unavailable for lock_delay, after a holder that vanished; free';
COMMENT ON COLUMN idgen.leases.token IS
    'fencing token; NULL except for members of the holder''s role, and NULL if free';
COMMENT ON COLUMN idgen.leases.depth IS 'how often it was acquired and not released';
COMMENT ON COLUMN idgen.leases.owner IS 'name that the holder gave itself; NULL if free, as are the next three';
COMMENT ON COLUMN idgen.leases.role IS 'role that acquired it';
COMMENT ON COLUMN idgen.leases.data IS 'data that the holder publishes';
COMMENT ON COLUMN idgen.leases.acquired_at IS 'when it was acquired';
COMMENT ON COLUMN idgen.leases.expires_at IS
    'when the holder''s time is over; NULL while the session that it is bound to lives';
COMMENT ON COLUMN idgen.leases.ttl IS 'how long it lasts after a renewal';
COMMENT ON COLUMN idgen.leases.bound IS 'true while the session that it is bound to lives';
COMMENT ON COLUMN idgen.leases.slots IS 'slots of the name; NULL if it is not defined';
COMMENT ON COLUMN idgen.leases.queue IS 'number of sessions that wait for the name';
COMMENT ON COLUMN idgen.leases.mode IS 'exclusive, or shared: of a term that lets other shared ones be';
COMMENT ON COLUMN idgen.leases.waiting_pids IS
    'processes that wait for the name, in the order in which they began; NULL if none does';
COMMENT ON COLUMN idgen.leases.blocked_by IS
    'processes whose transactions keep the first of them from the row: they have fenced, acquired or released, and have not ended; 0 is a prepared transaction; NULL if none does';
GRANT SELECT ON idgen.leases TO PUBLIC, pg_monitor;

CREATE VIEW idgen.stat_lease AS
SELECT grants, take_overs, renewals, releases, fences, refused, probes, wait_time, idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_lease();
COMMENT ON VIEW idgen.stat_lease IS 'counters of leases, over all databases';
COMMENT ON COLUMN idgen.stat_lease.grants IS 'slots acquired that were free';
COMMENT ON COLUMN idgen.stat_lease.take_overs IS 'slots acquired whose holder had not released them';
COMMENT ON COLUMN idgen.stat_lease.renewals IS 'renewals';
COMMENT ON COLUMN idgen.stat_lease.releases IS 'releases that freed a slot';
COMMENT ON COLUMN idgen.stat_lease.fences IS 'fences';
COMMENT ON COLUMN idgen.stat_lease.refused IS 'calls with a token that was not current';
COMMENT ON COLUMN idgen.stat_lease.probes IS 'reads of the rows by the head of a queue';
COMMENT ON COLUMN idgen.stat_lease.wait_time IS
    'time from the request to the answer, of all requests that reached the head of a queue';
COMMENT ON COLUMN idgen.stat_lease.stats_reset IS
    'when the counters of all views were last set to zero: by idgen.reset_stats(), or at a start';
GRANT SELECT ON idgen.stat_lease TO PUBLIC, pg_monitor;
