-- The comments of all objects, and then their privileges. First, all functions that change something and return several columns.
ALTER FUNCTION segment_reserve(text, bigint) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION segment_request(text, bigint, text, bigint, bigint) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION lease_acquire(text, interval, text, jsonb, bigint, boolean, boolean) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION lease_try_acquire(text, interval, interval, text, jsonb, bigint, boolean, boolean) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION lease_renew_many(text[], bigint[], interval) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION worker_acquire(text, text, interval, timestamptz, int) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION worker_renew(text, bigint, timestamptz, timestamptz) SUPPORT idgen.refuse_row_expansion;
ALTER FUNCTION worker_renew(text, bigint, interval) SUPPORT idgen.refuse_row_expansion;


COMMENT ON SCHEMA idgen IS 'idgen: views and functions for operators';
COMMENT ON FUNCTION idgen.refuse_row_expansion(internal) IS
    'planner support: refuses (function(...)).*, which would call the function once for each column';

COMMENT ON FUNCTION snowflake_next() IS 'next id in the layout of idgen.layout';
COMMENT ON FUNCTION snowflake_next(text) IS 'next id in a layout, a preset or a spec';
COMMENT ON FUNCTION snowflake_next_many(int) IS 'count increasing ids in the layout of idgen.layout';
COMMENT ON FUNCTION snowflake_next_many(int, text) IS 'count increasing ids in a layout';
COMMENT ON FUNCTION snowflake_parts(bigint) IS 'parts of an id of idgen.layout; NULL for a field that the layout lacks';
COMMENT ON FUNCTION snowflake_parts(bigint, text) IS
    'parts of an id of a layout; NULL for a field that the layout lacks';
COMMENT ON FUNCTION snowflake_time(bigint) IS 'start of the tick of an id of idgen.layout';
COMMENT ON FUNCTION snowflake_time(bigint, text) IS 'start of the tick of an id of a layout';
COMMENT ON FUNCTION snowflake_floor(timestamptz) IS
    'least id of the tick that contains a time, in the layout of idgen.layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_floor(timestamptz, text) IS
    'least id of the tick that contains a time, in a layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_ceil(timestamptz) IS
    'greatest id of the tick that contains a time, in the layout of idgen.layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_ceil(timestamptz, text) IS
    'greatest id of the tick that contains a time, in a layout; clamped to the layout';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, int) IS
    'id with these parts in the layout of idgen.layout, for backfill';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, text) IS 'id with these parts in a layout, for backfill';
COMMENT ON FUNCTION snowflake_make(timestamptz, int, bigint, int, text) IS
    'id with these parts in a layout with datacenters, for backfill';
COMMENT ON FUNCTION snowflake_observe(bigint, boolean) IS
    'moves all ids of this server past an id of idgen.layout, as setval does for a sequence; returns the time where they begin';
COMMENT ON FUNCTION snowflake_observe(bigint, text, boolean) IS
    'moves all ids of this server past an id of a layout, as setval does for a sequence; returns the time where they begin';
COMMENT ON FUNCTION snowflake_settled() IS
    'greatest id of idgen.layout up to which no transaction of this server can commit a row any more; for use in a later statement';
COMMENT ON FUNCTION snowflake_settled(text) IS
    'greatest id of a layout up to which no transaction of this server can commit a row any more; for use in a later statement';
COMMENT ON FUNCTION snowflake_encode(bigint, text) IS
    'id as text: base2, base32, base36, base58, base62, base64, hex, sort32 or sort62; the last two sort like the ids in COLLATE "C"';
COMMENT ON FUNCTION snowflake_decode(text, text) IS 'id of a text in one of the formats of snowflake_encode';
COMMENT ON FUNCTION snowflake_adopt(regclass, name, text, boolean) IS
    'statements that turn a serial or identity column into snowflake ids; runs them unless dry_run is true';
COMMENT ON PROCEDURE snowflake_adopt_schema(regnamespace, text, boolean) IS
    'snowflake_adopt for each table of a schema, with a commit after each; continues when called again';
COMMENT ON FUNCTION idgen.snowflake_adopt_tables(regnamespace) IS 'tables of a schema, for snowflake_adopt_schema';
COMMENT ON FUNCTION idgen.snowflake_adopt_plan(regclass, name, text, bigint) IS 'statements for snowflake_adopt';
COMMENT ON FUNCTION idgen.snowflake_adopt_check(regclass, name, bigint) IS
    'refuses a column that cannot hold snowflake ids, for snowflake_adopt';
COMMENT ON FUNCTION idgen.snowflake_adopt_columns(regclass, name) IS
    'columns of a table and of those that inherit from it, for snowflake_adopt';
COMMENT ON FUNCTION idgen.snowflake_adopt_holders(regclass, name) IS
    'columns that get the ids of a column: its own and those that reference it, for snowflake_adopt';
