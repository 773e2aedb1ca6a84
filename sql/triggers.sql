CREATE TRIGGER segment_row BEFORE INSERT OR UPDATE OR DELETE ON idgen.segment
FOR EACH ROW EXECUTE FUNCTION idgen.segment_row();
-- Always: also for rows that a restore or a subscription writes.
ALTER TABLE idgen.segment ENABLE ALWAYS TRIGGER segment_row;
