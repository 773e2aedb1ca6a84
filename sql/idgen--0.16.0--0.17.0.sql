\echo Use "ALTER EXTENSION idgen UPDATE TO '0.17.0'" to load this file. \quit

-- It renewed without comparing, for keepers of idgen 0.7.
DROP FUNCTION worker_renew(text, bigint, interval);