COMMENT ON FUNCTION idgen.snowflake_adopt_as_owner(regclass, text) IS
    'runs a query as the owner of a table, in a security-restricted operation, for snowflake_adopt';
COMMENT ON FUNCTION snowflake_layout() IS
    'canonical spec, bits, unit, epoch, capacity and end of the layout of idgen.layout';
COMMENT ON FUNCTION snowflake_layout(text) IS 'canonical spec, bits, unit, epoch, capacity and end of a layout';

COMMENT ON FUNCTION uuidv7_next() IS 'next UUID of version 7: greater than all that this server made before';
COMMENT ON FUNCTION uuidv7_next(boolean) IS
    'next UUID of version 7; if node is true, its first 31 random bits are the worker id of this server';
COMMENT ON FUNCTION uuidv7_next_many(int) IS 'count increasing UUIDs of version 7';
COMMENT ON FUNCTION uuidv7_next_many(int, boolean) IS 'count increasing UUIDs of version 7, as uuidv7_next(node) makes them';
COMMENT ON FUNCTION uuidv7_floor(timestamptz) IS 'least UUID of version 7 of the millisecond that contains a time';
COMMENT ON FUNCTION uuidv7_ceil(timestamptz) IS 'greatest UUID of version 7 of the millisecond that contains a time';
COMMENT ON FUNCTION uuidv7_time(uuid) IS 'time in a UUID of version 7';

COMMENT ON VIEW idgen.stat_snowflake IS
    'statistics of ids, one row for each layout and worker id in use on this server';
COMMENT ON FUNCTION idgen.stat_get_snowflake() IS 'rows of the view idgen.stat_snowflake';
COMMENT ON VIEW idgen.stat_clock IS
    'high-water mark, lead of ids over the wall clock, and backward steps of the wall clock';
COMMENT ON FUNCTION idgen.stat_get_clock() IS 'row of the view idgen.stat_clock';
COMMENT ON FUNCTION idgen.status() IS 'versions, settings, worker id and checks';
COMMENT ON FUNCTION idgen.reset_stats() IS 'sets the counters of all views to zero';

COMMENT ON TABLE idgen.segment IS
    'segments: one row for each tag, with the highest value that any server may have handed out';
COMMENT ON COLUMN idgen.segment.tag IS 'name of the segment, 1 to 255 bytes';
COMMENT ON COLUMN idgen.segment.max_id IS 'highest value that may have been handed out';
COMMENT ON COLUMN idgen.segment.step IS
    'number of values in the last range taken; adapts between min_step and max_step';
COMMENT ON COLUMN idgen.segment.min_step IS 'lowest step';
COMMENT ON COLUMN idgen.segment.max_step IS 'highest step, at most 1000000000';
COMMENT ON COLUMN idgen.segment.target_duration IS
    'how long a range should last: a range used up faster doubles the step, one that lasts twice as long halves it';
COMMENT ON COLUMN idgen.segment.stride IS
    'distance between two values; several primaries use one stride and different residues';
COMMENT ON COLUMN idgen.segment.residue IS 'remainder of each value divided by the stride';
COMMENT ON COLUMN idgen.segment.upper_bound IS 'highest value that may be handed out';
COMMENT ON COLUMN idgen.segment.owner IS 'role that may alter, drop and grant';
COMMENT ON COLUMN idgen.segment.drawers IS 'roles besides the owner that may draw; - is PUBLIC';
COMMENT ON COLUMN idgen.segment.creation IS 'random number of this creation of the tag; set by a trigger';
COMMENT ON COLUMN idgen.segment.version IS
    'number of changes of the columns that determine values, refills excluded; set by a trigger';
COMMENT ON COLUMN idgen.segment.created_in IS 'id of the transaction that created the row; set by a trigger';
COMMENT ON COLUMN idgen.segment.changed_in IS
    'id of the transaction that last changed the row, refills excluded; set by a trigger';
COMMENT ON COLUMN idgen.segment.server IS 'number by which the coordinator knows this server; NULL unless the segment is or was attached';
COMMENT ON COLUMN idgen.segment.reserve IS 'how long values last while the coordinator is away; NULL unless the segment is attached';
COMMENT ON COLUMN idgen.segment.source IS 'tag of the coordinator that the last values came from: system identifier, database, creation, version';
COMMENT ON COLUMN idgen.segment.history IS 'at a coordinator: system identifier, timeline, database and place, as in idgen.worker_history, under which it last granted values';
COMMENT ON COLUMN idgen.segment.received IS 'highest value of the coordinator when the segment was detached; NULL once the coordinator knows it';
COMMENT ON COLUMN idgen.segment.servers IS 'at a coordinator: roles besides the owner that may request and report for attached servers; - is PUBLIC';
COMMENT ON TABLE idgen.segment_server IS 'at a coordinator: servers that are attached to its segments';
COMMENT ON COLUMN idgen.segment_server.tag IS 'segment that the server draws from';
COMMENT ON COLUMN idgen.segment_server.server IS 'number of the attached server';
COMMENT ON COLUMN idgen.segment_server.name IS 'name of the attached server: its host name, port and data directory';
COMMENT ON COLUMN idgen.segment_server.max_id IS 'highest value that the server has received';
COMMENT ON COLUMN idgen.segment_server.history IS 'history of the coordinator at the last report: see idgen.segment.history';
COMMENT ON COLUMN idgen.segment_server.reported_at IS 'time of the last report';
COMMENT ON COLUMN idgen.segment_server.first_id IS 'not in use; dumps of earlier versions have it';
COMMENT ON COLUMN idgen.segment_server.last_id IS 'not in use; dumps of earlier versions have it';
COMMENT ON FUNCTION idgen.segment_row() IS
    'trigger of idgen.segment: sets creation, version and transaction ids, and announces changes to all sessions';
