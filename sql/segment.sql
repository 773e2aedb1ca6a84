-- Segments, one row for each tag. The constraints refuse rows that no values can come from, also in a restore. The trigger sets
-- creation, version and the two transaction ids, and refuses a lower max_id.
CREATE TABLE idgen.segment (
    tag text NOT NULL
        CHECK (pg_catalog.octet_length(tag) BETWEEN 1 AND 255),
    max_id bigint NOT NULL DEFAULT 0 CHECK (max_id >= (-1)),
    step bigint NOT NULL DEFAULT 1000,
    min_step bigint NOT NULL DEFAULT 1000 CHECK (min_step >= 1),
    max_step bigint NOT NULL DEFAULT 10000000 CHECK (max_step <= 1000000000),
    target_duration interval NOT NULL DEFAULT '1 second' CHECK (target_duration > '0 seconds'),
    stride bigint NOT NULL DEFAULT 1 CHECK (stride >= 1 AND stride <= 2147483647),
    residue bigint NOT NULL DEFAULT 0 CHECK (residue >= 0),
    upper_bound bigint NOT NULL DEFAULT 9223372036854775807,
    owner regrole NOT NULL,
    -- 0, shown as "-", is PUBLIC.
    drawers regrole[] NOT NULL DEFAULT '{}',
    creation bigint NOT NULL UNIQUE,
    version bigint NOT NULL,
    created_in bigint NOT NULL,
    changed_in bigint NOT NULL,
    server bigint,
    reserve interval CHECK (reserve >= '2 seconds' AND reserve <= '365 days'),
    source text,
    history text,
    received bigint,
    servers regrole[] NOT NULL DEFAULT '{}',
    CHECK (step >= min_step AND step <= max_step),
    CHECK (residue < stride),
    CHECK (max_id <= upper_bound),
    CHECK (server IS NOT NULL OR reserve IS NULL)
) USING heap WITH (fillfactor = 50); -- room for updated rows, so that a refill touches no index
CREATE UNIQUE INDEX segment_key ON idgen.segment (tag text_pattern_ops);
ALTER TABLE idgen.segment REPLICA IDENTITY USING INDEX segment_key;
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
COMMENT ON COLUMN idgen.segment.server IS
    'number by which the coordinator knows this server; NULL unless the segment is or was attached';
COMMENT ON COLUMN idgen.segment.reserve IS
    'how long values last while the coordinator is away; NULL unless the segment is attached';
COMMENT ON COLUMN idgen.segment.source IS
    'tag of the coordinator that the last values came from: system identifier, database, creation, version';
COMMENT ON COLUMN idgen.segment.history IS
    'at a coordinator: system identifier, timeline, database and place, as in idgen.worker_history, under which it last granted values';
COMMENT ON COLUMN idgen.segment.received IS
    'highest value of the coordinator when the segment was detached; NULL once the coordinator knows it';
COMMENT ON COLUMN idgen.segment.servers IS
    'at a coordinator: roles besides the owner that may request and report for attached servers; - is PUBLIC';
-- For a dump and its restore by the owner of the database. Existing rows change through functions only.
GRANT SELECT, INSERT ON idgen.segment TO pg_database_owner;

-- A dump names roles. The row of a dropped role has its OID, which can be another role's where the dump is restored. So the dump
-- gives its segments to the owner of the database, and omits its grants. Nor does it name the transactions: a restore that
-- disables the trigger keeps their numbers, which belong to other transactions where it runs. And a restored database must not
-- pass for the one that granted: it has no history. The columns are those of the table, in order.
SELECT pg_catalog.pg_extension_config_dump('idgen.segment', $condition$WHERE false UNION ALL
    SELECT tag, max_id, step, min_step, max_step, target_duration, stride, residue, upper_bound,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END,
           ARRAY(SELECT granted.role FROM pg_catalog.unnest(drawers) WITH ORDINALITY AS granted (role, place)
                 WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.=) 0::pg_catalog.oid
                    OR EXISTS (SELECT FROM pg_catalog.pg_roles AS role
                               WHERE role.oid OPERATOR(pg_catalog.=) granted.role::pg_catalog.oid)
                 ORDER BY granted.place),
           creation, version, 0, 0, server, reserve, source, CASE WHEN history IS NOT NULL THEN '' END, received,
           ARRAY(SELECT granted.role FROM pg_catalog.unnest(servers) WITH ORDINALITY AS granted (role, place)
                 WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.=) 0::pg_catalog.oid
                    OR EXISTS (SELECT FROM pg_catalog.pg_roles AS role
                               WHERE role.oid OPERATOR(pg_catalog.=) granted.role::pg_catalog.oid)
                 ORDER BY granted.place)
    FROM idgen.segment$condition$);

