//! Ids and locks made by hand in SQL.

use crate::harness::server::Server;
use crate::harness::source::{Contender, Source};

pub const NEXTVAL: &str = "nextval";

/// Creates what the contenders of all subjects use.
pub fn create(server: &Server) {
    server.cluster.execute(
        "CREATE SEQUENCE seq_1;
         CREATE SEQUENCE seq_32 CACHE 32;
         CREATE SEQUENCE seq_1000 CACHE 1000;
         CREATE TABLE counter (n bigint NOT NULL);
         INSERT INTO counter VALUES (0);
         CREATE TABLE lock_row (name int PRIMARY KEY, token int);
         CREATE TABLE hand_made_lease (name text PRIMARY KEY, token bigint NOT NULL, expires_at timestamptz NOT NULL) \
         WITH (fillfactor = 50);
         CREATE TABLE lock_token (token bigint NOT NULL) WITH (fillfactor = 50);
         INSERT INTO lock_token VALUES (0)",
    );
    server.cluster.execute(PLPGSQL_NEXT);
    server.cluster.execute(LOCK_AND_COUNT);
}

/// The usual snowflake in PL/pgSQL: the time, a shard number, and the low bits of a sequence.
const PLPGSQL_NEXT: &str = "
CREATE SEQUENCE seq_plpgsql;
CREATE FUNCTION plpgsql_next() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  epoch_ms CONSTANT bigint := 1577836800000;
  shard CONSTANT bigint := 5;
  now_ms CONSTANT bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
  RETURN (now_ms - epoch_ms) << 23 | shard << 10 | nextval('seq_plpgsql') % 1024;
END
$$";

pub const SEQUENCES: [Contender; 3] = [
    (NEXTVAL, Source::Expression("nextval('seq_1')")),
    ("nextval, CACHE 32", Source::Expression("nextval('seq_32')")),
    ("nextval, CACHE 1000", Source::Expression("nextval('seq_1000')")),
];

/// A row that is updated and committed for each id. It waits for the disk, so a loop makes few calls.
pub const COUNTER: Contender = (
    "a counter row",
    Source::Block {
        statements: "UPDATE counter SET n = n + 1 RETURNING n INTO id; COMMIT;",
        divisor: 1000,
        single: Some("UPDATE counter SET n = n + 1 RETURNING n"),
    },
);

/// A lock as a row: no lock that writes a row for each grant is faster.
pub const LOCK_ROW: &str = "INSERT INTO lock_row VALUES (:client_id, 1) RETURNING token \\gset\n\
                            DELETE FROM lock_row WHERE name = :client_id AND token = :token";

/// A lease in a table of one's own: one statement to acquire, and a release that does not wait for its sync. It has no
/// queue, no fence and no renewal, and trusts the clock.
pub const HAND_MADE_LEASE: &str = "INSERT INTO hand_made_lease AS lease VALUES ('bench:' || :client_id::text, 1, clock_timestamp() + '30 s') \
     ON CONFLICT (name) DO UPDATE SET token = lease.token + 1, expires_at = excluded.expires_at \
     WHERE lease.expires_at <= clock_timestamp() RETURNING token \\gset\n\
     UPDATE hand_made_lease SET expires_at = '-infinity' WHERE name = 'bench:' || :client_id::text AND token = :token \
     RETURNING set_config('synchronous_commit', 'off', true)";

/// Updates the row with a snapshot of its own, from after the wait.
const LOCK_AND_COUNT: &str = "
CREATE FUNCTION lock_and_count(OUT next bigint) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_advisory_lock(hashtextextended('bench', 0));
  UPDATE lock_token SET token = token + 1 RETURNING token INTO next;
END
$$";

/// An advisory lock for all clients, whose holder counts a durable token first.
pub const LOCK_WITH_TOKEN: &str =
    "SELECT next FROM lock_and_count() \\gset\nSELECT pg_advisory_unlock(hashtextextended('bench', 0))";
