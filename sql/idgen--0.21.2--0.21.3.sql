\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.3'" to load this file. \quit

