-- Not IF NOT EXISTS: a schema somebody else made is not ours to fill.
CREATE SCHEMA idgen;
