\echo Use "ALTER EXTENSION idgen UPDATE TO '0.7.1'" to load this file. \quit

ALTER VIEW idgen.stat_segment SET (security_barrier);

GRANT SELECT, INSERT ON idgen.segment, idgen.lease_definition, idgen.worker_number TO pg_database_owner;

-- A dump names roles. A role that was dropped is only a number in a row, which may be another role's where the dump is restored:
-- the dump gives its segments to the owner of the database, and its grants to nobody. The columns are those of the table, in order.
SELECT pg_catalog.pg_extension_config_dump('idgen.segment', $condition$WHERE false UNION ALL
    SELECT tag, max_id, step, min_step, max_step, target_duration, stride, residue, upper_bound,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END,
           ARRAY(SELECT granted.role FROM pg_catalog.unnest(drawers) WITH ORDINALITY AS granted (role, place)
                 WHERE granted.role::pg_catalog.oid OPERATOR(pg_catalog.=) 0::pg_catalog.oid
                    OR EXISTS (SELECT FROM pg_catalog.pg_roles AS role
                               WHERE role.oid OPERATOR(pg_catalog.=) granted.role::pg_catalog.oid)
                 ORDER BY granted.place),
           creation, version, created_in, changed_in
    FROM idgen.segment$condition$);

SELECT pg_catalog.pg_extension_config_dump('idgen.lease_definition', $condition$WHERE false UNION ALL
    SELECT name, slots, ttl, lock_delay,
           CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles AS role WHERE role.oid OPERATOR(pg_catalog.=) owner::pg_catalog.oid)
                THEN owner ELSE 'pg_database_owner'::pg_catalog.regrole END
    FROM idgen.lease_definition$condition$);

COMMENT ON FUNCTION lease_renew(text, bigint, interval) IS
    'makes a lease last from now on; returns when it ends then, or NULL if it is bound to a session';
