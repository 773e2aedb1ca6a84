\echo Use "ALTER EXTENSION idgen UPDATE TO '0.4.0'" to load this file. \quit

-- Segment ids.
-- Where segment ids come from, one row for each tag. The constraints make a row impossible that values cannot be made
-- from, whoever writes it; the trigger keeps creation, version and the two transaction numbers, and lets max_id only rise.
CREATE TABLE idgen.segment (
    tag text PRIMARY KEY
        CHECK (pg_catalog.octet_length(tag) OPERATOR(pg_catalog.>=) 1
               AND pg_catalog.octet_length(tag) OPERATOR(pg_catalog.<=) 255),
    max_id bigint NOT NULL DEFAULT 0 CHECK (max_id OPERATOR(pg_catalog.>=) (-1)),
    step bigint NOT NULL DEFAULT 1000,
    min_step bigint NOT NULL DEFAULT 1000 CHECK (min_step OPERATOR(pg_catalog.>=) 1),
    max_step bigint NOT NULL DEFAULT 10000000 CHECK (max_step OPERATOR(pg_catalog.<=) 1000000000),
    target_duration interval NOT NULL DEFAULT '1 second' CHECK (target_duration OPERATOR(pg_catalog.>) '0 seconds'),
    stride bigint NOT NULL DEFAULT 1 CHECK (stride OPERATOR(pg_catalog.>=) 1 AND stride OPERATOR(pg_catalog.<=) 2147483647),
    residue bigint NOT NULL DEFAULT 0 CHECK (residue OPERATOR(pg_catalog.>=) 0),
    upper_bound bigint NOT NULL DEFAULT 9223372036854775807,
    owner regrole NOT NULL,
    -- 0, written "-", is PUBLIC.
    drawers regrole[] NOT NULL DEFAULT '{}',
    creation bigint NOT NULL UNIQUE,
    version bigint NOT NULL,
    created_in bigint NOT NULL,
    changed_in bigint NOT NULL,
    CHECK (step OPERATOR(pg_catalog.>=) min_step AND step OPERATOR(pg_catalog.<=) max_step),
    CHECK (residue OPERATOR(pg_catalog.<) stride),
    CHECK (max_id OPERATOR(pg_catalog.<=) upper_bound)
) WITH (fillfactor = 50); -- room beside each row, so that a refill touches no index
SELECT pg_catalog.pg_extension_config_dump('idgen.segment', '');

CREATE FUNCTION idgen.stat_get_segment(OUT creation bigint, OUT first_id bigint, OUT last_id bigint, OUT next_first_id bigint, OUT next_last_id bigint, OUT remaining bigint, OUT issued bigint, OUT refills bigint, OUT refill_us bigint, OUT waits bigint, OUT wait_us bigint, OUT last_error text) RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_segment_wrapper';
CREATE FUNCTION idgen.segment_row() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'segment_row_wrapper';
CREATE FUNCTION segment_next(tag text) RETURNS bigint VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'segment_next_wrapper';
CREATE FUNCTION segment_next_many(tag text, count int) RETURNS SETOF bigint VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'segment_next_many_wrapper';
CREATE FUNCTION segment_reserve(tag text, count bigint, OUT first_id bigint, OUT last_id bigint, OUT stride bigint) VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'segment_reserve_wrapper';
CREATE FUNCTION segment_create(tag text, start bigint DEFAULT 1, step bigint DEFAULT 1000, min_step bigint DEFAULT NULL, max_step bigint DEFAULT NULL, target_duration interval DEFAULT '1 second', stride bigint DEFAULT 1, residue bigint DEFAULT 0, upper_bound bigint DEFAULT 9223372036854775807) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_create_wrapper';
CREATE FUNCTION segment_alter(tag text, max_id bigint DEFAULT NULL, step bigint DEFAULT NULL, min_step bigint DEFAULT NULL, max_step bigint DEFAULT NULL, target_duration interval DEFAULT NULL, stride bigint DEFAULT NULL, residue bigint DEFAULT NULL, upper_bound bigint DEFAULT NULL, owner text DEFAULT NULL) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_alter_wrapper';
CREATE FUNCTION segment_drop(tag text) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_drop_wrapper';
CREATE FUNCTION segment_grant(tag text, role text) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_grant_wrapper';
CREATE FUNCTION segment_revoke(tag text, role text) RETURNS void VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'segment_revoke_wrapper';

CREATE TRIGGER segment_row BEFORE INSERT OR UPDATE OR DELETE ON idgen.segment
FOR EACH ROW EXECUTE FUNCTION idgen.segment_row();
-- Always: also for rows that a restore or a subscription writes.
ALTER TABLE idgen.segment ENABLE ALWAYS TRIGGER segment_row;

-- A tag's figures are for who may draw from it, and for who may see all statistics.
CREATE VIEW idgen.stat_segment AS
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

GRANT SELECT ON idgen.stat_segment TO PUBLIC;
REVOKE EXECUTE ON FUNCTION segment_create(text, bigint, bigint, bigint, bigint, interval, bigint, bigint, bigint) FROM PUBLIC;
-- The trigger fits its own table only; firing it there takes no privilege.
REVOKE EXECUTE ON FUNCTION idgen.segment_row() FROM PUBLIC;
