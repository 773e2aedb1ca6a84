-- Everybody may generate, decode and look; setting the counters back is for DBAs, and superusers grant it.
GRANT USAGE ON SCHEMA idgen TO PUBLIC;
GRANT SELECT ON idgen.stat_snowflake TO PUBLIC;
REVOKE EXECUTE ON FUNCTION idgen.reset_stats() FROM PUBLIC;
