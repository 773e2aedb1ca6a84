\echo Use "ALTER EXTENSION idgen UPDATE TO '0.21.5'" to load this file. \quit

-- In place of the scripts to 0.21.3, which fails where a row is there twice, and to 0.21.4, which fails where a publication has
-- these tables.

-- All at once. What all roles can read comes first: while this waits for a reader, sessions go on with the others.
LOCK TABLE idgen.lease_definition, idgen.worker_pool, idgen.public_key, idgen.segment_server, idgen.segment, idgen.worker_id,
    idgen.lease IN ACCESS EXCLUSIVE MODE;

-- Keys sort by their bytes: an index that sorts by the rules of the operating system passes rows over on another one, such as
-- a standby with a later release. So rows can be there twice. The one that is safe stays, or the one that was written last.
-- Which of two secrets is in use, nobody can tell.
DO $$
DECLARE
    keyed record;
    number bigint;
BEGIN
    FOR keyed IN SELECT * FROM (VALUES
        ('lease_definition', 'name', NULL, 'age(xmin)'),
        ('lease', 'name', 'slot', 'token DESC'),
        ('segment', 'tag', NULL, 'max_id DESC'),
        ('segment_server', 'tag', 'server', 'max_id DESC'),
        ('worker_pool', 'name', NULL, 'age(xmin)'),
        ('worker_id', 'pool', 'worker_id', 'not_after DESC'),
        ('public_key', 'prefix', 'version', NULL)
    ) AS every (relation, text, other, safest) LOOP
        -- Before the key goes: a table of a publication lets no row be deleted without one.
        IF keyed.safest IS NOT NULL THEN
            EXECUTE pg_catalog.format(
                'DELETE FROM idgen.%1$s WHERE ctid IN (SELECT ctid FROM (SELECT ctid, row_number() OVER '
                '(PARTITION BY %2$s ORDER BY %3$s) AS number FROM idgen.%1$s) AS every WHERE number > 1)',
                keyed.relation, pg_catalog.concat_ws(', ', keyed.text || ' COLLATE "C"', keyed.other), keyed.safest);
            GET DIAGNOSTICS number = ROW_COUNT;
            IF number > 0 THEN
                RAISE WARNING 'removed % rows of idgen.% that were there twice', number, keyed.relation
                    USING DETAIL = 'The index did not find them after a move to an operating system that sorts text in another way.';
            END IF;
        END IF;
        EXECUTE pg_catalog.format('ALTER TABLE idgen.%1$s DROP CONSTRAINT %1$s_pkey', keyed.relation);
        EXECUTE pg_catalog.format('ALTER TABLE idgen.%1$s ALTER COLUMN %2$s SET NOT NULL', keyed.relation, keyed.text);
        EXECUTE pg_catalog.format('CREATE UNIQUE INDEX %1$s_key ON idgen.%1$s (%2$s)',
            keyed.relation, pg_catalog.concat_ws(', ', keyed.text || ' text_pattern_ops', keyed.other));
        EXECUTE pg_catalog.format('ALTER TABLE idgen.%1$s REPLICA IDENTITY USING INDEX %1$s_key', keyed.relation);
    END LOOP;
END
$$;

DROP INDEX idgen.public_key_one_short;
CREATE UNIQUE INDEX public_key_one_short ON idgen.public_key (prefix text_pattern_ops) WHERE form = 'short';

DROP INDEX idgen.worker_id_token;
CREATE UNIQUE INDEX worker_id_token ON idgen.worker_id (pool text_pattern_ops, token) WHERE token IS NOT NULL;

DROP INDEX idgen.worker_id_ended;
CREATE INDEX worker_id_ended ON idgen.worker_id (pool text_pattern_ops, not_after, worker_id) WHERE token IS NULL;

DROP INDEX idgen.worker_id_held;
CREATE INDEX worker_id_held ON idgen.worker_id (pool text_pattern_ops, not_after, worker_id) WHERE token IS NOT NULL;

DROP INDEX idgen.worker_id_owner;
CREATE INDEX worker_id_owner ON idgen.worker_id (pool text_pattern_ops, pg_catalog.hashtext(owner), not_after) WHERE owner IS NOT NULL;

COMMENT ON COLUMN idgen.lease.clock IS
    'identifies CLOCK_BOOTTIME: the boot of the machine, the offset of the time namespace, the file global/pg_control, and the number in idgen_place';