-- At a coordinator: the servers that are attached to a tag. They outlive it: a tag that is created again must not repeat their
-- values. A restored database has no history, as above.
CREATE TABLE idgen.segment_server (
    tag text NOT NULL,
    server bigint NOT NULL,
    name text NOT NULL,
    max_id bigint NOT NULL,
    history text NOT NULL,
    reported_at timestamptz NOT NULL,
    -- Not in use: a dump of an earlier version has these columns.
    first_id bigint,
    last_id bigint
) USING heap WITH (fillfactor = 50); -- as for idgen.segment
CREATE UNIQUE INDEX segment_server_key ON idgen.segment_server (tag text_pattern_ops, server);
ALTER TABLE idgen.segment_server REPLICA IDENTITY USING INDEX segment_server_key;
COMMENT ON TABLE idgen.segment_server IS 'at a coordinator: servers that are attached to its segments';
COMMENT ON COLUMN idgen.segment_server.tag IS 'segment that the server draws from';
COMMENT ON COLUMN idgen.segment_server.server IS 'number of the attached server';
COMMENT ON COLUMN idgen.segment_server.name IS 'name of the attached server: its host name, port and data directory';
COMMENT ON COLUMN idgen.segment_server.max_id IS 'highest value that the server has received';
COMMENT ON COLUMN idgen.segment_server.history IS
    'history of the coordinator at the last report: see idgen.segment.history';
COMMENT ON COLUMN idgen.segment_server.reported_at IS 'time of the last report';
COMMENT ON COLUMN idgen.segment_server.first_id IS 'not in use; dumps of earlier versions have it';
COMMENT ON COLUMN idgen.segment_server.last_id IS 'not in use; dumps of earlier versions have it';
GRANT SELECT, INSERT ON idgen.segment_server TO pg_database_owner;
GRANT SELECT ON idgen.segment_server TO pg_monitor;

SELECT pg_catalog.pg_extension_config_dump('idgen.segment_server', $condition$WHERE false UNION ALL
    SELECT tag, server, name, max_id, '', reported_at, NULL, NULL FROM idgen.segment_server$condition$);

CREATE FUNCTION segment_create(
    tag text, start bigint DEFAULT 1, step bigint DEFAULT 1000, min_step bigint DEFAULT NULL,
    max_step bigint DEFAULT NULL, target_duration interval DEFAULT '1 second', stride bigint DEFAULT 1,
    residue bigint DEFAULT 0, upper_bound bigint DEFAULT 9223372036854775807) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'segment_create_wrapper';
COMMENT ON FUNCTION segment_create IS 'creates a segment that the caller owns';
-- A superuser grants it. The creator owns the segment.
REVOKE EXECUTE ON FUNCTION segment_create FROM PUBLIC;

CREATE FUNCTION segment_alter(
    tag text, max_id bigint DEFAULT NULL, step bigint DEFAULT NULL, min_step bigint DEFAULT NULL,
    max_step bigint DEFAULT NULL, target_duration interval DEFAULT NULL, stride bigint DEFAULT NULL,
    residue bigint DEFAULT NULL, upper_bound bigint DEFAULT NULL, owner text DEFAULT NULL) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'segment_alter_wrapper';
COMMENT ON FUNCTION segment_alter IS 'alters a segment: NULL keeps a setting; max_id cannot be lowered';

