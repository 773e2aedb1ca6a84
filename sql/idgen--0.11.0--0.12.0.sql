\echo Use "ALTER EXTENSION idgen UPDATE TO '0.12.0'" to load this file. \quit
