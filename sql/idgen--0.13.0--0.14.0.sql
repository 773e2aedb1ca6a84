\echo Use "ALTER EXTENSION idgen UPDATE TO '0.14.0'" to load this file. \quit

-- Segments of a fleet.
ALTER TABLE idgen.segment
    ADD COLUMN server bigint,
    ADD COLUMN reserve interval CHECK (reserve OPERATOR(pg_catalog.>=) '2 seconds' AND reserve OPERATOR(pg_catalog.<=) '365 days'),
    ADD COLUMN source text,
    ADD COLUMN history text,
    ADD COLUMN received bigint,
    ADD CHECK (server IS NOT NULL OR reserve IS NULL);
SELECT pg_catalog.pg_extension_config_dump('idgen.segment', $condition$WHERE false UNION ALL
    SELECT tag, max_id, step, min_step, max_step, target_duration, stride, residue, upper_bound,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END,
           ARRAY(SELECT granted.role FROM pg_catalog.unnest(drawers) WITH ORDINALITY AS granted (role, place)
                 WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.=) 0::pg_catalog.oid
                    OR EXISTS (SELECT FROM pg_catalog.pg_roles AS role
                               WHERE role.oid OPERATOR(pg_catalog.=) granted.role::pg_catalog.oid)
                 ORDER BY granted.place),
           creation, version, 0, 0, server, reserve, source, CASE WHEN history IS NOT NULL THEN '' END, received
    FROM idgen.segment$condition$);
COMMENT ON COLUMN idgen.segment.max_id IS
    'highest value that may have been handed out; it falls only when a stopping server gives unused values back';
COMMENT ON COLUMN idgen.segment.server IS 'number by which the coordinator knows this server; NULL unless the segment is attached';
COMMENT ON COLUMN idgen.segment.reserve IS 'how long values last while the coordinator is away; NULL unless the segment is attached';
COMMENT ON COLUMN idgen.segment.source IS 'tag of the coordinator that the last values came from: system identifier, database, creation, version';
COMMENT ON COLUMN idgen.segment.history IS 'at a coordinator: system identifier, timeline, database and directory under which it last granted values';
COMMENT ON COLUMN idgen.segment.received IS 'highest value of the coordinator when the segment was detached; NULL once the coordinator knows it';

CREATE TABLE idgen.segment_server (
    tag text NOT NULL,
    server bigint NOT NULL,
    name text NOT NULL,
    max_id bigint NOT NULL,
    history text NOT NULL,
    reported_at timestamptz NOT NULL,
    first_id bigint,
    last_id bigint,
    PRIMARY KEY (tag, server)
) WITH (fillfactor = 50); -- as for idgen.segment
SELECT pg_catalog.pg_extension_config_dump('idgen.segment_server', $condition$WHERE false UNION ALL
    SELECT tag, server, name, max_id, '', reported_at, NULL, NULL FROM idgen.segment_server$condition$);
COMMENT ON TABLE idgen.segment_server IS 'at a coordinator: servers that are attached to its segments';
COMMENT ON COLUMN idgen.segment_server.tag IS 'segment that the server draws from';
COMMENT ON COLUMN idgen.segment_server.server IS 'number of the attached server';
COMMENT ON COLUMN idgen.segment_server.name IS 'name of the attached server: its host name, port and data directory';
COMMENT ON COLUMN idgen.segment_server.max_id IS 'highest value that the server has received';
COMMENT ON COLUMN idgen.segment_server.history IS 'history of the coordinator at the last report: see idgen.segment.history';
COMMENT ON COLUMN idgen.segment_server.reported_at IS 'time of the last report';
COMMENT ON COLUMN idgen.segment_server.first_id IS 'first value of the newest grants, those that no other grant separates; NULL if none can be given back';
COMMENT ON COLUMN idgen.segment_server.last_id IS 'last value of the newest grants';

CREATE FUNCTION segment_attach(tag text, reserve interval DEFAULT '10 minutes') RETURNS void VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'segment_attach_wrapper';
CREATE FUNCTION segment_detach(tag text) RETURNS void VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'segment_detach_wrapper';
CREATE FUNCTION segment_request(tag text, server bigint, name text, received bigint, count bigint, OUT first_id bigint,
                                OUT count bigint, OUT stride bigint, OUT residue bigint, OUT source text, OUT waits_for text)
    VOLATILE PARALLEL UNSAFE SET lock_timeout = '1s' LANGUAGE c AS 'MODULE_PATHNAME', 'segment_request_wrapper';
CREATE FUNCTION segment_confirm() RETURNS void VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'segment_confirm_wrapper';
CREATE FUNCTION segment_return(tag text, server bigint, first_id bigint, last_id bigint) RETURNS boolean
    VOLATILE PARALLEL UNSAFE SET lock_timeout = '1s' LANGUAGE c AS 'MODULE_PATHNAME', 'segment_return_wrapper';
CREATE FUNCTION segment_leave(tag text, server bigint, received bigint) RETURNS void VOLATILE PARALLEL UNSAFE
    SET lock_timeout = '1s' LANGUAGE c AS 'MODULE_PATHNAME', 'segment_leave_wrapper';
CREATE FUNCTION segment_resume(tag text, max_id bigint) RETURNS void VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'segment_resume_wrapper';
COMMENT ON FUNCTION segment_attach(text, interval) IS
    'lets a segment draw from that of the same name at the coordinator, with values for the reserve fetched ahead';
COMMENT ON FUNCTION segment_detach(text) IS 'ends the attachment of a segment to the coordinator';
COMMENT ON FUNCTION segment_request(text, bigint, text, bigint, bigint) IS
    'at a coordinator: reports what an attached server has received, and grants it values';
COMMENT ON FUNCTION segment_confirm() IS 'at a coordinator: waits until the synchronous standbys have all grants';
COMMENT ON FUNCTION segment_return(text, bigint, bigint, bigint) IS
    'at a coordinator: a server gives back unused values; true if they can be granted again';
COMMENT ON FUNCTION segment_leave(text, bigint, bigint) IS 'at a coordinator: a server is no longer attached';
COMMENT ON FUNCTION segment_resume(text, bigint) IS
    'at a coordinator: grants values again from above max_id on, although attached servers have not reported';
REVOKE EXECUTE ON FUNCTION segment_attach(text, interval) FROM PUBLIC;
-- For a dump and its restore, as above. The names of the servers are for administrators.
GRANT SELECT, INSERT ON idgen.segment_server TO pg_database_owner;
GRANT SELECT ON idgen.segment_server TO pg_monitor;

-- How long values of attached segments last.
CREATE FUNCTION idgen.stat_get_segment_supply(OUT creation bigint, OUT coordinator text, OUT rate float8)
    RETURNS SETOF record VOLATILE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_segment_supply_wrapper';
COMMENT ON FUNCTION idgen.stat_get_segment_supply() IS 'columns of attached segments of the view idgen.stat_segment';
GRANT EXECUTE ON FUNCTION idgen.stat_get_segment_supply() TO pg_monitor;
CREATE OR REPLACE VIEW idgen.stat_segment WITH (security_barrier) AS
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
   OR 0::oid OPERATOR(pg_catalog.=) ANY (allocated.drawers::oid[])
   OR EXISTS (SELECT FROM pg_catalog.unnest(allocated.drawers::oid[]) AS granted (role)
              WHERE pg_catalog.pg_has_role(granted.role, 'USAGE'));