CREATE FUNCTION segment_drop(tag text) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'segment_drop_wrapper';
COMMENT ON FUNCTION segment_drop IS 'drops a segment';

CREATE FUNCTION segment_grant(tag text, role text, server boolean DEFAULT false) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'segment_grant_kind_wrapper';
COMMENT ON FUNCTION segment_grant IS
    'lets a role, or public, draw from a segment; as a server, request and report for attached servers';

CREATE FUNCTION segment_revoke(tag text, role text, server boolean DEFAULT false) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'segment_revoke_kind_wrapper';
COMMENT ON FUNCTION segment_revoke IS 'revokes what segment_grant granted';

CREATE FUNCTION segment_attach(tag text, reserve interval DEFAULT '10 minutes') RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'segment_attach_wrapper';
COMMENT ON FUNCTION segment_attach IS
    'lets a segment draw from that of the same name at the coordinator, with values for the reserve fetched ahead';
REVOKE EXECUTE ON FUNCTION segment_attach FROM PUBLIC;

CREATE FUNCTION segment_detach(tag text) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'segment_detach_wrapper';
COMMENT ON FUNCTION segment_detach IS 'ends the attachment of a segment to the coordinator';

CREATE FUNCTION segment_request(
    tag text, server bigint, name text, received bigint, count bigint, OUT first_id bigint, OUT count bigint,
    OUT stride bigint, OUT residue bigint, OUT source text, OUT waits_for text)
SET lock_timeout = '1s' SUPPORT idgen.refuse_row_expansion LANGUAGE c AS 'MODULE_PATHNAME', 'segment_request_wrapper';
COMMENT ON FUNCTION segment_request IS
    'at a coordinator: reports what an attached server has received, and grants it values';

CREATE FUNCTION segment_leave(tag text, server bigint, received bigint) RETURNS void
SET lock_timeout = '1s' LANGUAGE c AS 'MODULE_PATHNAME', 'segment_leave_wrapper';
COMMENT ON FUNCTION segment_leave IS 'at a coordinator: a server is no longer attached';

CREATE FUNCTION segment_resume(tag text, max_id bigint) RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'segment_resume_wrapper';
COMMENT ON FUNCTION segment_resume IS
    'at a coordinator: grants values again from above max_id on, although attached servers have not reported';

CREATE FUNCTION segment_confirm() RETURNS void
LANGUAGE c AS 'MODULE_PATHNAME', 'segment_confirm_wrapper';
COMMENT ON FUNCTION segment_confirm IS 'at a coordinator: waits until the synchronous standbys have all grants';

CREATE FUNCTION segment_next(tag text) RETURNS bigint
PARALLEL RESTRICTED SUPPORT idgen.allow_copy_batches LANGUAGE c AS 'MODULE_PATHNAME', 'segment_next_wrapper';
COMMENT ON FUNCTION segment_next IS 'next value of a segment';

CREATE FUNCTION segment_reserve(tag text, count bigint, OUT first_id bigint, OUT last_id bigint, OUT stride bigint)
PARALLEL RESTRICTED SUPPORT idgen.refuse_row_expansion LANGUAGE c AS 'MODULE_PATHNAME', 'segment_reserve_wrapper';
COMMENT ON FUNCTION segment_reserve IS
    'that many consecutive values of a segment, for a client that counts them itself';

CREATE FUNCTION segment_next_many(tag text, count int) RETURNS SETOF bigint
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'segment_next_many_wrapper';
COMMENT ON FUNCTION segment_next_many IS 'that many values of a segment, increasing';

CREATE FUNCTION segment_settled(tag text) RETURNS bigint
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'segment_settled_wrapper';
COMMENT ON FUNCTION segment_settled IS
    'greatest value of a segment up to which no transaction of this server can commit a row any more; for use in a later statement';

