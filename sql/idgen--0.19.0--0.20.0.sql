\echo Use "ALTER EXTENSION idgen UPDATE TO '0.20.0'" to load this file. \quit

-- Only the library changes.
