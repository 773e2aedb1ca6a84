\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.7'" to load this file. \quit
