-- An id for each version of a row, and the keys of deleted rows.
CREATE TABLE item (id int PRIMARY KEY, body text, change bigint NOT NULL);
CREATE TABLE item_deleted (id int, change bigint PRIMARY KEY);
CREATE TRIGGER change BEFORE INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION snowflake_change('change');
CREATE TRIGGER keep_key AFTER UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION snowflake_change('change', 'item_deleted');
CREATE TRIGGER change_all BEFORE TRUNCATE ON item
    FOR EACH STATEMENT EXECUTE FUNCTION snowflake_change();
SELECT snowflake_next() AS before \gset
-- A given id does not count.
INSERT INTO item VALUES (1, 'a', 7), (2, 'b', NULL);
INSERT INTO item VALUES (3, 'c');
UPDATE item SET body = 'bb', change = 8 WHERE id = 2;
INSERT INTO item VALUES (1, 'aa') ON CONFLICT (id) DO UPDATE SET body = excluded.body;
COPY item (id, body) FROM stdin;
4	d
\.
SELECT id, body, change > :before AS is_new FROM item ORDER BY change;
SELECT count(*) FROM item_deleted;
-- A key that goes is kept: of a deleted row, and of an updated one.
DELETE FROM item WHERE id = 2;
UPDATE item SET id = 30 WHERE id = 3;
SELECT id, change > :before AS is_new FROM item_deleted ORDER BY change;
SELECT count(DISTINCT change) = count(*) AS differ FROM (TABLE item_deleted UNION ALL SELECT id, change FROM item) c;
SELECT bool_and(change <= snowflake_settled()) AS are_settled FROM (TABLE item_deleted UNION ALL SELECT id, change FROM item) c;
-- What the transaction undoes is not kept.
BEGIN;
DELETE FROM item;
ROLLBACK;
SELECT count(*) FROM item_deleted;
CALL outcomes($$TRUNCATE item$$);

-- Names that need quotes, a key of two columns, other types, a dropped column, another schema, and a search path that hides both.
CREATE SCHEMA "Other Schema";
CREATE TABLE "Other Schema"."The Item" (
    dropped int, note text, "Part B" text, part_a uuid, "The Change" bigint, twice bigint GENERATED ALWAYS AS ("The Change" * 2) STORED,
    PRIMARY KEY (part_a, "Part B"));
ALTER TABLE "Other Schema"."The Item" DROP COLUMN dropped;
CREATE TABLE "Other Schema"."The ""Deleted"" Item" (
    "The Change" bigint PRIMARY KEY, "Part B" text NOT NULL, part_a uuid NOT NULL, at timestamptz DEFAULT now());
CREATE TRIGGER c BEFORE INSERT OR UPDATE ON "Other Schema"."The Item"
    FOR EACH ROW EXECUTE FUNCTION snowflake_change('The Change');
CREATE TRIGGER k AFTER UPDATE OR DELETE ON "Other Schema"."The Item"
    FOR EACH ROW EXECUTE FUNCTION snowflake_change('The Change', 'The "Deleted" Item');
SET search_path = pg_catalog;
INSERT INTO "Other Schema"."The Item" (part_a, "Part B", note)
SELECT '01a21bc6-7668-7fff-bfff-ffffffffffff', repeat('long ', n * 1000), 'n' FROM generate_series(1, 3) n;
UPDATE "Other Schema"."The Item" SET note = 'm';
DELETE FROM "Other Schema"."The Item" WHERE length("Part B") > 6000;
RESET search_path;
SELECT part_a, length("Part B"), at IS NOT NULL AS has_default FROM "Other Schema"."The ""Deleted"" Item" ORDER BY "The Change";
SELECT count(DISTINCT "The Change"), bool_and(twice = "The Change" * 2) AS generated FROM "Other Schema"."The Item";

-- Rows that move to another partition, which is in another schema.
CREATE TABLE parted (id int, n int, change bigint, PRIMARY KEY (id, n)) PARTITION BY LIST (n);
CREATE TABLE parted_0 PARTITION OF parted FOR VALUES IN (0);
CREATE TABLE "Other Schema".parted_1 PARTITION OF parted FOR VALUES IN (1);
CREATE TABLE parted_deleted (id int, n int, change bigint);
CREATE TRIGGER c BEFORE INSERT OR UPDATE ON parted FOR EACH ROW EXECUTE FUNCTION snowflake_change('change');
CREATE TRIGGER k AFTER UPDATE OR DELETE ON parted FOR EACH ROW EXECUTE FUNCTION snowflake_change('change', 'parted_deleted');
INSERT INTO parted VALUES (1, 0), (2, 0), (3, 1);
UPDATE parted SET n = 1 WHERE id = 1;
DELETE FROM "Other Schema".parted_1 WHERE id = 3;
SELECT id, n, change > :before AS is_new FROM parted ORDER BY change;
SELECT DISTINCT id, n FROM parted_deleted ORDER BY id;

-- Keys that a generated column, or a later trigger, makes of a row.
CREATE TABLE made (part text, id text GENERATED ALWAYS AS (lower(part)) STORED PRIMARY KEY, change bigint);
CREATE TABLE made_deleted (id text, change bigint);
CREATE FUNCTION set_part() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN new.part := new.part || '!'; RETURN new; END $$;
CREATE TRIGGER c BEFORE INSERT OR UPDATE ON made FOR EACH ROW EXECUTE FUNCTION snowflake_change('change');
CREATE TRIGGER d BEFORE UPDATE ON made FOR EACH ROW EXECUTE FUNCTION set_part();
CREATE TRIGGER k AFTER UPDATE OR DELETE ON made FOR EACH ROW EXECUTE FUNCTION snowflake_change('change', 'made_deleted');
INSERT INTO made VALUES ('A');
UPDATE made SET part = part;
SELECT id FROM made;
SELECT id FROM made_deleted;

