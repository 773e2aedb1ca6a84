\echo Use "ALTER EXTENSION idgen UPDATE TO '0.14.1'" to load this file. \quit

-- A base backup that is restored in place ends the history of a coordinator too.
COMMENT ON COLUMN idgen.segment.history IS 'at a coordinator: system identifier, timeline, database, directory and restored base backup under which it last granted values';
COMMENT ON COLUMN idgen.worker_history.place IS 'inode and birth time of PG_VERSION in the data directory, which a copy does not share; and a digest of the label of the base backup that was restored into it';
