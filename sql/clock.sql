CREATE FUNCTION idgen.stat_get_clock(
    OUT mark timestamptz, OUT lead interval, OUT backward_steps bigint, OUT largest_step interval,
    OUT mark_writes bigint, OUT mark_write_time interval) RETURNS SETOF record
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_clock_wrapper';
COMMENT ON FUNCTION idgen.stat_get_clock IS 'row of the view idgen.stat_clock';
GRANT EXECUTE ON FUNCTION idgen.stat_get_clock TO pg_monitor;

CREATE VIEW idgen.stat_clock AS
SELECT mark, lead, backward_steps, largest_step, mark_writes, mark_write_time,
       idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_clock();
COMMENT ON VIEW idgen.stat_clock IS
    'high-water mark, lead of ids over the wall clock, and backward steps of the wall clock';
COMMENT ON COLUMN idgen.stat_clock.mark IS
    'high-water mark: no id has this time or a later one; NULL before the first id since the start';
COMMENT ON COLUMN idgen.stat_clock.lead IS
    'how far ids are ahead of the wall clock: the latest one, or where ids begin after a crash, a promotion or snowflake_observe';
COMMENT ON COLUMN idgen.stat_clock.backward_steps IS
    'times the wall clock was found set back, by a millisecond or more';
COMMENT ON COLUMN idgen.stat_clock.largest_step IS 'the largest of them';
COMMENT ON COLUMN idgen.stat_clock.mark_writes IS 'times the high-water file was written';
COMMENT ON COLUMN idgen.stat_clock.mark_write_time IS 'time spent writing and syncing it';
COMMENT ON COLUMN idgen.stat_clock.stats_reset IS
    'when the counters of all views were last set to zero: by idgen.reset_stats(), or at a start';
GRANT SELECT ON idgen.stat_clock TO PUBLIC, pg_monitor;
