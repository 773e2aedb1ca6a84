CREATE VIEW idgen.stat_snowflake AS
SELECT layout, datacenter, worker, last_id, last_time, issued, batches, borrowed, waits,
       pg_catalog.make_interval(secs => wait_us OPERATOR(pg_catalog./) 1000000.0) AS wait_time,
       ends_at
FROM idgen.stat_get_snowflake();

CREATE VIEW idgen.stat_clock AS
SELECT mark, lead, backward_steps, largest_step, mark_writes, mark_write_time
FROM idgen.stat_get_clock();

-- The figures of a segment are for roles that may draw from it, and for members of pg_read_all_stats. A security barrier,
-- because the planner would run a cheap function of the caller on every tag before it checks that.
CREATE VIEW idgen.stat_segment WITH (security_barrier) AS
SELECT allocated.tag, allocated.max_id, allocated.step, ring.first_id, ring.last_id, ring.next_first_id, ring.next_last_id, ring.remaining,
       ring.issued, ring.refills,
       pg_catalog.make_interval(secs => ring.refill_us OPERATOR(pg_catalog./) 1000000.0) AS last_refill_time,
       ring.waits,
       pg_catalog.make_interval(secs => ring.wait_us OPERATOR(pg_catalog./) 1000000.0) AS wait_time,
       ring.last_error
FROM idgen.segment AS allocated JOIN idgen.stat_get_segment() AS ring USING (creation)
WHERE pg_catalog.pg_has_role(allocated.owner::oid, 'USAGE') OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')
   OR 0::oid OPERATOR(pg_catalog.=) ANY (allocated.drawers::oid[])
   OR EXISTS (SELECT FROM pg_catalog.unnest(allocated.drawers::oid[]) AS granted (role)
              WHERE pg_catalog.pg_has_role(granted.role, 'USAGE'));

-- What PostgreSQL's lock manager says, with the names and depths that idgen has kept. 26980 is the space of named locks.
CREATE VIEW idgen.locks AS
WITH lock AS (
    SELECT (classid::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) objid::bigint AS key, pid, granted, waitstart,
           mode OPERATOR(pg_catalog.=) 'ShareLock' AS shared
    FROM pg_catalog.pg_locks
    WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND objsubid OPERATOR(pg_catalog.=) 26980
      AND database OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
                                           WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
)
SELECT named.name, lock.key, lock.pid, CASE WHEN lock.shared THEN 'shared' ELSE 'exclusive' END AS mode,
       CASE WHEN lock.pid IS NULL THEN 'transaction'
            WHEN NOT lock.granted THEN held.waits_for
            WHEN held.session_depth OPERATOR(pg_catalog.>) 0 AND held.transaction_depth OPERATOR(pg_catalog.>) 0 THEN 'both'
            WHEN held.session_depth OPERATOR(pg_catalog.>) 0 THEN 'session'
            WHEN held.transaction_depth OPERATOR(pg_catalog.>) 0 THEN 'transaction' END AS scope,
       lock.granted, held.session_depth OPERATOR(pg_catalog.+) held.transaction_depth AS depth, held.acquired_at,
       lock.waitstart AS waiting_since,
       CASE WHEN NOT lock.granted THEN
           pg_catalog.row_number() OVER (PARTITION BY lock.key, lock.granted ORDER BY lock.waitstart) END AS queue_position,
       CASE WHEN NOT lock.granted THEN pg_catalog.pg_blocking_pids(lock.pid) END AS blocked_by,
       activity.usename AS user, activity.application_name AS application
FROM lock
LEFT JOIN idgen.lock_get_names() AS named ON named.key OPERATOR(pg_catalog.=) lock.key
LEFT JOIN idgen.lock_get_holds() AS held
       ON held.pid OPERATOR(pg_catalog.=) lock.pid AND held.key OPERATOR(pg_catalog.=) lock.key
      AND held.shared OPERATOR(pg_catalog.=) lock.shared AND (held.waits_for IS NULL) OPERATOR(pg_catalog.=) lock.granted