COMMENT ON TRIGGER segment_row ON idgen.segment IS
    'sets creation, version and transaction ids, and announces changes to all sessions';
COMMENT ON FUNCTION segment_next(text) IS 'next value of a segment';
COMMENT ON FUNCTION segment_next_many(text, int) IS 'that many values of a segment, increasing';
COMMENT ON FUNCTION segment_reserve(text, bigint) IS
    'that many consecutive values of a segment, for a client that counts them itself';
COMMENT ON FUNCTION segment_create(text, bigint, bigint, bigint, bigint, interval, bigint, bigint, bigint) IS
    'creates a segment that the caller owns';
COMMENT ON FUNCTION segment_alter(text, bigint, bigint, bigint, bigint, interval, bigint, bigint, bigint, text) IS
    'alters a segment: NULL keeps a setting; max_id cannot be lowered';
COMMENT ON FUNCTION segment_drop(text) IS 'drops a segment';
COMMENT ON FUNCTION segment_grant(text, text, boolean) IS
    'lets a role, or public, draw from a segment; as a server, request and report for attached servers';
COMMENT ON FUNCTION segment_revoke(text, text, boolean) IS 'revokes what segment_grant granted';
COMMENT ON FUNCTION segment_attach(text, interval) IS
    'lets a segment draw from that of the same name at the coordinator, with values for the reserve fetched ahead';
COMMENT ON FUNCTION segment_detach(text) IS 'ends the attachment of a segment to the coordinator';
COMMENT ON FUNCTION segment_request(text, bigint, text, bigint, bigint) IS
    'at a coordinator: reports what an attached server has received, and grants it values';
COMMENT ON FUNCTION segment_confirm() IS 'at a coordinator: waits until the synchronous standbys have all grants';
COMMENT ON FUNCTION segment_leave(text, bigint, bigint) IS 'at a coordinator: a server is no longer attached';
COMMENT ON FUNCTION segment_resume(text, bigint) IS
    'at a coordinator: grants values again from above max_id on, although attached servers have not reported';
COMMENT ON VIEW idgen.stat_segment IS
    'segments with values in shared memory: their ranges, refills and waits; shows those that the user may draw from';
COMMENT ON FUNCTION idgen.stat_get_segment() IS 'rows of the view idgen.stat_segment';
COMMENT ON FUNCTION idgen.stat_get_segment_supply() IS 'columns of attached segments of the view idgen.stat_segment';

COMMENT ON FUNCTION lock_key(text) IS 'key of a lock''s name: the first 8 bytes of its SHA-256, big-endian';
COMMENT ON FUNCTION lock_acquire(text, boolean) IS
    'acquires a named lock for the session; waits as long as lock_timeout allows';
COMMENT ON FUNCTION lock_acquire_xact(text, boolean) IS
    'acquires a named lock for the transaction; waits as long as lock_timeout allows';
COMMENT ON FUNCTION lock_try_acquire(text, interval, boolean) IS
    'acquires a named lock for the session within a timeout; false leaves nothing held';
COMMENT ON FUNCTION lock_try_acquire_xact(text, interval, boolean) IS
    'acquires a named lock for the transaction within a timeout; false leaves nothing held';
COMMENT ON FUNCTION lock_release(text, boolean) IS
    'releases a session''s named lock once; false, with a warning, if the session does not hold it';
COMMENT ON FUNCTION lock_acquire_many(text[], boolean) IS 'acquires several named locks for the session, or none';
COMMENT ON FUNCTION lock_acquire_many_xact(text[], boolean) IS
    'acquires several named locks for the transaction, or none';
COMMENT ON FUNCTION lock_try_acquire_many(text[], interval, boolean) IS
    'acquires several named locks for the session within a timeout, or none';
COMMENT ON FUNCTION lock_try_acquire_many_xact(text[], interval, boolean) IS
    'acquires several named locks for the transaction within a timeout, or none';
