\echo Use "ALTER EXTENSION idgen UPDATE TO '0.8.0'" to load this file. \quit