LEFT JOIN pg_catalog.pg_stat_activity AS activity ON activity.pid OPERATOR(pg_catalog.=) lock.pid;

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

CREATE VIEW idgen.workers AS
SELECT lease.name AS pool, lease.slot AS worker_id, lease.state, lease.token, lease.owner, lease.role, lease.acquired_at,
       lease.expires_at, lease.bound, known.not_before, known.not_after
FROM idgen.leases AS lease JOIN idgen.worker_number AS known
  ON known.pool OPERATOR(pg_catalog.=) lease.name AND known.number OPERATOR(pg_catalog.=) lease.slot;

CREATE VIEW idgen.stat_worker AS
SELECT source, state, worker_id, datacenter_id, pool, not_before, not_after, coordinator, pid, renewals, failures, failing_since,
       last_error, changes
FROM idgen.stat_get_worker();

CREATE TRIGGER segment_row BEFORE INSERT OR UPDATE OR DELETE ON idgen.segment
FOR EACH ROW EXECUTE FUNCTION idgen.segment_row();
-- Always: also for rows that a restore or a subscription writes.
ALTER TABLE idgen.segment ENABLE ALWAYS TRIGGER segment_row;

COMMENT ON SCHEMA idgen IS 'idgen: views and functions for operators';

COMMENT ON FUNCTION snowflake_next() IS
    'next id of this server in the layout of idgen.layout';
COMMENT ON FUNCTION snowflake_next(text) IS
    'next id of this server in a layout: a preset''s name or a spec';
COMMENT ON FUNCTION snowflake_next_many(int) IS
    'that many ids of this server, increasing, in the layout of idgen.layout';
COMMENT ON FUNCTION snowflake_next_many(int, text) IS
    'that many ids of this server, increasing, in a layout';
COMMENT ON FUNCTION snowflake_parts(bigint) IS
    'an id of idgen.layout taken apart; NULL where the layout has no such field';
COMMENT ON FUNCTION snowflake_parts(bigint, text) IS
    'an id of a layout taken apart; NULL where the layout has no such field';
COMMENT ON FUNCTION snowflake_time(bigint) IS
    'start of the tick in which an id of idgen.layout was made';
COMMENT ON FUNCTION snowflake_time(bigint, text) IS
    'start of the tick in which an id of a layout was made';
COMMENT ON FUNCTION snowflake_floor(timestamptz) IS
    'least id of the tick that holds this time, in the layout of idgen.layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_floor(timestamptz, text) IS
    'least id of the tick that holds this time, in a layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_ceil(timestamptz) IS
    'greatest id of the tick that holds this time, in the layout of idgen.layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_ceil(timestamptz, text) IS
    'greatest id of the tick that holds this time, in a layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, int) IS
    'the id with these parts in the layout of idgen.layout, for backfill';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, text) IS
    'the id with these parts in a layout, for backfill';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, int, text) IS
    'the id with these parts in a layout with datacenters, for backfill';
COMMENT ON FUNCTION snowflake_observe(bigint, boolean) IS
    'makes all ids of this server begin after this one of idgen.layout, as setval does; returns where they begin';
COMMENT ON FUNCTION snowflake_observe(bigint, text, boolean) IS
    'makes all ids of this server begin after this one of a layout, as setval does; returns where they begin';
COMMENT ON FUNCTION snowflake_encode(bigint, text) IS
    'an id as text: base2, base32, base36, base58, base62, base64, hex, or sort32 and sort62, which sort as the ids do by COLLATE "C"';
COMMENT ON FUNCTION snowflake_decode(text, text) IS
    'the id of a text in one of the formats of snowflake_encode';
COMMENT ON FUNCTION snowflake_layout() IS
    'what the layout of idgen.layout is: canonical spec, bits, unit, epoch, capacity, end';
COMMENT ON FUNCTION snowflake_layout(text) IS
    'what a layout is: canonical spec, bits, unit, epoch, capacity, end';

COMMENT ON VIEW idgen.stat_snowflake IS
    'one row for each layout and number of this server that issues ids: last id, counters, waits, end';
