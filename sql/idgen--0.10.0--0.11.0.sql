\echo Use "ALTER EXTENSION idgen UPDATE TO '0.11.0'" to load this file. \quit
