//! `lease_guard` rejects every kind of write in a transaction that has not fenced.

use std::io::Write;

use idgen_testkit::Cluster;
use idgen_testkit::lease::acquire;
use idgen_testkit::script::{play, play_each};
use idgen_testkit::sql::{execute, expect_error, value};
use postgres::Client;

use crate::builder;

const TABLES: [&str; 2] = ["plain", "parent"];

/// Every statement that writes, and the rows after it. Before it the ids are 1 and 60.
const WRITES: [(&str, &str); 9] = [
    ("INSERT INTO $t VALUES (2, 0)", "1 0, 2 0, 60 0"),
    ("INSERT INTO $t VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET n = excluded.n", "1 5, 60 0"),
    ("UPDATE $t SET n = 5 WHERE id = 60", "1 0, 60 5"),
    // Moves a row from one partition to the other.
    ("UPDATE $t SET id = 70 WHERE id = 1", "60 0, 70 0"),
    ("DELETE FROM $t WHERE id = 1", "60 0"),
    ("MERGE INTO $t USING (VALUES (1)) AS s (id) ON $t.id = s.id WHEN MATCHED THEN UPDATE SET n = 7", "1 7, 60 0"),
    (
        "MERGE INTO $t USING (VALUES (3)) AS s (id) ON $t.id = s.id WHEN NOT MATCHED THEN INSERT VALUES (3, 3)",
        "1 0, 3 3, 60 0",
    ),
    ("WITH gone AS (DELETE FROM $t RETURNING *) SELECT count(*) FROM gone", ""),
    ("TRUNCATE $t", ""),
];

fn with_tables() -> Cluster {
    let cluster = builder().start_with_extension();
    cluster.execute(
        "CREATE TABLE plain (id int PRIMARY KEY, n int);
         CREATE TABLE parent (id int PRIMARY KEY, n int) PARTITION BY RANGE (id);
         CREATE TABLE low PARTITION OF parent FOR VALUES FROM (0) TO (50);
         CREATE TABLE high PARTITION OF parent FOR VALUES FROM (50) TO (100);",
    );
    for table in TABLES {
        cluster.execute(&format!("INSERT INTO {table} VALUES (1, 0), (60, 0); {}", guard(table)));
    }
    cluster
}

fn guard(table: &str) -> String {
    format!(
        "CREATE TRIGGER guard BEFORE INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW EXECUTE FUNCTION lease_guard('g');
         CREATE TRIGGER guard_truncate BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION lease_guard('g');"
    )
}

fn rows(client: &mut Client, table: &str) -> String {
    value(client, &format!("SELECT coalesce(string_agg(id || ' ' || n, ', ' ORDER BY id), '') FROM {table}"))
}

/// The SQLSTATE of a COPY of one row, if it fails.
fn copy(client: &mut Client, table: &str) -> Option<String> {
    let mut data = client.copy_in(&format!("COPY {table} FROM STDIN")).expect("COPY begins");
    data.write_all(b"9\t9\n").expect("the server reads");
    data.finish().err().map(|error| error.code().expect("an error of the server").code().to_owned())
}

#[test]
fn write_without_a_fence_is_rejected_smoke() {
    let cluster = with_tables();
    let mut client = cluster.client();
    let token = acquire(&mut client, "'g', '1 day'").token;
    // A fence of another lease, none, and one of this lease in an earlier transaction.
    let others = acquire(&mut client, "'other', '1 day'").token;
    let fence = format!("SELECT lease_fence('g', {token})");
    for fence in [format!("SELECT lease_fence('other', {others})"), String::new(), format!("{fence}; COMMIT; BEGIN")] {
        for table in TABLES {
            for (write, _) in WRITES {
                execute(&mut client, &format!("BEGIN; {fence}"));
                let error = expect_error(&mut client, &write.replace("$t", table), "55000");
                assert!(error.message().ends_with("can be written only under lease \"g\""), "{write}: {error:?}");
                execute(&mut client, "ROLLBACK");
            }
            execute(&mut client, &format!("BEGIN; {fence}"));
            assert_eq!(copy(&mut client, table).as_deref(), Some("55000"));
            execute(&mut client, "ROLLBACK");
            assert_eq!(rows(&mut client, table), "1 0, 60 0");
        }
        // Directly into the partitions.
        for write in ["INSERT INTO low VALUES (2, 0)", "UPDATE high SET n = 1", "DELETE FROM low"] {
            expect_error(&mut client, write, "55000");
        }
    }
}