COMMENT ON FUNCTION idgen.stat_get_snowflake() IS
    'what idgen.stat_snowflake shows';
COMMENT ON VIEW idgen.stat_clock IS
    'the durable mark, how far ids are ahead of the clock, and the backward steps it has made';
COMMENT ON FUNCTION idgen.stat_get_clock() IS
    'what idgen.stat_clock shows';
COMMENT ON FUNCTION idgen.status() IS
    'versions, settings, and checks in words';
COMMENT ON FUNCTION idgen.reset_stats() IS
    'sets the counters of the views to zero';

COMMENT ON TABLE idgen.segment IS
    'where segment ids come from: one row for each tag, with the highest value that any server may have handed out';
COMMENT ON COLUMN idgen.segment.tag IS 'name of the segment, 1 to 255 bytes';
COMMENT ON COLUMN idgen.segment.max_id IS 'highest value that may have been handed out; it only rises';
COMMENT ON COLUMN idgen.segment.step IS 'values of the last range taken; adapts between min_step and max_step';
COMMENT ON COLUMN idgen.segment.min_step IS 'least step';
COMMENT ON COLUMN idgen.segment.max_step IS 'greatest step, at most 1000000000';
COMMENT ON COLUMN idgen.segment.target_duration IS
    'how long a range should last: one used up faster doubles the step, one that lasts twice as long halves it';
COMMENT ON COLUMN idgen.segment.stride IS 'distance of two values; several masters use one stride and different residues';
COMMENT ON COLUMN idgen.segment.residue IS 'what every value is modulo the stride';
COMMENT ON COLUMN idgen.segment.upper_bound IS 'greatest value that may be handed out';
COMMENT ON COLUMN idgen.segment.owner IS 'role that may alter, drop and grant';
COMMENT ON COLUMN idgen.segment.drawers IS 'roles that may draw beside the owner; - is everybody';
COMMENT ON COLUMN idgen.segment.creation IS 'random number of this creation of the tag; kept by a trigger';
COMMENT ON COLUMN idgen.segment.version IS
    'counts the changes of what values are made from, but for those of a refill; kept by a trigger';
COMMENT ON COLUMN idgen.segment.created_in IS 'transaction that made the row; kept by a trigger';
COMMENT ON COLUMN idgen.segment.changed_in IS 'transaction that last changed the row, but for a refill; kept by a trigger';
COMMENT ON FUNCTION idgen.segment_row() IS 'trigger of idgen.segment: keeps its numbers and tells all sessions of a change';
COMMENT ON TRIGGER segment_row ON idgen.segment IS 'keeps the row''s numbers and tells all sessions of a change';
COMMENT ON FUNCTION segment_next(text) IS 'next value of a segment';
COMMENT ON FUNCTION segment_next_many(text, int) IS 'that many values of a segment, increasing';
COMMENT ON FUNCTION segment_reserve(text, bigint) IS
    'that many values of a segment in one piece, for a client that counts by itself';
COMMENT ON FUNCTION segment_create(text, bigint, bigint, bigint, bigint, interval, bigint, bigint, bigint) IS
    'makes a segment, owned by the caller';
COMMENT ON FUNCTION segment_alter(text, bigint, bigint, bigint, bigint, interval, bigint, bigint, bigint, text) IS
    'changes a segment: what is NULL stays; max_id goes forward only';
COMMENT ON FUNCTION segment_drop(text) IS 'drops a segment';
COMMENT ON FUNCTION segment_grant(text, text) IS 'lets a role, or public, draw from a segment';
COMMENT ON FUNCTION segment_revoke(text, text) IS 'takes back what segment_grant gave';
COMMENT ON VIEW idgen.stat_segment IS
    'segments with values in shared memory: what is there, and how it is refilled; those that one may draw from';
COMMENT ON FUNCTION idgen.stat_get_segment() IS 'what the view idgen.stat_segment reads';

COMMENT ON FUNCTION lock_key(text) IS
    'key of a lock''s name: the first 8 bytes of its SHA-256, the high byte first';
