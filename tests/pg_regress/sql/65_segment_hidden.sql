-- Rows that a role may not see stay hidden from functions in its WHERE clause. The planner runs a cheap function first.
SET idgen.segment_timeout = '1min';
CREATE ROLE idgen_stranger;
CREATE FUNCTION show(anyelement) RETURNS bool LANGUAGE plpgsql COST 0.0001
AS 'BEGIN RAISE NOTICE ''sees %'', $1; RETURN true; END';
DELETE FROM idgen.segment;
SELECT segment_create('open', step => 10), segment_create('secret', step => 20);
SELECT segment_grant('open', 'public');
SELECT segment_next('open'), segment_next('secret');

SET ROLE idgen_stranger;
SELECT tag FROM idgen.stat_segment WHERE show(tag);
SELECT tag FROM idgen.stat_segment WHERE show(max_id);
-- the function behind the view shows the same rings
SELECT last_id, remaining FROM idgen.stat_get_segment();
RESET ROLE;
-- a role that may read all statistics sees all rows, and so does a superuser
GRANT pg_read_all_stats TO idgen_stranger;
SET ROLE idgen_stranger;
SELECT last_id FROM idgen.stat_get_segment() ORDER BY last_id;
RESET ROLE;
SELECT last_id FROM idgen.stat_get_segment() ORDER BY last_id;
REVOKE pg_read_all_stats FROM idgen_stranger;
-- the owner, without a grant
SELECT segment_alter('secret', owner => 'idgen_stranger');
SET ROLE idgen_stranger;
SELECT last_id FROM idgen.stat_get_segment() ORDER BY last_id;
RESET ROLE;
SELECT segment_drop('open'), segment_drop('secret');
DROP FUNCTION show(anyelement);
DROP ROLE idgen_stranger;
RESET idgen.segment_timeout;