#[test]
fn write_under_a_fence_succeeds() {
    let cluster = with_tables();
    let mut client = cluster.client();
    let token = acquire(&mut client, "'g', '1 day'").token;
    let fence = format!("BEGIN; SELECT lease_fence('g', {token})");
    for table in TABLES {
        for (write, after) in WRITES {
            execute(&mut client, &fence);
            execute(&mut client, &write.replace("$t", table));
            assert_eq!(rows(&mut client, table), after, "{write}");
            execute(&mut client, "ROLLBACK");
        }
        execute(&mut client, &fence);
        assert_eq!(copy(&mut client, table), None);
        assert_eq!(rows(&mut client, table), "1 0, 9 9, 60 0");
        execute(&mut client, "COMMIT");
    }
}

/// A foreign key action is a write of the transaction too.
#[test]
fn cascade_into_a_guarded_table_is_rejected() {
    let cluster = with_tables();
    let mut client = cluster.client();
    execute(
        &mut client,
        &format!(
            "CREATE TABLE child (id int REFERENCES free ON DELETE CASCADE ON UPDATE CASCADE, n int);
             INSERT INTO child VALUES (1, 0); {}",
            guard("child")
        )
        .replace(
            "CREATE TABLE child",
            "CREATE TABLE free (id int PRIMARY KEY); INSERT INTO free VALUES (1); CREATE TABLE child",
        ),
    );
    for write in ["DELETE FROM free", "UPDATE free SET id = 2", "TRUNCATE free CASCADE"] {
        expect_error(&mut client, write, "55000");
    }
    assert_eq!(rows(&mut client, "child"), "1 0");
}

/// Statements after a fence, and whether the fence still covers a write after them.
#[test]
fn fence_lasts_as_long_as_its_subtransaction() {
    let cases = [
        ["SAVEPOINT s; $fence; ROLLBACK TO s", "error 55000"],
        ["SAVEPOINT s; $fence; RELEASE s", "nothing"],
        ["SAVEPOINT s; SAVEPOINT t; $fence; RELEASE t; ROLLBACK TO s", "error 55000"],
        ["$fence; SAVEPOINT s; $fence; ROLLBACK TO s", "nothing"],
        ["$fence; SAVEPOINT s; $release; ROLLBACK TO s", "nothing"],
        ["$fence; SAVEPOINT s; $release; RELEASE s", "error 55000"],
        ["SAVEPOINT s; $fence; $release; ROLLBACK TO s", "error 55000"],
        ["SAVEPOINT s; $fence; ROLLBACK TO s; $fence", "nothing"],
        ["DO $$ BEGIN PERFORM $lease_fence; RAISE 'x'; EXCEPTION WHEN raise_exception THEN END $$", "error 55000"],
        ["DO $$ BEGIN PERFORM $lease_fence; EXCEPTION WHEN raise_exception THEN END $$", "nothing"],
        // A fence that fails takes back no earlier one.
        ["$fence; DO $$ BEGIN PERFORM lease_fence('g', 1); EXCEPTION WHEN SQLSTATE '55000' THEN END $$", "nothing"],
    ];
    let fence = "lease_fence('g', $token)";
    play_each(
        &with_tables(),
        "client: SELECT token FROM lease_acquire('g', '1 day') -> $token
         client: BEGIN; $statements
         client: INSERT INTO plain VALUES (2, 0) -> $outcome
         client: ROLLBACK
         client: SELECT lease_release('g', $token) -> t",
        ["$statements", "$outcome", "$fence", "$release", "$lease_fence"],
        &cases.map(|[statements, outcome]| {
            [statements, outcome, "SELECT $lease_fence", "SELECT lease_release('g', $token)", fence]
        }),
    );
}

/// The row lock is released with the savepoint: another session may take over, and no write must succeed then.
#[test]
fn rolled_back_fence_allows_a_take_over_and_no_write() {
    play(
        &with_tables(),
        "client: SELECT token FROM lease_acquire('g', '100 ms') -> $token
         until: SELECT state FROM idgen.leases -> expired
         client: BEGIN; SAVEPOINT s; SELECT lease_fence('g', $token)
         client: INSERT INTO plain VALUES (2, 0); ROLLBACK TO s
         other: SELECT token FROM lease_acquire('g', '1 day') -> $next > $token
         other: BEGIN; SELECT lease_fence('g', $next); UPDATE plain SET n = 1; COMMIT
         client: INSERT INTO plain VALUES (2, 0) -> error 55000
         client: ROLLBACK TO s
         client: SELECT lease_fence('g', $token) -> error 55000
         client: ROLLBACK TO s
         client: TRUNCATE plain -> error 55000
         client: ROLLBACK
         client: SELECT id, n FROM plain ORDER BY id -> 1|1, 60|1",
    );
}