COMMENT ON FUNCTION lock_acquire(text, boolean) IS 'takes a named lock for the session; waits as long as lock_timeout lets it';
COMMENT ON FUNCTION lock_acquire_xact(text, boolean) IS
    'takes a named lock for the transaction; waits as long as lock_timeout lets it';
COMMENT ON FUNCTION lock_try_acquire(text, interval, boolean) IS
    'takes a named lock for the session if it is to be had in time; false leaves nothing held';
COMMENT ON FUNCTION lock_try_acquire_xact(text, interval, boolean) IS
    'takes a named lock for the transaction if it is to be had in time; false leaves nothing held';
COMMENT ON FUNCTION lock_release(text, boolean) IS
    'lets go of a session''s named lock once; false, with a warning, if it is not held';
COMMENT ON FUNCTION lock_acquire_many(text[], boolean) IS 'takes several named locks for the session, or none';
COMMENT ON FUNCTION lock_acquire_many_xact(text[], boolean) IS 'takes several named locks for the transaction, or none';
COMMENT ON FUNCTION lock_try_acquire_many(text[], interval, boolean) IS
    'takes several named locks for the session if all are to be had in time, or none';
COMMENT ON FUNCTION lock_try_acquire_many_xact(text[], interval, boolean) IS
    'takes several named locks for the transaction if all are to be had in time, or none';
COMMENT ON FUNCTION lock_release_many(text[], boolean) IS
    'lets go of several of a session''s named locks, each once; false if one was not held';
COMMENT ON FUNCTION row_version() IS
    'trigger for BEFORE UPDATE: refuses a row that was changed meanwhile, by a column that counts its versions';
COMMENT ON VIEW idgen.locks IS 'named locks that are held or waited for in this database';
COMMENT ON FUNCTION idgen.lock_get_names() IS 'names of locks, for the view idgen.locks';
COMMENT ON FUNCTION idgen.lock_get_holds() IS 'who holds which lock how often, for the view idgen.locks';

COMMENT ON FUNCTION lease_acquire(text, interval, text, jsonb, bigint, boolean) IS
    'acquires a lease: its token is the proof; waits as long as lock_timeout lets it';
COMMENT ON FUNCTION lease_try_acquire(text, interval, interval, text, jsonb, bigint, boolean) IS
    'acquires a lease if it is to be had in time; else no row';
COMMENT ON FUNCTION lease_renew(text, bigint, interval) IS
    'makes a lease last from now on; returns when it ends then, or NULL if it is bound to a session';
COMMENT ON FUNCTION lease_renew_many(text[], bigint[], interval) IS
    'renews those of several leases that are still held, and returns them';
COMMENT ON FUNCTION lease_release(text, bigint) IS
    'lets go of a lease once; false if it is still held, acquired more often than released';
COMMENT ON FUNCTION lease_fence(text, bigint) IS
    'has the transaction commit only while the token is current: nobody can take the lease over before it ends';
COMMENT ON FUNCTION lease_guard() IS
    'trigger for BEFORE writes: refuses a transaction that has not fenced by the lease that is its argument';
COMMENT ON FUNCTION lease_define(text, int, interval, interval, int) IS
    'defines how many may hold a lease at once, for how long, how long a slot rests whose holder has vanished, and its first slot';
COMMENT ON FUNCTION lease_drop(text) IS 'forgets a lease that nobody holds';
COMMENT ON FUNCTION lease_revoke(text, int) IS 'takes a slot of a lease from its holder; false if there is none';
COMMENT ON TABLE idgen.lease_definition IS 'what is laid down for names of leases';
COMMENT ON COLUMN idgen.lease_definition.name IS 'name, 1 to 255 bytes';
COMMENT ON COLUMN idgen.lease_definition.slots IS 'how many may hold it at once';
COMMENT ON COLUMN idgen.lease_definition.ttl IS 'how long it lasts unless its holder says so';
COMMENT ON COLUMN idgen.lease_definition.lock_delay IS 'how long a slot rests whose holder has vanished';
COMMENT ON COLUMN idgen.lease_definition.owner IS 'who has defined it, and may change it';
COMMENT ON COLUMN idgen.lease_definition.first_slot IS 'its lowest slot, and so the lowest worker id of a pool';
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

