\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.2'" to load this file. \quit

-- The library reads rows of the tables as those of a heap.
SET LOCAL search_path = pg_catalog, pg_temp;
DO $$
DECLARE changed regclass;
BEGIN
    FOR changed IN
        SELECT class.oid
        FROM pg_extension AS extension
            JOIN pg_depend AS member ON (member.refclassid, member.refobjid) = ('pg_extension'::regclass, extension.oid)
            JOIN pg_class AS class ON (member.classid, member.objid) = ('pg_class'::regclass, class.oid)
            JOIN pg_am AS method ON method.oid = class.relam
        WHERE extname = 'idgen' AND member.deptype = 'e' AND class.relkind = 'r' AND amname <> 'heap'
    LOOP
        EXECUTE format('ALTER TABLE %s SET ACCESS METHOD heap', changed);
    END LOOP;
END
$$;
