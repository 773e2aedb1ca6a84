\echo Use "ALTER EXTENSION idgen UPDATE TO '0.14.1'" to load this file. \quit
