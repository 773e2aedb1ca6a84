\echo Use "ALTER EXTENSION idgen UPDATE TO '0.8.0'" to load this file. \quit

-- The library keeps the symbols: they serve the SQL of 0.7 as well.
DROP FUNCTION worker_acquire(text, text, interval);
DROP FUNCTION worker_renew(text, bigint, interval);
CREATE FUNCTION worker_acquire(pool text, owner text DEFAULT NULL, ttl interval DEFAULT NULL, reached timestamptz DEFAULT NULL, prefer int DEFAULT NULL, OUT worker_id int, OUT token bigint, OUT not_before timestamptz, OUT not_after timestamptz, OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_acquire_wrapper';
CREATE FUNCTION worker_renew(pool text, token bigint, last_not_after timestamptz, reached timestamptz DEFAULT NULL, OUT not_after timestamptz, OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_renew_compared_wrapper';
CREATE FUNCTION worker_renew(pool text, token bigint, ttl interval, OUT not_after timestamptz, OUT expires_at timestamptz) VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_renew_wrapper';
CREATE FUNCTION worker_confirm(pool text, token bigint) RETURNS timestamptz VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_confirm_wrapper';

COMMENT ON FUNCTION worker_acquire(text, text, interval, timestamptz, int) IS
    'acquires a worker id of a pool, and the interval of id time that it may be used for; without a ttl bound to the session';
COMMENT ON FUNCTION worker_renew(text, bigint, timestamptz, timestamptz) IS
    'makes a worker id last, and moves on the end of its id time, if that end is still the one that the caller was told last';
COMMENT ON FUNCTION worker_renew(text, bigint, interval) IS
    'deprecated: renews a worker id without comparison, for keepers of idgen 0.7';
COMMENT ON FUNCTION worker_confirm(text, bigint) IS
    'waits until the synchronous standbys have the rectangle of a token, and returns the end of its id time';

-- A range of slots, and moving worker ids.
ALTER TABLE idgen.lease_definition
    ADD COLUMN first_slot int NOT NULL DEFAULT 0 CHECK (first_slot OPERATOR(pg_catalog.>=) 0),
    ADD CHECK (first_slot OPERATOR(pg_catalog.<=) (65536 OPERATOR(pg_catalog.-) slots));
SELECT pg_catalog.pg_extension_config_dump('idgen.lease_definition', $condition$WHERE false UNION ALL
    SELECT name, slots, ttl, lock_delay,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END, first_slot
    FROM idgen.lease_definition$condition$);
COMMENT ON COLUMN idgen.lease_definition.first_slot IS 'its lowest slot, and so the lowest worker id of a pool';

DROP FUNCTION lease_define(text, int, interval, interval);
CREATE FUNCTION lease_define(name text, slots int DEFAULT 1, ttl interval DEFAULT '30 seconds', lock_delay interval DEFAULT '0',
                             first_slot int DEFAULT 0) RETURNS void
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_define_range_wrapper';
REVOKE EXECUTE ON FUNCTION lease_define(text, int, interval, interval, int) FROM PUBLIC;
COMMENT ON FUNCTION lease_define(text, int, interval, interval, int) IS
    'defines how many may hold a lease at once, for how long, how long a slot rests whose holder has vanished, and its first slot';

CREATE FUNCTION worker_move(from_pool text, to_pool text) RETURNS int
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_move_wrapper';
COMMENT ON FUNCTION worker_move(text, text) IS
    'carries the worker ids of a pool over to another one, with their rectangles and leases, and drops the first; returns how many';
CREATE FUNCTION worker_correct(pool text, worker_id int, used_until timestamptz) RETURNS timestamptz
VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_correct_wrapper';
COMMENT ON FUNCTION worker_correct(text, int, timestamptz) IS
    'declares that no id at or after a time was issued under a worker id without a holder; returns the time recorded before';

-- At most one row: which server, timeline, database and data directory have granted worker ids. idgen compares it, and so notices
-- a failover, a restore or a copy.
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
-- Zeros match no database: a restored one notices that it has not granted these worker ids itself.
SELECT pg_catalog.pg_extension_config_dump('idgen.worker_history', $condition$WHERE false UNION ALL
    SELECT one, 0, 0, 0::oid, place, since, first_token, longest FROM idgen.worker_history$condition$);
GRANT SELECT, INSERT ON idgen.worker_history TO pg_database_owner;
CREATE FUNCTION worker_begin_history(since timestamptz DEFAULT NULL) RETURNS timestamptz VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_begin_history_wrapper';
REVOKE EXECUTE ON FUNCTION worker_begin_history(timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION worker_begin_history(timestamptz) IS
    'lets a copy of the coordinator grant worker ids once its origin grants no more; returns from when on they have no lead';
COMMENT ON TABLE idgen.worker_history IS 'server, timeline and data directory that grant worker ids from this database, and since when their history is complete';
COMMENT ON COLUMN idgen.worker_history.one IS 'true: there is at most one row';
COMMENT ON COLUMN idgen.worker_history.system_identifier IS 'system identifier of the server; 0 in a dump';
COMMENT ON COLUMN idgen.worker_history.timeline IS 'timeline of the server; 0 in a dump';
COMMENT ON COLUMN idgen.worker_history.database IS 'OID of the database; 0 in a dump';
COMMENT ON COLUMN idgen.worker_history.place IS 'inode and birth time of PG_VERSION in the data directory: a copy has others';
COMMENT ON COLUMN idgen.worker_history.since IS
    'when a failover, a restore or a new beginning was noticed last; -infinity if everything is known that was granted';
COMMENT ON COLUMN idgen.worker_history.first_token IS 'tokens below it are from before that, and cannot be renewed';
COMMENT ON COLUMN idgen.worker_history.longest IS 'longest time from the clock to the end of id times that was ever possible';

DROP FUNCTION worker_release(text, bigint, timestamptz);
CREATE FUNCTION worker_release(pool text, token bigint, last_time timestamptz DEFAULT NULL, last_not_after timestamptz DEFAULT NULL)
RETURNS boolean VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'worker_release_compared_wrapper';
COMMENT ON FUNCTION worker_release(text, bigint, timestamptz, timestamptz) IS
    'gives a worker id back; with the last time in its ids the next holder can begin right after it';
