-- Segments of a fleet: what a coordinator answers, and errors. Requests of attached servers are made by hand.
SELECT segment_create('fleet', step => 10);

-- Each server gets values of its own, from the row that the coordinator draws from too.
SELECT first_id, count, stride, residue, waits_for FROM segment_request('fleet', 1, 'one', 0, 100);
SELECT first_id, count, waits_for FROM segment_request('fleet', 2, 'two', 0, 50);
SELECT segment_next('fleet');
SELECT first_id, count FROM segment_request('fleet', 1, 'one', 100, 5);
SELECT segment_confirm();
-- A report asks for nothing.
SELECT first_id, count, stride, waits_for FROM segment_request('fleet', 2, 'two', 150, 0);
SELECT tag, server, name, max_id FROM idgen.segment_server ORDER BY server;
-- A server that has received higher values than were granted here: values go on above them.
SELECT first_id, count FROM segment_request('fleet', 3, 'three', 1000, 10);

-- The end.
SELECT segment_create('short', start => 1, upper_bound => 12);
SELECT first_id, count FROM segment_request('short', 1, 'one', 0, 10);
SELECT first_id, count FROM segment_request('short', 1, 'one', 0, 10);
SELECT * FROM segment_request('short', 1, 'one', 0, 10);
SELECT first_id, waits_for FROM segment_request('short', 1, 'one', 12, 0);
-- A server that has received values above it.
SELECT * FROM segment_request('short', 2, 'two', 13, 0);
SELECT segment_leave('short', 2, 13);
-- The session that creates a tag counts its values until it commits.
BEGIN;
SELECT segment_create('new'), segment_next('new');
SELECT * FROM segment_request('new', 1, 'one', 0, 5);
ROLLBACK;

-- After a change of the history, nothing until all servers have reported.
CALL outcomes($$
    UPDATE idgen.segment SET history = 'another' WHERE tag = 'fleet'
    UPDATE idgen.segment_server SET history = 'another' WHERE tag = 'fleet'
    SELECT first_id, waits_for FROM segment_request('fleet', 1, 'one', 2000, 10)
    SELECT first_id, waits_for FROM segment_request('fleet', 2, 'two', 5000, 10)
    segment_leave('fleet', 3, 1010)
    SELECT first_id, waits_for FROM segment_request('fleet', 1, 'one', 2000, 10)
$$);

-- Bad arguments.
CALL outcomes($$
    SELECT * FROM segment_request(NULL, 1, 'one', 0, 1)
    SELECT * FROM segment_request('fleet', NULL, 'one', 0, 1)
    SELECT * FROM segment_request('fleet', 1, NULL, 0, 1)
    SELECT * FROM segment_request('fleet', 1, 'one', NULL, 1)
    SELECT * FROM segment_request('fleet', 1, 'one', 0, NULL)
    SELECT * FROM segment_request('fleet', 1, 'one', 0, -1)
    SELECT * FROM segment_request('fleet', 1, 'one', 0, 1000000001)
    SELECT * FROM segment_request('nothing', 1, 'one', 0, 1)
    segment_leave('fleet', 9, 0)
    segment_leave('fleet', NULL, 0)
    segment_leave('nothing', 1, 0)
    segment_resume('fleet', NULL)
    segment_resume('nothing', 1)
    segment_resume('short', 13)
    segment_attach('fleet', '1 second')
    segment_attach('fleet', '366 days')
    segment_attach('fleet', NULL)
    segment_attach(NULL)
    segment_attach('')
    segment_attach('fleet')
    segment_detach('fleet')
    segment_detach('nothing')
    segment_detach(NULL)
$$);

-- Roles.
CALL outcomes($$
    CREATE ROLE regress_fleet
    regress_fleet: segment_attach('fleet')
    regress_fleet: segment_detach('fleet')
    regress_fleet: segment_resume('fleet', 1)
    regress_fleet: SELECT * FROM segment_request('fleet', 1, 'one', 0, 1)
    regress_fleet: segment_leave('fleet', 1, 0)
    regress_fleet: SELECT * FROM idgen.segment_server
    -- One that may draw is no server, and a server may not draw.
    segment_grant('fleet', 'regress_fleet')
    regress_fleet: SELECT segment_next('fleet') > 0 AS drawn
    regress_fleet: SELECT count FROM segment_request('fleet', 4, 'four', 0, 1)
    regress_fleet: segment_leave('fleet', 2, 0)
    regress_fleet: segment_grant('fleet', 'regress_fleet', server => true)
    segment_revoke('fleet', 'regress_fleet'), segment_grant('fleet', 'regress_fleet', server => true)
    SELECT drawers, servers FROM idgen.segment WHERE tag = 'fleet'
    regress_fleet: segment_next('fleet')
    regress_fleet: SELECT count FROM segment_request('fleet', 4, 'four', 0, 1)
    regress_fleet: segment_leave('fleet', 4, 0)
    regress_fleet: segment_resume('fleet', 1)
    segment_revoke('fleet', 'regress_fleet', server => true)
    regress_fleet: SELECT count FROM segment_request('fleet', 4, 'four', 0, 1)
    segment_grant('fleet', 'public', server => true), segment_grant('fleet', 'regress_fleet', server => true)
    segment_grant('fleet', 'public', NULL)
    DROP OWNED BY regress_fleet
    SELECT drawers, servers FROM idgen.segment WHERE tag = 'fleet'
$$);

-- Its servers outlive the tag, until they leave.
SELECT segment_drop('fleet'), segment_drop('short');
SELECT tag, count(*), max(max_id) FROM idgen.segment_server GROUP BY tag ORDER BY tag;
SELECT segment_create('short', upper_bound => 20);
SELECT segment_next('short');
SELECT segment_drop('short');
SELECT count(segment_leave(tag, server, max_id)) FROM idgen.segment_server;
SELECT count(*) FROM idgen.segment_server;
DROP ROLE regress_fleet;