COMMENT ON FUNCTION lock_release_many(text[], boolean) IS
    'releases several of a session''s named locks, each once; false if one was not held';
COMMENT ON FUNCTION row_version() IS
    'trigger for BEFORE UPDATE: refuses an update of a row that has changed since it was read, by a version column';
COMMENT ON VIEW idgen.locks IS 'named locks that are held or waited for in this database';
COMMENT ON FUNCTION idgen.lock_get_names() IS 'names of locks, for the view idgen.locks';
COMMENT ON FUNCTION idgen.lock_get_holds() IS 'scope and depth of each hold, for the view idgen.locks';

COMMENT ON FUNCTION lease_acquire(text, interval, text, jsonb, bigint, boolean, boolean) IS
    'acquires a lease and returns its fencing token; waits up to lock_timeout';
COMMENT ON FUNCTION lease_try_acquire(text, interval, interval, text, jsonb, bigint, boolean, boolean) IS
    'acquires a lease if a slot becomes free within the timeout; otherwise returns no row';
COMMENT ON FUNCTION idgen.lease_definition_changed() IS 'trigger of idgen.lease_definition';
COMMENT ON TRIGGER lease_definition_changed ON idgen.lease_definition IS 'announces changes to all sessions';
COMMENT ON FUNCTION idgen.lease_lock_row(tid, boolean) IS 'locks the row of a slot that a grant has found free';
COMMENT ON FUNCTION lease_renew(text, bigint, interval) IS
    'extends a lease from now on; returns its new end, or NULL if it is bound to a session';
COMMENT ON FUNCTION lease_renew_many(text[], bigint[], interval) IS
    'extends those of several leases that are still held, and returns them';
COMMENT ON FUNCTION lease_release(text, bigint) IS
    'releases a lease once; false if it was acquired more often than released';
COMMENT ON FUNCTION lease_fence(text, bigint) IS
    'lets the transaction commit only if the token is current; delays take-overs until it ends';
COMMENT ON FUNCTION lease_guard() IS
    'BEFORE trigger: refuses writes of transactions that have not fenced by the lease in its argument';
COMMENT ON FUNCTION lease_define(text, int, interval, interval, int, boolean, boolean) IS
    'defines the slots of a lease, its ttl, the lock delay after a holder vanished, its first slot, and if NOTIFY tells of its terms; force excludes holders';
COMMENT ON FUNCTION lease_alter(text, int, interval, interval, int, boolean, boolean) IS
    'changes the definition of a lease; omitted arguments keep their values';
COMMENT ON FUNCTION lease_drop(text) IS 'drops a lease that is not held';
COMMENT ON FUNCTION lease_revoke(text, int) IS 'ends the term in a slot of a lease; false if the slot is free';
COMMENT ON TABLE idgen.lease_definition IS 'definitions of leases';
COMMENT ON COLUMN idgen.lease_definition.name IS 'name, 1 to 255 bytes';
COMMENT ON COLUMN idgen.lease_definition.slots IS 'how many holders it can have at once';
COMMENT ON COLUMN idgen.lease_definition.ttl IS 'length of a term unless its holder gives another';
COMMENT ON COLUMN idgen.lease_definition.lock_delay IS 'how long a slot stays unavailable after its holder vanished';
COMMENT ON COLUMN idgen.lease_definition.owner IS 'role that defined it; its members may change it';
COMMENT ON COLUMN idgen.lease_definition.first_slot IS 'lowest slot; of a pool, the lowest worker id';
COMMENT ON COLUMN idgen.lease_definition.notify IS 'NOTIFY idgen_lease tells of each term';
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
    'identifies CLOCK_BOOTTIME: the boot of the machine, the offset of the time namespace, and the number in idgen_place';
COMMENT ON COLUMN idgen.lease.revoked IS 'freed by lease_revoke(); the lock delay applies';
COMMENT ON COLUMN idgen.lease.session IS 'start time of the server whose session it is bound to; NULL if not bound';
COMMENT ON COLUMN idgen.lease.session_key IS
    'key of the advisory lock that the session holds; random, because pg_locks is public';
COMMENT ON SEQUENCE idgen.lease_token IS 'fencing tokens';
COMMENT ON VIEW idgen.leases IS 'slots of leases, and their holders';
COMMENT ON FUNCTION idgen.lease_get_state(text, int, bigint, bigint, boolean, text, bigint, bigint, interval) IS
    'state of a slot, for the view idgen.leases';
COMMENT ON VIEW idgen.stat_lease IS 'counters of leases, over all databases';
COMMENT ON FUNCTION idgen.stat_get_lease() IS 'counters for the view idgen.stat_lease';

COMMENT ON FUNCTION worker_acquire(text, text, interval, timestamptz, int) IS
    'acquires a worker id of a pool and an interval of id time; bound to the session unless a ttl is given';
