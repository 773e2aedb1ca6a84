-- Settled ids: those up to which no transaction can commit a row any more.
CREATE TABLE event (id bigint PRIMARY KEY DEFAULT snowflake_next(), body text);
INSERT INTO event (body) SELECT 'early' FROM generate_series(1, 3);
SELECT snowflake_settled() = max(id) AS all_are FROM event;
SELECT snowflake_settled() = snowflake_settled('snowflake') AS same;

-- a consumer: the bound in one statement, the rows in the next
SELECT snowflake_settled() AS settled \gset
SELECT count(*) FROM event WHERE id > 0 AND id <= :settled;

-- the caller's own ids too are settled after its transaction only
BEGIN;
INSERT INTO event (body) VALUES ('mine') RETURNING id AS mine \gset
SELECT snowflake_settled() < :mine AS is_open;
COMMIT;
SELECT snowflake_settled() >= :mine AS is_settled;

-- a layout that no session has drawn in
SELECT snowflake_settled('tsid') < snowflake_next('tsid') AS before_the_first;

-- errors
\set VERBOSITY default
CALL outcomes($$snowflake_settled(NULL)$$);
CALL outcomes($$snowflake_settled('nonsense')$$);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT snowflake_settled();
\echo :SQLSTATE
ROLLBACK;
SELECT snowflake_settled() > 0 AS works_after_errors;
DROP TABLE event;
