\echo Use "ALTER EXTENSION idgen UPDATE TO '0.14.2'" to load this file. \quit
