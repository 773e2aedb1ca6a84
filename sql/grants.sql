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
