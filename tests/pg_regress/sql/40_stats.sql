-- What operators see.
SELECT idgen.reset_stats();
SELECT issued, batches, borrowed, waits, wait_time FROM idgen.stat_snowflake WHERE layout LIKE '%worker:3 sequence:9%';
SELECT count(snowflake_next('js53')) FROM generate_series(1, 100);
SELECT count(*) FROM snowflake_next_many(1000, 'js53');
SELECT issued, batches, waits, datacenter, worker, last_id <= 9007199254740991 AS last_id,
       last_time BETWEEN now() - interval '1 minute' AND clock_timestamp() + interval '1 second' AS last_time, ends_at
FROM idgen.stat_snowflake WHERE layout = (snowflake_layout('js53')).spec;
-- 1,000 ids in one statement do not fit one tick of 512
SELECT borrowed > 0 AS borrowed FROM idgen.stat_snowflake WHERE layout = (snowflake_layout('js53')).spec;

SELECT jsonb_pretty(idgen.status() -> 'settings');
SELECT (idgen.status() #>> '{version,library}') = (SELECT extversion FROM pg_extension WHERE extname = 'idgen') AS library,
       (idgen.status() #>> '{version,sql}') = (SELECT extversion FROM pg_extension WHERE extname = 'idgen') AS sql;
SELECT c.* FROM jsonb_to_recordset(idgen.status() -> 'checks') AS c("check" text, ok bool, message text)
WHERE "check" <> 'layouts';
-- the layout of 30_next that ends within a year
SELECT c.ok, c.message ~ '^layout "time:35 sequence:12 unit:1ms epoch:.*" has no ids from .* on$' AS message
FROM jsonb_to_recordset(idgen.status() -> 'checks') AS c("check" text, ok bool, message text)
WHERE "check" = 'layouts';
