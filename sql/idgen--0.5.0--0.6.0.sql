\echo Use "ALTER EXTENSION idgen UPDATE TO '0.6.0'" to load this file. \quit

-- Leases with fencing tokens.
-- What is laid down for names of leases.
CREATE TABLE idgen.lease_definition (
    name text PRIMARY KEY
        CHECK (pg_catalog.octet_length(name) OPERATOR(pg_catalog.>=) 1
               AND pg_catalog.octet_length(name) OPERATOR(pg_catalog.<=) 255),
    slots int NOT NULL CHECK (slots OPERATOR(pg_catalog.>=) 1 AND slots OPERATOR(pg_catalog.<=) 65536),
    ttl interval NOT NULL CHECK (ttl OPERATOR(pg_catalog.>) '0 seconds'),
    lock_delay interval NOT NULL CHECK (lock_delay OPERATOR(pg_catalog.>=) '0 seconds'),
    owner regrole NOT NULL
);
SELECT pg_catalog.pg_extension_config_dump('idgen.lease_definition', '');

-- Fencing tokens. Neither it nor the terms are for a dump: who restores one is another server, where nobody holds anything.
CREATE SEQUENCE idgen.lease_token;
-- Past those of an extension that was dropped: a session that raised the sequence then does not raise it again.
SELECT pg_catalog.setval('idgen.lease_token', (pg_catalog.extract('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint);

-- The slots of names, and their terms: who holds one, or had it last. Times are microseconds of the clock that is named.
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
    session_key bigint,
    PRIMARY KEY (name, slot),
    -- So a new token is a change of a key, which waits for those who hold FOR KEY SHARE; a renewal is none, and does not.
    UNIQUE (name, token)
) WITH (fillfactor = 50); -- room beside each row, so that a renewal touches no index

CREATE FUNCTION lease_acquire(name text, ttl interval DEFAULT NULL, owner text DEFAULT NULL, data jsonb DEFAULT NULL, token bigint DEFAULT NULL, bind_session boolean DEFAULT false, OUT name text, OUT slot int, OUT token bigint, OUT owner text, OUT acquired_at timestamptz, OUT expires_at timestamptz, OUT depth int) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_acquire_wrapper';
CREATE FUNCTION lease_define(name text, slots int DEFAULT 1, ttl interval DEFAULT '30 seconds', lock_delay interval DEFAULT '0') RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_define_wrapper';
CREATE FUNCTION lease_drop(name text) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_drop_wrapper';
CREATE FUNCTION lease_fence(name text, token bigint) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_fence_wrapper';
CREATE FUNCTION idgen.lease_get_states(OUT name text, OUT slot int, OUT state text, OUT expires_at timestamptz, OUT bound boolean, OUT key bigint) RETURNS SETOF record VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_get_states_wrapper';
CREATE FUNCTION lease_guard() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'lease_guard_wrapper';
CREATE FUNCTION lease_release(name text, token bigint) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_release_wrapper';
CREATE FUNCTION lease_renew(name text, token bigint, ttl interval DEFAULT NULL) RETURNS timestamptz VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_renew_wrapper';
CREATE FUNCTION lease_renew_many(names text[], tokens bigint[], ttl interval DEFAULT NULL, OUT name text, OUT token bigint, OUT expires_at timestamptz) RETURNS SETOF record VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_renew_many_wrapper';
CREATE FUNCTION lease_revoke(name text, slot int DEFAULT 0) RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_revoke_wrapper';
CREATE FUNCTION lease_try_acquire(name text, timeout interval DEFAULT '0', ttl interval DEFAULT NULL, owner text DEFAULT NULL, data jsonb DEFAULT NULL, token bigint DEFAULT NULL, bind_session boolean DEFAULT false, OUT name text, OUT slot int, OUT token bigint, OUT owner text, OUT acquired_at timestamptz, OUT expires_at timestamptz, OUT depth int) RETURNS SETOF record ROWS 1 VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_try_acquire_wrapper';
CREATE FUNCTION idgen.stat_get_lease(OUT grants bigint, OUT take_overs bigint, OUT renewals bigint, OUT releases bigint, OUT fences bigint, OUT refused bigint, OUT probes bigint, OUT wait_time interval) RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_lease_wrapper';

-- Slots that were ever taken. A token is the proof of its holder: others do not see it. 27761 is the space of the queues.
CREATE VIEW idgen.leases AS
SELECT lease.name, lease.slot, now.state,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 AND pg_catalog.pg_has_role(lease.role::oid, 'USAGE') THEN lease.token END AS token,
       lease.depth,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.owner END AS owner,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.role END AS role,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.data END AS data,
       CASE WHEN lease.depth OPERATOR(pg_catalog.>) 0 THEN lease.acquired_at END AS acquired_at,
       now.expires_at,
       pg_catalog.make_interval(secs => lease.ttl_us OPERATOR(pg_catalog./) 1000000.0) AS ttl,
       now.bound, defined.slots,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_locks AS lock
        WHERE lock.locktype OPERATOR(pg_catalog.=) 'advisory' AND lock.objsubid OPERATOR(pg_catalog.=) 27761
          AND ((lock.classid::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) lock.objid::bigint) OPERATOR(pg_catalog.=) now.key
          AND lock.database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
                                                    WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())) AS queue