COMMENT ON FUNCTION worker_renew(text, bigint, timestamptz, timestamptz) IS
    'extends the lease and the id time of a worker id, if its end is the one that the caller was last told';
COMMENT ON FUNCTION worker_renew(text, bigint, interval) IS
    'deprecated: renews a worker id without comparison, for keepers of idgen 0.7';
COMMENT ON FUNCTION worker_confirm(text, bigint) IS
    'waits until the synchronous standbys have the id time of a worker id, and returns its end';
COMMENT ON FUNCTION worker_release(text, bigint, timestamptz, timestamptz) IS
    'releases a worker id; given the last time in its ids, the next holder begins right after it';
COMMENT ON FUNCTION worker_move(text, text) IS
    'moves the worker ids of a pool to another one with their id times and leases, and drops the pool; returns their count';
COMMENT ON FUNCTION worker_correct(text, int, timestamptz) IS
    'records that no id at or after a time was issued under a free worker id; returns the time recorded before';
COMMENT ON TABLE idgen.worker_number IS 'id times of the last holder of each worker id';
COMMENT ON COLUMN idgen.worker_number.pool IS 'name of the pool';
COMMENT ON COLUMN idgen.worker_number.number IS 'the worker id: a slot of the lease of that name';
COMMENT ON COLUMN idgen.worker_number.not_before IS 'start of the id times of the last holder';
COMMENT ON COLUMN idgen.worker_number.not_after IS 'no id of that holder has this time or a later one';
COMMENT ON COLUMN idgen.worker_number.token IS 'token of the lease of that holder';
COMMENT ON COLUMN idgen.worker_number.owner IS 'name that the holder gave itself';
COMMENT ON COLUMN idgen.worker_number.released IS 'released by worker_release()';
COMMENT ON FUNCTION worker_begin_history(timestamptz) IS
    'lets a copy of the coordinator grant worker ids; returns the time from which it grants them without a wait';
COMMENT ON TABLE idgen.worker_history IS 'server, timeline and data directory that grant worker ids from this database';
COMMENT ON COLUMN idgen.worker_history.one IS 'always true: there is at most one row';
COMMENT ON COLUMN idgen.worker_history.system_identifier IS 'system identifier of the server; 0 in a dump';
COMMENT ON COLUMN idgen.worker_history.timeline IS 'timeline of the server; 0 in a dump';
COMMENT ON COLUMN idgen.worker_history.database IS 'OID of the database; 0 in a dump';
COMMENT ON COLUMN idgen.worker_history.place IS 'inode and birth time of PG_VERSION in the data directory, which a copy does not share; those of global/pg_control; and the number in the file idgen_place';
COMMENT ON COLUMN idgen.worker_history.since IS
    'when a failover, a restore or a new history was last noticed; -infinity if the history is complete';
COMMENT ON COLUMN idgen.worker_history.first_token IS 'lowest token granted since then; lower ones cannot be renewed';
COMMENT ON COLUMN idgen.worker_history.longest IS 'longest time from the clock to the end of id times, under any settings so far';
COMMENT ON TABLE idgen.public_key IS 'keys of public ids: one row for each key of a prefix';
COMMENT ON COLUMN idgen.public_key.prefix IS 'what the texts begin with, before an underscore';
COMMENT ON COLUMN idgen.public_key.version IS 'number of the key; the highest one makes texts';
COMMENT ON COLUMN idgen.public_key.form IS 'short or long';
COMMENT ON COLUMN idgen.public_key.secret IS '32 random bytes; NULL if the key is retired';
COMMENT ON COLUMN idgen.public_key.owner IS
    'role that may use, rotate, retire, drop, alter and grant; the same for all keys of a prefix';
COMMENT ON COLUMN idgen.public_key.users IS 'roles besides the owner that may make and decode texts; - is PUBLIC';
COMMENT ON COLUMN idgen.public_key.created IS 'time of the definition or the rotation';
COMMENT ON COLUMN idgen.public_key.retired IS 'time of the retirement; NULL if texts of the key decode';
COMMENT ON FUNCTION idgen.public_key_row() IS
    'trigger of idgen.public_key: announces changes to all sessions';
COMMENT ON TRIGGER public_key_row ON idgen.public_key IS 'announces changes to all sessions';
COMMENT ON FUNCTION idgen.public_key_secret() IS 'a new secret, for the statements that add a key';
COMMENT ON FUNCTION public_id(text, bigint) IS 'text of an id, by the newest key of a prefix';
COMMENT ON FUNCTION public_id_decode(text, text) IS 'id of a text that public_id made';
COMMENT ON FUNCTION public_id_try_decode(text, text) IS 'id of a text that public_id made; NULL for another text';
COMMENT ON FUNCTION id_mask(text, bigint) IS 'number that stands for an id, by the newest key of a prefix';
COMMENT ON FUNCTION id_unmask(text, bigint) IS 'id of a number that id_mask made';
COMMENT ON FUNCTION public_id_define(text, text) IS 'creates a prefix that the caller owns, with a key of the form short or long';
COMMENT ON FUNCTION public_id_rotate(text, text) IS
    'adds a key to a prefix and returns its version; texts of older keys go on decoding';
