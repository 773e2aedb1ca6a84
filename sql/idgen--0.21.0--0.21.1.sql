\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.1'" to load this file. \quit
