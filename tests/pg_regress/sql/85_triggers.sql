-- A data-only restore with --disable-triggers leaves the triggers of the tables of idgen enabled for ordinary sessions only.
CREATE VIEW check_of_triggers AS SELECT ok, message, action FROM idgen.checks WHERE "check" = 'triggers';
SELECT * FROM check_of_triggers;
-- what the restore of one table does
ALTER TABLE idgen.segment DISABLE TRIGGER ALL;
ALTER TABLE idgen.segment ENABLE TRIGGER ALL;
\x on
SELECT * FROM check_of_triggers;
\x off
-- a trigger of the users is theirs, on a table of idgen too, and so is a guard
CREATE FUNCTION noticed() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER noticed AFTER INSERT ON idgen.segment FOR EACH ROW EXECUTE FUNCTION noticed();
CREATE TABLE guarded (n int);
CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION lease_guard('writer');
-- every table, in every state, is repaired by what the action says
ALTER TABLE idgen.public_key ENABLE REPLICA TRIGGER public_key_row;
ALTER TABLE idgen.lease_definition DISABLE TRIGGER lease_definition_changed;
SELECT substr(action, 5) AS repair FROM check_of_triggers \gset
\echo :repair
:repair;
SELECT * FROM check_of_triggers;
SELECT tgrelid::regclass AS "table", tgname, tgenabled FROM pg_trigger
WHERE NOT tgisinternal AND (tgrelid::regclass::text LIKE 'idgen.%' OR tgname = 'guard') ORDER BY tgname;
-- rows that logical replication or a replica role writes cannot lower max_id
SELECT segment_create('restored', 100);
SET session_replication_role = replica;
UPDATE idgen.segment SET max_id = 0 WHERE tag = 'restored';
RESET session_replication_role;
SELECT segment_drop('restored');
DROP TRIGGER noticed ON idgen.segment;
DROP FUNCTION noticed;
DROP VIEW check_of_triggers;
DROP TABLE guarded;
