\echo Use "ALTER EXTENSION idgen UPDATE TO '0.16.0'" to load this file. \quit
