CREATE VIEW idgen.stat_clock AS
SELECT mark, lead, backward_steps, largest_step, mark_writes, mark_write_time,
       idgen.stat_get_reset_time() AS stats_reset
FROM idgen.stat_get_clock();
