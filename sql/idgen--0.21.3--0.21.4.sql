\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.4'" to load this file. \quit
