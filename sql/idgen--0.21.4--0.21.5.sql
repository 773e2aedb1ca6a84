\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.5'" to load this file. \quit