FROM idgen.lease JOIN idgen.lease_get_states() AS now USING (name, slot) LEFT JOIN idgen.lease_definition AS defined USING (name);

CREATE VIEW idgen.stat_lease AS
SELECT grants, take_overs, renewals, releases, fences, refused, probes, wait_time FROM idgen.stat_get_lease();

COMMENT ON FUNCTION lease_acquire(text, interval, text, jsonb, bigint, boolean) IS
    'acquires a lease: its token is the proof; waits as long as lock_timeout lets it';
COMMENT ON FUNCTION lease_try_acquire(text, interval, interval, text, jsonb, bigint, boolean) IS
    'acquires a lease if it is to be had in time; else no row';
COMMENT ON FUNCTION lease_renew(text, bigint, interval) IS 'makes a lease last from now on; returns when it ends then';
COMMENT ON FUNCTION lease_renew_many(text[], bigint[], interval) IS
    'renews those of several leases that are still held, and returns them';
COMMENT ON FUNCTION lease_release(text, bigint) IS
    'lets go of a lease once; false if it is still held, acquired more often than released';
COMMENT ON FUNCTION lease_fence(text, bigint) IS
    'has the transaction commit only while the token is current: nobody can take the lease over before it ends';
COMMENT ON FUNCTION lease_guard() IS
    'trigger for BEFORE writes: refuses a transaction that has not fenced by the lease that is its argument';
COMMENT ON FUNCTION lease_define(text, int, interval, interval) IS
    'lays down how many may hold a lease at once, for how long, and how long a slot rests whose holder has vanished';
COMMENT ON FUNCTION lease_drop(text) IS 'forgets a lease that nobody holds';
COMMENT ON FUNCTION lease_revoke(text, int) IS 'takes a slot of a lease from its holder; false if there is none';
COMMENT ON TABLE idgen.lease_definition IS 'what is laid down for names of leases';
COMMENT ON COLUMN idgen.lease_definition.name IS 'name, 1 to 255 bytes';
COMMENT ON COLUMN idgen.lease_definition.slots IS 'how many may hold it at once';
COMMENT ON COLUMN idgen.lease_definition.ttl IS 'how long it lasts unless its holder says so';
COMMENT ON COLUMN idgen.lease_definition.lock_delay IS 'how long a slot rests whose holder has vanished';
COMMENT ON COLUMN idgen.lease_definition.owner IS 'who has defined it, and may change it';
COMMENT ON TABLE idgen.lease IS 'slots of leases and their terms; read it by the view idgen.leases';
COMMENT ON COLUMN idgen.lease.name IS 'name of the lease';
COMMENT ON COLUMN idgen.lease.slot IS 'number of the slot, from 0';
COMMENT ON COLUMN idgen.lease.token IS 'fencing token of the term, or of the last one';
COMMENT ON COLUMN idgen.lease.depth IS 'how often acquired and not yet released; 0 is free';
COMMENT ON COLUMN idgen.lease.owner IS 'what the holder calls himself';
COMMENT ON COLUMN idgen.lease.role IS 'role that acquired it; its members may act as the holder';
COMMENT ON COLUMN idgen.lease.data IS 'what the holder tells others';
COMMENT ON COLUMN idgen.lease.acquired_at IS 'when the term began, by the wall clock';
COMMENT ON COLUMN idgen.lease.ttl_us IS 'how long it lasts from the last renewal on, in microseconds';
COMMENT ON COLUMN idgen.lease.ends_us IS 'end of the term; of a free slot, when it was freed; microseconds of the clock';
COMMENT ON COLUMN idgen.lease.clock IS 'which CLOCK_BOOTTIME: the boot of the machine, and the offset of the time namespace';
COMMENT ON COLUMN idgen.lease.revoked IS 'freed by force, so that it rests before it is taken';
COMMENT ON COLUMN idgen.lease.session IS 'start of the server whose session it is bound to; NULL if to none';
COMMENT ON COLUMN idgen.lease.session_key IS 'key of the advisory lock that the session holds; random, because all can see locks';
COMMENT ON SEQUENCE idgen.lease_token IS 'fencing tokens';
COMMENT ON VIEW idgen.leases IS 'slots of leases that were ever taken, and who holds them';
COMMENT ON FUNCTION idgen.lease_get_states() IS 'how slots of leases stand now, for the view idgen.leases';
COMMENT ON VIEW idgen.stat_lease IS 'what was done with leases, over all databases';
COMMENT ON FUNCTION idgen.stat_get_lease() IS 'what the view idgen.stat_lease reads';

-- What stands in a lease's row is for its holder; the view shows the rest. Defining one is for whom a superuser grants it; from
-- then on it is its definer's.
GRANT SELECT ON idgen.leases, idgen.stat_lease, idgen.lease_definition TO PUBLIC;
REVOKE EXECUTE ON FUNCTION lease_define(text, int, interval, interval) FROM PUBLIC;