COMMENT ON FUNCTION public_id_retire(text, int) IS 'removes the secret of an older key: its texts no longer decode';
COMMENT ON FUNCTION public_id_drop(text) IS 'drops a prefix with all of its keys';
COMMENT ON FUNCTION public_id_alter(text, text) IS 'makes another role the owner of a prefix';
COMMENT ON FUNCTION public_id_grant(text, text) IS 'lets a role, or public, make and decode texts of a prefix';
COMMENT ON FUNCTION public_id_revoke(text, text) IS 'revokes what public_id_grant granted';

COMMENT ON FUNCTION idgen.stat_get_reset_time() IS 'time of the last reset of the counters, for the column stats_reset';
COMMENT ON VIEW idgen.workers IS 'worker ids of pools that were ever granted, and their holders';
COMMENT ON VIEW idgen.stat_worker IS 'worker id of this server, and the state of its lease';
COMMENT ON FUNCTION idgen.stat_get_worker() IS 'row of the view idgen.stat_worker';

COMMENT ON VIEW idgen.checks IS 'what fails on this server and in this database, since when, and what to do';
COMMENT ON FUNCTION idgen.stat_get_checks() IS 'rows of the view idgen.checks';

-- The columns of the views.
COMMENT ON COLUMN idgen.stat_snowflake.layout IS
    'canonical spec, as (snowflake_layout(''js53'')).spec returns it, not the preset''s name';
COMMENT ON COLUMN idgen.stat_snowflake.datacenter IS 'datacenter id of the ids';
COMMENT ON COLUMN idgen.stat_snowflake.worker IS 'worker id of the ids';
COMMENT ON COLUMN idgen.stat_snowflake.last_id IS
    'the id issued last, not one that snowflake_observe has skipped; NULL before the first';
COMMENT ON COLUMN idgen.stat_snowflake.last_time IS 'its time';
COMMENT ON COLUMN idgen.stat_snowflake.issued IS 'ids issued';
COMMENT ON COLUMN idgen.stat_snowflake.batches IS 'reservations made by snowflake_next_many';
COMMENT ON COLUMN idgen.stat_snowflake.borrowed IS 'ids whose time was ahead of the clock when they were issued';
COMMENT ON COLUMN idgen.stat_snowflake.waits IS 'times a statement waited for the clock';
COMMENT ON COLUMN idgen.stat_snowflake.wait_time IS 'time spent waiting';
COMMENT ON COLUMN idgen.stat_snowflake.ends_at IS 'the first time for which the layout has no ids';
COMMENT ON COLUMN idgen.stat_snowflake.stats_reset IS
    'when the counters of all views were last set to zero: by idgen.reset_stats(), or at a start';
COMMENT ON COLUMN idgen.stat_clock.mark IS
    'high-water mark: no id has this time or a later one; NULL before the first id since the start';
COMMENT ON COLUMN idgen.stat_clock.lead IS
    'how far ids are ahead of the wall clock: the latest one, or where ids begin after a crash, a promotion or snowflake_observe';
COMMENT ON COLUMN idgen.stat_clock.backward_steps IS 'times the wall clock was found set back, by a millisecond or more';
COMMENT ON COLUMN idgen.stat_clock.largest_step IS 'the largest of them';
COMMENT ON COLUMN idgen.stat_clock.mark_writes IS 'times the high-water file was written';
COMMENT ON COLUMN idgen.stat_clock.mark_write_time IS 'time spent writing and syncing it';
COMMENT ON COLUMN idgen.stat_clock.stats_reset IS
    'when the counters of all views were last set to zero: by idgen.reset_stats(), or at a start';
COMMENT ON COLUMN idgen.stat_segment.tag IS 'name of the segment';
COMMENT ON COLUMN idgen.stat_segment.max_id IS 'highest value that may have been handed out, as in idgen.segment';
COMMENT ON COLUMN idgen.stat_segment.step IS 'number of values in the last range taken, as in idgen.segment';
COMMENT ON COLUMN idgen.stat_segment.first_id IS 'the value that is drawn next; NULL if none is left';
COMMENT ON COLUMN idgen.stat_segment.last_id IS 'the last value that follows it without a skip';
COMMENT ON COLUMN idgen.stat_segment.next_first_id IS 'the first value after the skip; NULL if there is none';
COMMENT ON COLUMN idgen.stat_segment.next_last_id IS 'the last value after the skip';
COMMENT ON COLUMN idgen.stat_segment.remaining IS 'values in shared memory';
COMMENT ON COLUMN idgen.stat_segment.issued IS 'values drawn';
COMMENT ON COLUMN idgen.stat_segment.refills IS 'ranges fetched';
COMMENT ON COLUMN idgen.stat_segment.last_refill_time IS 'how long the last fetch took';
COMMENT ON COLUMN idgen.stat_segment.waits IS 'times a statement found no value left and waited';
COMMENT ON COLUMN idgen.stat_segment.wait_time IS 'time spent in waits that ended with a value';
COMMENT ON COLUMN idgen.stat_segment.last_error IS 'what prevented the last fetch; NULL if it succeeded';
COMMENT ON COLUMN idgen.stat_segment.upper_bound IS 'the greatest value that may ever be handed out, as in idgen.segment';
COMMENT ON COLUMN idgen.stat_segment.stats_reset IS
    'when the counters of all views were last set to zero: by idgen.reset_stats(), or at a start';
