\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.6'" to load this file. \quit
