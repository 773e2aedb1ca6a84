\echo Use "ALTER EXTENSION idgen UPDATE TO '0.14.2'" to load this file. \quit

-- A definition that would exclude holders is refused unless it is forced.
CREATE FUNCTION lease_define(name text, slots int DEFAULT 1, ttl interval DEFAULT '30 seconds', lock_delay interval DEFAULT '0',
                             first_slot int DEFAULT 0, notify boolean DEFAULT false, force boolean DEFAULT false) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_define_unless_harmful_wrapper';
CREATE FUNCTION lease_alter(name text, slots int DEFAULT NULL, ttl interval DEFAULT NULL, lock_delay interval DEFAULT NULL,
                            first_slot int DEFAULT NULL, notify boolean DEFAULT NULL, force boolean DEFAULT false) RETURNS void
    VOLATILE PARALLEL UNSAFE LANGUAGE c AS 'MODULE_PATHNAME', 'lease_alter_wrapper';
COMMENT ON FUNCTION lease_define(text, int, interval, interval, int, boolean, boolean) IS
    'defines the slots of a lease, its ttl, the lock delay after a holder vanished, its first slot, and if NOTIFY tells of its terms; force excludes holders';
COMMENT ON FUNCTION lease_alter(text, int, interval, interval, int, boolean, boolean) IS
    'changes the definition of a lease; omitted arguments keep their values';
-- A server that has followed other WAL, and one that was restored without, end the history of a coordinator too.
COMMENT ON COLUMN idgen.segment.history IS 'at a coordinator: system identifier, timeline, database and place, as in idgen.worker_history, under which it last granted values';
COMMENT ON COLUMN idgen.worker_history.place IS 'inode and birth time of PG_VERSION in the data directory, which a copy does not share; those of global/pg_control; and the number in the file idgen_place';
-- A server that stops keeps its values: those that are left are a gap.
DROP FUNCTION segment_return(text, bigint, bigint, bigint);
UPDATE idgen.segment_server SET first_id = NULL, last_id = NULL WHERE first_id IS NOT NULL;
COMMENT ON COLUMN idgen.segment.max_id IS 'highest value that may have been handed out';
COMMENT ON COLUMN idgen.segment_server.first_id IS 'not in use; dumps of earlier versions have it';
COMMENT ON COLUMN idgen.segment_server.last_id IS 'not in use; dumps of earlier versions have it';

-- A role that may draw no longer acts as a server by that. Fleets go on: roles that may draw from a segment with attached
-- servers keep both.
ALTER TABLE idgen.segment ADD COLUMN servers regrole[] NOT NULL DEFAULT '{}';
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
COMMENT ON COLUMN idgen.segment.servers IS 'at a coordinator: roles besides the owner that may request and report for attached servers; - is PUBLIC';
CREATE FUNCTION segment_grant(tag text, role text, server boolean DEFAULT false) RETURNS void VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'segment_grant_kind_wrapper';
CREATE FUNCTION segment_revoke(tag text, role text, server boolean DEFAULT false) RETURNS void VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS 'MODULE_PATHNAME', 'segment_revoke_kind_wrapper';
COMMENT ON FUNCTION segment_grant(text, text, boolean) IS
    'lets a role, or public, draw from a segment; as a server, request and report for attached servers';
COMMENT ON FUNCTION segment_revoke(text, text, boolean) IS 'revokes what segment_grant granted';
-- New functions keep the owner and the privileges of those that they replace. A GRANT in this script would count as one of
-- the extension, and pg_dump would leave it out.
DO LANGUAGE plpgsql $update$
DECLARE
    replaced record;
BEGIN
    FOR replaced IN
        SELECT old.oid AS old, new.oid AS new, pg_catalog.pg_get_userbyid(old.proowner) AS owner, old.proacl AS privileges
        FROM (VALUES
            ('lease_define(text, int, interval, interval, int, boolean)',
             'lease_define(text, int, interval, interval, int, boolean, boolean)'),
            ('segment_grant(text, text)', 'segment_grant(text, text, boolean)'),
            ('segment_revoke(text, text)', 'segment_revoke(text, text, boolean)')
        ) AS pair (old, new)
        JOIN pg_catalog.pg_proc AS old ON old.oid OPERATOR(pg_catalog.=) pair.old::pg_catalog.regprocedure
        JOIN pg_catalog.pg_proc AS new ON new.oid OPERATOR(pg_catalog.=) pair.new::pg_catalog.regprocedure
    LOOP
        EXECUTE pg_catalog.format('ALTER FUNCTION %s OWNER TO %I', replaced.new::pg_catalog.regprocedure, replaced.owner);
        IF EXISTS (SELECT FROM pg_catalog.pg_init_privs
                   WHERE objoid OPERATOR(pg_catalog.=) replaced.old
                     AND classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass) THEN
            EXECUTE pg_catalog.format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', replaced.new::pg_catalog.regprocedure);
        END IF;
        UPDATE pg_catalog.pg_proc SET proacl = replaced.privileges WHERE oid OPERATOR(pg_catalog.=) replaced.new;
        INSERT INTO pg_catalog.pg_shdepend (dbid, classid, objid, objsubid, refclassid, refobjid, deptype)
        SELECT dbid, classid, replaced.new, objsubid, refclassid, refobjid, deptype FROM pg_catalog.pg_shdepend
        WHERE dbid OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database
                                           WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
          AND classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
          AND objid OPERATOR(pg_catalog.=) replaced.old AND deptype OPERATOR(pg_catalog.=) 'a';
        EXECUTE pg_catalog.format('DROP FUNCTION %s', replaced.old::pg_catalog.regprocedure);
    END LOOP;
END
$update$;
DO LANGUAGE plpgsql $update$
DECLARE
    kept record;
BEGIN
    FOR kept IN
        UPDATE idgen.segment SET servers = drawers
        WHERE drawers::oid[] OPERATOR(pg_catalog.<>) '{}'::oid[]
          AND EXISTS (SELECT FROM idgen.segment_server AS attached WHERE attached.tag OPERATOR(pg_catalog.=) segment.tag)
        RETURNING tag, ARRAY(SELECT CASE WHEN role::oid OPERATOR(pg_catalog.=) 0::oid THEN 'public' ELSE role::text END
                             FROM pg_catalog.unnest(drawers) AS granted (role)) AS roles
    LOOP
        -- No notice: a script of an extension shows none.
        RAISE WARNING 'roles that may act as servers of segment "%": %', kept.tag, pg_catalog.array_to_string(kept.roles, ', ')
            USING HINT = pg_catalog.format('For each role that no server connects as, run SELECT segment_revoke(%L, role, server => true);',
                                           kept.tag);
    END LOOP;
END
$update$;

-- A server keeps its number when a segment is detached.
COMMENT ON COLUMN idgen.segment.server IS 'number by which the coordinator knows this server; NULL unless the segment is or was attached';