-- One table for the keys of two tables of other types, and a key whose type changes.
CREATE TABLE by_text (id text PRIMARY KEY, change bigint);
CREATE TABLE by_number (id int PRIMARY KEY, change bigint);
CREATE TABLE both_deleted (id text, change bigint);
CREATE TRIGGER k AFTER DELETE ON by_text FOR EACH ROW EXECUTE FUNCTION snowflake_change('change', 'both_deleted');
CREATE TRIGGER k AFTER DELETE ON by_number FOR EACH ROW EXECUTE FUNCTION snowflake_change('change', 'both_deleted');
INSERT INTO by_text VALUES ('a');
INSERT INTO by_number VALUES (5);
DELETE FROM by_text;
DELETE FROM by_number;
ALTER TABLE by_number ALTER id TYPE bigint;
INSERT INTO by_number VALUES (4294967301);
DELETE FROM by_number;
SELECT id FROM both_deleted ORDER BY change;
-- A table that refuses a key.
CREATE RULE refuse AS ON INSERT TO both_deleted DO INSTEAD NOTHING;
INSERT INTO by_text VALUES ('b');
CALL outcomes($$DELETE FROM by_text$$);

-- A user needs the right to insert into the table of deleted keys.
CREATE ROLE writer;
GRANT SELECT, INSERT, UPDATE, DELETE ON item TO writer;
SET ROLE writer;
UPDATE item SET body = 'w' WHERE id = 1;
CALL outcomes($$DELETE FROM item WHERE id = 1$$);
RESET ROLE;
GRANT INSERT ON item_deleted TO writer;
SET ROLE writer;
DELETE FROM item WHERE id = 1;
RESET ROLE;
SELECT id FROM item_deleted ORDER BY change DESC LIMIT 1;

-- A table of deleted keys that does not fit, before and after the statement was planned.
ALTER TABLE item_deleted ALTER id TYPE bigint;
DELETE FROM item WHERE id = 4;
SELECT id FROM item_deleted ORDER BY change DESC LIMIT 1;
INSERT INTO item VALUES (5);
ALTER TABLE item_deleted RENAME TO item_gone;
CALL outcomes($$DELETE FROM item$$);
ALTER TABLE item_gone RENAME TO item_deleted;
ALTER TABLE item_deleted DROP COLUMN id;
CALL outcomes($$DELETE FROM item$$);

-- Wrong uses.
CREATE TABLE wrong (id int PRIMARY KEY, body text, small int, change bigint, made bigint GENERATED ALWAYS AS (id) STORED);
INSERT INTO wrong VALUES (1);
CREATE PROCEDURE try_trigger(created text, used text) LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE 'CREATE TRIGGER w ' || created;
    CALL outcomes(used);
    DROP TRIGGER w ON wrong;
END $$;
CALL try_trigger('BEFORE UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION snowflake_change()', 'UPDATE wrong SET body = 1');
CALL try_trigger('BEFORE UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION snowflake_change(''none'')', 'UPDATE wrong SET body = 1');
CALL try_trigger('BEFORE UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION snowflake_change(''small'')', 'UPDATE wrong SET body = 1');
CALL try_trigger('BEFORE UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION snowflake_change(''ctid'')', 'UPDATE wrong SET body = 1');
CALL try_trigger('BEFORE UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION snowflake_change(''made'')', 'UPDATE wrong SET body = 1');
CALL try_trigger('BEFORE UPDATE ON wrong EXECUTE FUNCTION snowflake_change(''change'')', 'UPDATE wrong SET body = 1');
CALL try_trigger('BEFORE DELETE ON wrong FOR EACH ROW EXECUTE FUNCTION snowflake_change(''change'', ''item_deleted'')', 'DELETE FROM wrong');
CALL try_trigger('AFTER INSERT ON wrong FOR EACH ROW EXECUTE FUNCTION snowflake_change(''change'')', 'INSERT INTO wrong VALUES (2)');
CALL try_trigger('AFTER UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION snowflake_change(''change'')', 'UPDATE wrong SET body = 1');
CALL try_trigger('AFTER TRUNCATE ON wrong EXECUTE FUNCTION snowflake_change()', 'TRUNCATE wrong');
ALTER TABLE wrong DROP CONSTRAINT wrong_pkey;
CALL try_trigger('AFTER UPDATE ON wrong FOR EACH ROW EXECUTE FUNCTION snowflake_change(''change'', ''item_deleted'')', 'UPDATE wrong SET body = 1');
CALL try_trigger('AFTER DELETE ON wrong FOR EACH ROW EXECUTE FUNCTION snowflake_change(''change'', ''item_deleted'')', 'DELETE FROM wrong');
CALL outcomes($$SELECT snowflake_change()$$);
DROP TABLE item, item_deleted, parted, parted_deleted, made, made_deleted, by_text, by_number, both_deleted, wrong;
DROP SCHEMA "Other Schema" CASCADE;
DROP FUNCTION set_part;
DROP PROCEDURE try_trigger;
DROP ROLE writer;
