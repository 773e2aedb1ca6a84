-- Layouts: presets, specs, the canonical form, and invalid specs.
\x on
SELECT p AS preset, l.* FROM unnest(string_to_array('snowflake twitter sonyflake instagram discord tsid pgedge seconds js53', ' ')) p,
    snowflake_layout(p) l;
\x off
SELECT spec FROM snowflake_layout();

-- invalid specs
\set VERBOSITY default
SELECT snowflake_layout('');
\echo :SQLSTATE
SELECT snowflake_layout('snowflak');
SELECT snowflake_layout('time');
SELECT snowflake_layout('time:41');
SELECT snowflake_layout('time:41 sequence:12');
SELECT snowflake_layout('sequence:12 time:41 epoch:2020-01-01');
SELECT snowflake_layout('time:41 sequence:12 colour:3 epoch:2020-01-01');
SELECT snowflake_layout('time:41 sequence:12 sequence:12 epoch:2020-01-01');
SELECT snowflake_layout('time:19 sequence:12 epoch:2020-01-01');
SELECT snowflake_layout('time:41 worker:11 sequence:12 epoch:2020-01-01');
SELECT snowflake_layout('time:41 datacenter:5 sequence:12 epoch:2020-01-01');
SELECT snowflake_layout('time:41 tag:4 sequence:12 epoch:2020-01-01');
SELECT snowflake_layout('time:41 tag:4=16 sequence:12 epoch:2020-01-01');
SELECT snowflake_layout('time:41 sequence:12 unit:2s epoch:2020-01-01');
SELECT snowflake_layout('time:41 sequence:12 epoch:2020-02-30');
SELECT snowflake_layout(repeat('x', 100) || E'\n"quoted"');

-- the next call works
SELECT bits FROM snowflake_layout('js53');
SELECT snowflake_layout(NULL) IS NULL AS null_in_null_out;
