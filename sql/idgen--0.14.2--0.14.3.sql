\echo Use "ALTER EXTENSION idgen UPDATE TO '0.14.3'" to load this file. \quit