COMMENT ON COLUMN idgen.stat_segment.source IS
    'where values come from: local, the row here, or coordinator, if the segment is attached';
COMMENT ON COLUMN idgen.stat_segment.coordinator IS
    'what the last request met: answering, refusing (an error of this segment, or it waits for reports of other servers), failing (no answer), or unknown before the first request; NULL unless attached';
COMMENT ON COLUMN idgen.stat_segment.reserve IS
    'how long values shall last while the coordinator is away; NULL unless attached';
COMMENT ON COLUMN idgen.stat_segment.rate IS
    'values drawn per second, as the supply worker has measured it; NULL unless attached';
COMMENT ON COLUMN idgen.stat_segment.survives_for IS
    'how long remaining lasts at this rate, at most a century; NULL if nothing was drawn lately, or unless attached';
COMMENT ON COLUMN idgen.locks.name IS
    'the name; NULL without preload, if there was no room for it, and for a prepared transaction after a restart, until a session uses the name';
COMMENT ON COLUMN idgen.locks.key IS 'its key, lock_key(name)';
COMMENT ON COLUMN idgen.locks.pid IS 'process of the session; NULL for a prepared transaction';
COMMENT ON COLUMN idgen.locks.mode IS 'exclusive or shared';
COMMENT ON COLUMN idgen.locks.scope IS 'session, transaction or both; NULL for what a session holds beyond its first 16';
COMMENT ON COLUMN idgen.locks.granted IS 'true if it is held, false if it is waited for';
COMMENT ON COLUMN idgen.locks.depth IS
    'how often it is held, session and transaction together; NULL if scope is, for a prepared transaction, and during a wait';
COMMENT ON COLUMN idgen.locks.acquired_at IS
    'since when it is held, by a clock that ticks every 1 to 10 ms; NULL if depth is';
COMMENT ON COLUMN idgen.locks.waiting_since IS 'since when it is waited for; NULL for a moment after the wait has begun';
COMMENT ON COLUMN idgen.locks.queue_position IS 'position among the waiting sessions, from 1';
COMMENT ON COLUMN idgen.locks.blocked_by IS
    'processes that block it, those before it in the queue included; 0 is a prepared transaction';
COMMENT ON COLUMN idgen.locks."user" IS 'role of the session';
COMMENT ON COLUMN idgen.locks.application IS 'its application_name';
COMMENT ON COLUMN idgen.locks.gid IS 'the prepared transaction that holds it; NULL for a session';
COMMENT ON COLUMN idgen.leases.name IS 'name of the lease';
COMMENT ON COLUMN idgen.leases.slot IS 'number of the slot; of a shared term, a number of its own from 65536 on';
COMMENT ON COLUMN idgen.leases.state IS
    'held; expired: the time is over, and no session has taken it; resting: unavailable for lock_delay, after a holder that vanished; free';
COMMENT ON COLUMN idgen.leases.token IS 'fencing token; NULL except for members of the holder''s role, and NULL if free';
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
COMMENT ON COLUMN idgen.workers.pool IS 'name of the pool';
COMMENT ON COLUMN idgen.workers.worker_id IS 'the worker id';
COMMENT ON COLUMN idgen.workers.state IS 'as in idgen.leases';
COMMENT ON COLUMN idgen.workers.token IS 'token; NULL for other roles, and if free';
COMMENT ON COLUMN idgen.workers.owner IS 'name that the holder gave itself';
COMMENT ON COLUMN idgen.workers.role IS 'role that acquired it';
COMMENT ON COLUMN idgen.workers.acquired_at IS 'when it was acquired';
COMMENT ON COLUMN idgen.workers.expires_at IS 'when the lease ends unless it is renewed; NULL if it is bound to a session';
COMMENT ON COLUMN idgen.workers.bound IS 'true while the session that it is bound to lives';
COMMENT ON COLUMN idgen.workers.not_before IS 'start of the id times of the current or last holder';
COMMENT ON COLUMN idgen.workers.not_after IS 'end of these id times';
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
COMMENT ON COLUMN idgen.checks."check" IS 'name of the check';
COMMENT ON COLUMN idgen.checks.ok IS 'false if it fails';
COMMENT ON COLUMN idgen.checks.severity IS
    'of a check that fails: error if calls fail or a promise may be broken, warning if they still succeed';