CREATE FUNCTION idgen.stat_get_segment(
    OUT creation bigint, OUT first_id bigint, OUT last_id bigint, OUT next_first_id bigint, OUT next_last_id bigint,
    OUT remaining bigint, OUT issued bigint, OUT refills bigint, OUT refill_us bigint, OUT waits bigint,
    OUT wait_us bigint, OUT last_error text) RETURNS SETOF record
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_segment_wrapper';
COMMENT ON FUNCTION idgen.stat_get_segment IS 'rows of the view idgen.stat_segment';
GRANT EXECUTE ON FUNCTION idgen.stat_get_segment TO pg_monitor;

CREATE FUNCTION idgen.stat_get_segment_supply(
    OUT creation bigint, OUT coordinator text, OUT rate float8) RETURNS SETOF record
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_segment_supply_wrapper';
COMMENT ON FUNCTION idgen.stat_get_segment_supply IS 'columns of attached segments of the view idgen.stat_segment';
GRANT EXECUTE ON FUNCTION idgen.stat_get_segment_supply TO pg_monitor;

CREATE FUNCTION idgen.segment_row() RETURNS trigger
LANGUAGE c AS 'MODULE_PATHNAME', 'segment_row_wrapper';
COMMENT ON FUNCTION idgen.segment_row IS
    'trigger of idgen.segment: sets creation, version and transaction ids, and announces changes to all sessions';
REVOKE EXECUTE ON FUNCTION idgen.segment_row FROM PUBLIC;

-- Always: also for rows that a restore or a subscription writes.
CREATE TRIGGER segment_row BEFORE INSERT OR UPDATE OR DELETE ON idgen.segment
FOR EACH ROW EXECUTE FUNCTION idgen.segment_row();
COMMENT ON TRIGGER segment_row ON idgen.segment IS
    'sets creation, version and transaction ids, and announces changes to all sessions';

ALTER TABLE idgen.segment ENABLE ALWAYS TRIGGER segment_row;

-- Roles that may draw from a segment see its row, and members of pg_read_all_stats see all. Without the security
-- barrier the planner would run a cheap function of the caller on every row before it tests the privilege.
CREATE VIEW idgen.stat_segment WITH (security_barrier) AS
SELECT allocated.tag, allocated.max_id, allocated.step, ring.first_id, ring.last_id, ring.next_first_id, ring.next_last_id, ring.remaining,
       ring.issued, ring.refills,
       pg_catalog.make_interval(secs => ring.refill_us OPERATOR(pg_catalog./) 1000000.0) AS last_refill_time,
       ring.waits,
       pg_catalog.make_interval(secs => ring.wait_us OPERATOR(pg_catalog./) 1000000.0) AS wait_time,
       ring.last_error, allocated.upper_bound, idgen.stat_get_reset_time() AS stats_reset,
       CASE WHEN allocated.reserve IS NULL THEN 'local' ELSE 'coordinator' END AS source,
       supply.coordinator, allocated.reserve, supply.rate,
       -- At most a century, which an interval holds.
       CASE WHEN supply.rate OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.make_interval(secs => LEAST(ring.remaining OPERATOR(pg_catalog./) supply.rate, 3155760000)) END AS survives_for
FROM idgen.segment AS allocated JOIN idgen.stat_get_segment() AS ring USING (creation)
LEFT JOIN idgen.stat_get_segment_supply() AS supply USING (creation)
WHERE pg_catalog.pg_has_role(allocated.owner::oid, 'USAGE') OR pg_catalog.pg_has_role('pg_read_all_stats', 'USAGE')
   OR 0::oid = ANY (allocated.drawers::oid[])
   OR EXISTS (SELECT FROM pg_catalog.unnest(allocated.drawers::oid[]) AS granted (role)
              WHERE pg_catalog.pg_has_role(granted.role, 'USAGE'));
COMMENT ON VIEW idgen.stat_segment IS
    'segments with values in shared memory: their ranges, refills and waits; shows those that the user may draw from';
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
COMMENT ON COLUMN idgen.stat_segment.upper_bound IS
    'the greatest value that may ever be handed out, as in idgen.segment';
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
GRANT SELECT ON idgen.stat_segment TO PUBLIC, pg_monitor;
