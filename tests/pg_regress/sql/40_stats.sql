-- Views and status for operators.
SELECT idgen.reset_stats();
SELECT issued, batches, borrowed, waits, wait_time FROM idgen.stat_snowflake WHERE layout LIKE '%worker:3 sequence:9%';
SELECT count(snowflake_next('js53')) FROM generate_series(1, 100);
SELECT count(*) FROM snowflake_next_many(1000, 'js53');
SELECT issued, batches, waits, datacenter, worker, last_id <= 9007199254740991 AS last_id,
       last_time BETWEEN now() - interval '1 minute' AND clock_timestamp() + interval '1 second' AS last_time, ends_at
FROM idgen.stat_snowflake WHERE layout = (snowflake_layout('js53')).spec;
-- 1,000 ids in one statement need more than one tick of 512
SELECT borrowed > 0 AS borrowed FROM idgen.stat_snowflake WHERE layout = (snowflake_layout('js53')).spec;

SELECT jsonb_pretty(idgen.status() -> 'settings');
SELECT (idgen.status() #>> '{version,library}') = (SELECT extversion FROM pg_extension WHERE extname = 'idgen') AS library,
       (idgen.status() #>> '{version,sql}') = (SELECT extversion FROM pg_extension WHERE extname = 'idgen') AS sql;
SELECT * FROM idgen.checks WHERE "check" NOT IN ('layouts', 'mark');
-- status() has the same
SELECT count(*) FILTER (WHERE c <> s) AS different, count(*) = (SELECT count(*) FROM idgen.checks) AS all
FROM idgen.checks AS c
JOIN jsonb_to_recordset(idgen.status() -> 'checks')
  AS s("check" text, ok bool, severity text, since timestamptz, affects text, message text, action text) USING ("check");
-- the layout of 30_next that ends within a year
SELECT ok, severity, since, message ~ '^draws in layout "time:35 sequence:12 unit:1ms epoch:.*" fail from .* on$' AS message, action
FROM idgen.checks WHERE "check" = 'layouts';

-- the mark is past every id, by at most drift and one and a half windows
SELECT mark > now() AS promised, mark < clock_timestamp() + interval '7 seconds' AS not_far, lead < interval '1.1 seconds' AS lead,
       backward_steps, largest_step, mark_writes >= 0 AS writes, mark_write_time >= '0' AS write_time
FROM idgen.stat_clock;
SELECT ok, message ~ '^ids are durably promised up to 20.*Z$' AS message
FROM idgen.checks WHERE "check" = 'mark';

-- observing an id, like setval: all later ids are above it
SELECT snowflake_observe(snowflake_next()) <= clock_timestamp() + interval '1.1 seconds' AS floor;
SELECT snowflake_observe(snowflake_ceil(now() + interval '10 minutes')) > now() + interval '10 minutes' AS floor;
SELECT snowflake_time(snowflake_next()) > now() + interval '9 minutes' AS next,
       snowflake_time(snowflake_next('js53'), 'js53') > now() + interval '9 minutes' AS next_in;
SELECT ok, severity, affects, message ~ '^the wall clock is [56]\d{5} ms behind the times of ids' AS message, action
FROM idgen.checks WHERE "check" = 'clock';
-- a lower id changes nothing
SELECT snowflake_observe(snowflake_ceil(now())) < now() + interval '1 second' AS floor;
SELECT snowflake_time(snowflake_next()) > now() + interval '9 minutes' AS next;
-- last_id is the last issued id, not a skipped one; the lead shows where ids begin
SELECT snowflake_next('js53') AS drawn \gset
SELECT snowflake_observe(snowflake_ceil(now() + interval '11 minutes')) > now() AS floor;
SELECT last_id = :drawn AS last_id, last_time = snowflake_time(:drawn, 'js53') AS last_time
FROM idgen.stat_snowflake WHERE layout = (snowflake_layout('js53')).spec;
SELECT lead > interval '10.5 minutes' AS lead FROM idgen.stat_clock;
-- an id far ahead is probably a mistake
SELECT snowflake_observe(snowflake_ceil('2077-01-01', 'js53'), 'js53');
\echo :SQLSTATE
SELECT snowflake_observe(-1);
SELECT snowflake_observe(9007199254740992, 'js53');
SELECT snowflake_observe(NULL) IS NULL AS null_in_null_out;

-- every view tells since when it counts
SELECT stats_reset AS before FROM idgen.stat_clock \gset
SELECT snowflake_next('js53') AS last \gset
SELECT idgen.reset_stats();
-- and a reset of the counters changes no ids
SELECT sum(issued) AS issued, (SELECT last_id = :last FROM idgen.stat_snowflake WHERE layout = (snowflake_layout('js53')).spec) AS last_id
FROM idgen.stat_snowflake;
SELECT snowflake_next('js53') > :last AS rises;
SELECT stats_reset > :'before' AND stats_reset <= clock_timestamp() AS reset FROM idgen.stat_clock;
SELECT (SELECT stats_reset FROM idgen.stat_clock) = ALL (
           SELECT stats_reset FROM idgen.stat_snowflake UNION ALL SELECT stats_reset FROM idgen.stat_lease
           UNION ALL SELECT stats_reset FROM idgen.stat_worker) AS the_same;