COMMENT ON COLUMN idgen.checks.since IS 'when it began to fail; NULL if that is not known';
COMMENT ON COLUMN idgen.checks.affects IS 'segments, pools, processes or kinds of ids that it is about, the first five';
COMMENT ON COLUMN idgen.checks.message IS 'the state';
COMMENT ON COLUMN idgen.checks.action IS 'what to do';

-- PUBLIC may generate and decode ids and read the views. Resetting counters and moving ids are for administrators: a
-- superuser grants them.
GRANT USAGE ON SCHEMA idgen TO PUBLIC;
GRANT SELECT ON idgen.stat_snowflake, idgen.stat_clock, idgen.stat_segment, idgen.locks TO PUBLIC;
REVOKE EXECUTE ON FUNCTION idgen.reset_stats() FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION snowflake_observe(bigint, boolean), snowflake_observe(bigint, text, boolean) FROM PUBLIC;
-- A superuser grants the creation of segments. The creator owns the segment.
REVOKE EXECUTE ON FUNCTION segment_create(text, bigint, bigint, bigint, bigint, interval, bigint, bigint, bigint) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION segment_attach(text, interval) FROM PUBLIC;
-- For the planner only.
REVOKE EXECUTE ON FUNCTION idgen.refuse_row_expansion(internal) FROM PUBLIC;
-- For the trigger of idgen.segment only, which needs no privilege.
REVOKE EXECUTE ON FUNCTION idgen.segment_row() FROM PUBLIC;
-- The table of leases has tokens, so it is not readable: the view hides them. A superuser grants the definition of leases.
-- The role that defines a name owns it.
GRANT SELECT ON idgen.leases, idgen.workers, idgen.stat_worker, idgen.stat_lease, idgen.lease_definition TO PUBLIC;
REVOKE EXECUTE ON FUNCTION lease_define(text, int, interval, interval, int, boolean, boolean) FROM PUBLIC;
REVOKE EXECUTE ON FUNCTION idgen.lease_lock_row(tid, boolean), idgen.lease_definition_changed() FROM PUBLIC;
-- The caller declares that the origin of a copy grants no more worker ids. Grant it to administrators only.
REVOKE EXECUTE ON FUNCTION worker_begin_history(timestamptz) FROM PUBLIC;
-- For a dump and its restore by the owner of the database. Existing rows change through functions only.
GRANT SELECT, INSERT ON idgen.segment, idgen.lease_definition, idgen.worker_number, idgen.worker_history TO pg_database_owner;
-- Monitoring still reads all views if an administrator revokes them from PUBLIC. Last, as in the upgrade script: the order of
-- grants is that of the privileges.
GRANT USAGE ON SCHEMA idgen TO pg_monitor;
GRANT SELECT ON idgen.stat_snowflake, idgen.stat_clock, idgen.stat_segment, idgen.stat_lease, idgen.stat_worker, idgen.locks,
    idgen.leases, idgen.workers, idgen.lease_definition TO pg_monitor;
GRANT EXECUTE ON FUNCTION idgen.status(), idgen.stat_get_snowflake(), idgen.stat_get_clock(), idgen.stat_get_segment(),
    idgen.stat_get_lease(), idgen.stat_get_worker(), idgen.stat_get_reset_time(), idgen.lock_get_names(), idgen.lock_get_holds(),
    idgen.lease_get_state(text, int, bigint, bigint, boolean, text, bigint, bigint, interval) TO pg_monitor;
-- The creator owns the prefix. The secrets are for dumps by the owner of the database only; every role may see the rest.
REVOKE EXECUTE ON FUNCTION public_id_define(text, text) FROM PUBLIC;
-- For the trigger and the statements of idgen.public_key only.
REVOKE EXECUTE ON FUNCTION idgen.public_key_row(), idgen.public_key_secret() FROM PUBLIC;
REVOKE ALL ON idgen.public_key FROM PUBLIC;
GRANT SELECT (prefix, version, form, owner, users, created, retired) ON idgen.public_key TO PUBLIC;
GRANT SELECT, INSERT ON idgen.public_key TO pg_database_owner;
-- For a dump and its restore, as above. The names of the servers are for administrators.
GRANT SELECT, INSERT ON idgen.segment_server TO pg_database_owner;
GRANT SELECT ON idgen.segment_server TO pg_monitor;
GRANT EXECUTE ON FUNCTION idgen.stat_get_segment_supply() TO pg_monitor;
GRANT SELECT ON idgen.checks TO PUBLIC;
GRANT SELECT ON idgen.checks TO pg_monitor;
GRANT EXECUTE ON FUNCTION idgen.stat_get_checks() TO pg_monitor;
