\echo Use "ALTER EXTENSION idgen UPDATE TO '0.15.0'" to load this file. \quit
