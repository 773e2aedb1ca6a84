\echo Use "ALTER EXTENSION idgen UPDATE TO '0.14.4'" to load this file. \quit
