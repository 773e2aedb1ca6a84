//! Optimistic locking under concurrency: no successful change is lost.

use std::sync::Barrier;

use idgen_testkit::Cluster;
use idgen_testkit::sql::{execute, row, value};
use postgres::error::SqlState;

use crate::builder;

const SESSIONS: usize = 6;
const ROUNDS: usize = 30;

/// Writes by sessions that have all read the same row version.
const WRITES: [&str; 2] = [
    "UPDATE t SET n = $n, version = $version WHERE id = 1",
    "INSERT INTO t (id, n, version) VALUES (1, $n, $version)
     ON CONFLICT (id) DO UPDATE SET n = excluded.n, version = excluded.version",
];

/// In each round all sessions read the row and then write it with its counter plus one. Returns the number of successful
/// writes and the final counter.
fn race(cluster: &Cluster, write: &str) -> (usize, i32) {
    cluster.execute("TRUNCATE t; INSERT INTO t VALUES (1, 0, 1)");
    let turn = Barrier::new(SESSIONS);
    let written = std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..SESSIONS)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = cluster.client();
                    let mut written = 0;
                    for _ in 0..ROUNDS {
                        turn.wait();
                        let read = row(&mut client, "SELECT n, version FROM t WHERE id = 1");
                        let (n, version): (i32, i64) = (read.get(0), read.get(1));
                        turn.wait();
                        let sql = write.replace("$n", &(n + 1).to_string()).replace("$version", &version.to_string());
                        match client.simple_query(&sql) {
                            Ok(_) => written += 1,
                            Err(error) => {
                                assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error:?}")
                            }
                        }
                    }
                    written
                })
            })
            .collect();
        sessions.into_iter().map(|session| session.join().unwrap()).sum()
    });
    (written, value(&mut cluster.client(), "SELECT n FROM t"))
}

#[test]
fn row_version_loses_no_change_on_a_table_or_on_partitions() {
    let cluster = builder().start_with_extension();
    let plain = "CREATE TABLE t (id int PRIMARY KEY, n int, version bigint)";
    // The columns of the partition have another order.
    let partitioned = "CREATE TABLE t (id int PRIMARY KEY, n int, version bigint) PARTITION BY RANGE (id);
                       CREATE TABLE part (version bigint, gone int, id int NOT NULL, n int);
                       ALTER TABLE part DROP COLUMN gone;
                       ALTER TABLE t ATTACH PARTITION part FOR VALUES FROM (0) TO (10)";
    let trigger = "CREATE TRIGGER v BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION row_version('version')";
    for table in [plain, partitioned] {
        cluster.execute(table);
        for write in WRITES {
            // Without the trigger every write succeeds, but only one of each round survives.
            assert_eq!(race(&cluster, write), (SESSIONS * ROUNDS, ROUNDS as i32), "{write}");
        }
        cluster.execute(trigger);
        for write in WRITES {
            assert_eq!(race(&cluster, write), (ROUNDS, ROUNDS as i32), "{write}");
        }
        assert_eq!(value::<i64>(&mut cluster.client(), "SELECT version FROM t"), ROUNDS as i64 + 1);
        execute(&mut cluster.client(), "DROP TABLE t");
    }
}

/// A row keeps its version when it moves to another partition.
#[test]
fn row_version_continues_across_partitions() {
    let cluster = builder().start_with_extension();
    cluster.execute(
        "CREATE TABLE t (id int, n int, version int) PARTITION BY LIST (n);
         CREATE TABLE t0 PARTITION OF t FOR VALUES IN (0);
         CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);
         CREATE TRIGGER v BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION row_version('version');
         INSERT INTO t VALUES (1, 0, 7);
         UPDATE t SET n = 1, version = 7",
    );
    let mut client = cluster.client();
    assert_eq!(value::<i32>(&mut client, "SELECT version FROM t1"), 8);
    let error = client.simple_query("UPDATE t SET n = 0, version = 7").expect_err("another version");
    assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE));
}
