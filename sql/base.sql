-- What all rooms need. Every table says USING heap: the library reads its rows as those of a heap. A SET LOCAL would last
-- until the end of the user's transaction.
--
-- The library finds rows by the index of the replica identity. Keys of text sort by their bytes there, as they cannot in a
-- primary key: an index that sorts by the rules of the operating system passes rows over on another one, such as a standby
-- with a later release.

-- Without IF NOT EXISTS: another role may own an existing schema of this name.
CREATE SCHEMA idgen;
COMMENT ON SCHEMA idgen IS 'idgen: views and functions for operators';
-- PUBLIC may make and decode ids, and read the views. pg_monitor still may if an administrator revokes that from PUBLIC.
GRANT USAGE ON SCHEMA idgen TO PUBLIC, pg_monitor;

CREATE FUNCTION idgen.refuse_row_expansion(request internal) RETURNS internal
STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'refuse_row_expansion_wrapper';
COMMENT ON FUNCTION idgen.refuse_row_expansion IS
    'planner support: refuses (function(...)).*, which would call the function once for each column';
REVOKE EXECUTE ON FUNCTION idgen.refuse_row_expansion FROM PUBLIC;

-- For everybody: COPY FROM calls it in place of a draw.
CREATE FUNCTION idgen.allow_copy_batches(request internal) RETURNS internal
STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'allow_copy_batches';
COMMENT ON FUNCTION idgen.allow_copy_batches IS
    'planner support: takes the place of a draw in COPY FROM, which then writes the rows in batches';

CREATE FUNCTION idgen.stat_get_reset_time() RETURNS timestamptz
PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'stat_get_reset_time_wrapper';
COMMENT ON FUNCTION idgen.stat_get_reset_time IS 'time of the last reset of the counters, for the column stats_reset';
GRANT EXECUTE ON FUNCTION idgen.stat_get_reset_time TO pg_monitor;
