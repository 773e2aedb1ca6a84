-- Views of segments for operators.
SET idgen.segment_timeout = '1min';
SELECT segment_create('seen', step => 1000, max_step => 1000), segment_create('unseen');
-- nothing before the first draw
SELECT count(*) FROM idgen.stat_segment WHERE tag IN ('seen', 'unseen');
SELECT segment_next('seen');
SELECT count(*) FROM segment_next_many('seen', 99);
-- a range of 1000, of which 100 are used; the next refill comes when half is used
SELECT tag, max_id, step, first_id, last_id, next_first_id, next_last_id, remaining, issued, refills, waits, last_error,
       last_refill_time > '0' AS last_refill_time, wait_time > '0' AS wait_time
FROM idgen.stat_segment WHERE tag IN ('seen', 'unseen');
SELECT * FROM segment_reserve('seen', 100);
SELECT first_id, last_id, remaining, issued FROM idgen.stat_segment WHERE tag = 'seen';

-- the counters restart, the values continue
SELECT idgen.reset_stats();
SELECT first_id, last_id, remaining, issued, refills, waits, wait_time FROM idgen.stat_segment WHERE tag = 'seen';
SELECT segment_next('seen');
SELECT first_id, issued, refills FROM idgen.stat_segment WHERE tag = 'seen';
SELECT upper_bound, stats_reset = (SELECT stats_reset FROM idgen.stat_clock) AS the_same FROM idgen.stat_segment WHERE tag = 'seen';

-- a second range after skipped values
SELECT segment_create('gap', step => 10, max_step => 10, stride => 3, residue => 1);
SELECT segment_next('gap');
SELECT max_id, first_id, last_id, next_first_id, next_last_id, remaining FROM idgen.stat_segment WHERE tag = 'gap';
-- a change discards the ring
SELECT segment_alter('gap', max_id => 100);
SELECT segment_next('gap');
SELECT max_id, first_id, last_id, remaining, issued FROM idgen.stat_segment WHERE tag = 'gap';
-- exhausted
SELECT segment_alter('gap', upper_bound => 130);
SELECT segment_next('gap');
SELECT count(*) FROM idgen.stat_segment WHERE tag = 'gap' AND remaining = 0 AND last_error IS NULL;

-- a dropped segment is not shown
SELECT segment_drop('gap');
SELECT count(*) FROM idgen.stat_segment WHERE tag = 'gap';
SELECT count(segment_drop(tag)) > 0 AS dropped FROM idgen.segment;
SELECT count(*) FROM idgen.stat_segment;
RESET idgen.segment_timeout;
