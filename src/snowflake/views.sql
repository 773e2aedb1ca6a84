CREATE VIEW idgen.stat_snowflake AS
SELECT layout, datacenter, worker, last_id, last_time, issued, batches, borrowed, waits,
       pg_catalog.make_interval(secs => wait_us OPERATOR(pg_catalog./) 1000000.0) AS wait_time,
       ends_at, idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_snowflake();
