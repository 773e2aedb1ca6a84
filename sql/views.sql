CREATE VIEW idgen.stat_snowflake AS
SELECT layout, datacenter, worker, last_id, last_time, issued, batches, borrowed, waits,
       pg_catalog.make_interval(secs => wait_us OPERATOR(pg_catalog./) 1000000.0) AS wait_time,
       ends_at
FROM idgen.stat_get_snowflake();

CREATE VIEW idgen.stat_clock AS
SELECT mark, lead, backward_steps, largest_step, mark_writes, mark_write_time
FROM idgen.stat_get_clock();

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