COMMENT ON FUNCTION worker_acquire(text, text, interval, timestamptz, int) IS
    'acquires a worker id of a pool, and the interval of id time that it may be used for; without a ttl bound to the session';
COMMENT ON FUNCTION worker_renew(text, bigint, timestamptz, timestamptz) IS
    'makes a worker id last, and moves on the end of its id time, if that end is still the one that the caller was told last';
COMMENT ON FUNCTION worker_renew(text, bigint, interval) IS
    'deprecated: renews a worker id without comparison, for keepers of idgen 0.7';
COMMENT ON FUNCTION worker_confirm(text, bigint) IS
    'waits until the synchronous standbys have the rectangle of a token, and returns the end of its id time';
COMMENT ON FUNCTION worker_release(text, bigint, timestamptz, timestamptz) IS
    'gives a worker id back; with the last time in its ids the next holder can begin right after it';
COMMENT ON FUNCTION worker_move(text, text) IS
    'carries the worker ids of a pool over to another one, with their rectangles and leases, and drops the first; returns how many';
COMMENT ON FUNCTION worker_correct(text, int, timestamptz) IS
    'declares that no id at or after a time was issued under a worker id without a holder; returns the time recorded before';
COMMENT ON TABLE idgen.worker_number IS 'which id times the last holder of each number of a pool was allowed';
COMMENT ON COLUMN idgen.worker_number.pool IS 'name of the pool';
COMMENT ON COLUMN idgen.worker_number.number IS 'the number, a slot of the lease of that name';
COMMENT ON COLUMN idgen.worker_number.not_before IS 'begin of the id times of its holder, or its last one';
COMMENT ON COLUMN idgen.worker_number.not_after IS 'no id of its holder has this time or a later one';
COMMENT ON COLUMN idgen.worker_number.token IS 'token of the lease that they were allowed with';
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
COMMENT ON VIEW idgen.workers IS 'numbers of pools that were ever taken, and who holds them';
COMMENT ON VIEW idgen.stat_worker IS 'the worker id of this server, and how its lease stands';
COMMENT ON FUNCTION idgen.stat_get_worker() IS 'what the view idgen.stat_worker reads';

-- Everybody may generate, decode and look. Setting the counters back, and saying where ids begin, is for DBAs; superusers
-- grant it.
GRANT USAGE ON SCHEMA idgen TO PUBLIC;
GRANT SELECT ON idgen.stat_snowflake, idgen.stat_clock, idgen.stat_segment, idgen.locks TO PUBLIC;
REVOKE EXECUTE ON FUNCTION idgen.reset_stats() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION snowflake_observe(bigint, boolean), snowflake_observe(bigint, text, boolean) FROM PUBLIC;
-- Making a segment is for whom a superuser grants it; from then on it is its owner's.
REVOKE EXECUTE ON FUNCTION segment_create(text, bigint, bigint, bigint, bigint, interval, bigint, bigint, bigint) FROM PUBLIC;
-- The trigger fits its own table only; firing it there takes no privilege.
REVOKE EXECUTE ON FUNCTION idgen.segment_row() FROM PUBLIC;
-- What stands in a lease's row is for its holder; the view shows the rest. Defining one is for whom a superuser grants it; from
-- then on it is its definer's.
GRANT SELECT ON idgen.leases, idgen.workers, idgen.stat_worker, idgen.stat_lease, idgen.lease_definition TO PUBLIC;
REVOKE EXECUTE ON FUNCTION lease_define(text, int, interval, interval, int) FROM PUBLIC;
-- The caller declares that the origin of a copy grants no more. Grant it to administrators only.
REVOKE EXECUTE ON FUNCTION worker_begin_history(timestamptz) FROM PUBLIC;
-- What a dump by the owner of the database reads, and its restore writes. Rows that are there change through the functions only.
GRANT SELECT, INSERT ON idgen.segment, idgen.lease_definition, idgen.worker_number, idgen.worker_history TO pg_database_owner;
