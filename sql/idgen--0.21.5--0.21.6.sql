\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.6'" to load this file. \quit

-- An operator for these types that was planted in the schema of the extension was a part of the view.
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
   OR 0::oid = ANY (allocated.drawers::oid[])
   OR EXISTS (SELECT FROM pg_catalog.unnest(allocated.drawers::oid[]) AS granted (role)
              WHERE pg_catalog.pg_has_role(granted.role, 'USAGE'));
