\echo Use "ALTER EXTENSION idgen UPDATE TO '0.17.0'" to load this file. \quit

-- It renewed without comparing, for keepers of idgen 0.7. Builds of the last commits of 0.16.0 lack it.
DROP FUNCTION IF EXISTS worker_renew(text, bigint, interval);
