//! COPY into tables whose defaults draw ids: in batches, and right without them. tests/pg_regress has what does not change.

use std::thread;

use idgen_testkit::Cluster;
use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::sql::{PATIENCE, column, execute, ids, value};
use postgres::Client;

/// Every draw of one id, with its type.
const DRAWS: [(&str, &str); 6] = [
    ("bigint", "snowflake_next()"),
    ("bigint", "snowflake_next('js53')"),
    ("bigint", "snowflake_next(lower('JS53'))"),
    ("bigint", "segment_next('copied')"),
    ("uuid", "uuidv7_next()"),
    ("uuid", "uuidv7_next(node => true)"),
];

/// Bytes of WAL that a COPY of lines writes.
fn wal_of(client: &mut Client, copy: &str) -> i64 {
    let place = "SELECT pg_current_wal_insert_lsn()::text";
    let before: String = value(client, place);
    execute(client, copy);
    value(client, &format!("SELECT (pg_current_wal_insert_lsn() - '{before}')::bigint"))
}

/// Fails if PostgreSQL no longer writes batches: then it no longer does what src/pg/copy_batches.rs knows of it.
#[test]
fn copy_with_a_default_that_draws_writes_as_much_wal_as_with_ids_in_the_file_smoke() {
    // No worker writes in between.
    let cluster = Cluster::builder().conf("autovacuum", "off").conf("checkpoint_timeout", "1h").start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, "SELECT segment_create('copied')");
    let file = cluster.data_dir().join("ids");
    let file = file.display();
    for (column_type, draw) in DRAWS {
        execute(
            &mut client,
            &format!(
                "CREATE TABLE drawn (id {column_type} DEFAULT {draw}, item text);
                 CREATE TABLE given (LIKE drawn);
                 CREATE TABLE one_by_one (LIKE drawn INCLUDING DEFAULTS, other float8 DEFAULT random());"
            ),
        );
        let program = "FROM PROGRAM 'seq 20000'";
        let drawn = wal_of(&mut client, &format!("COPY drawn (item) {program}"));
        execute(&mut client, &format!("COPY drawn TO '{file}'"));
        let given = wal_of(&mut client, &format!("COPY given FROM '{file}'"));
        let one_by_one = wal_of(&mut client, &format!("COPY one_by_one (item) {program}"));
        assert!(drawn * 100 <= given * 102, "{draw}: {drawn} bytes, and {given} with ids in the file");
        assert!(drawn * 100 <= one_by_one * 80, "{draw}: {drawn} bytes, and {one_by_one} row by row");
        let in_order = column::<String>(&mut client, "SELECT id::text FROM drawn ORDER BY item::int");
        assert_eq!(in_order.len(), 20000);
        if column_type == "bigint" {
            assert_increasing(&in_order.iter().map(|id| id.parse::<i64>().expect("an id")).collect::<Vec<_>>());
        } else {
            assert_increasing(&in_order);
        }
        execute(&mut client, "DROP TABLE drawn, given, one_by_one");
    }
}

/// Into partitions by the id, and into several buffers of COPY.
#[test]
fn copies_of_several_sessions_draw_distinct_ids_in_the_order_of_their_rows() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = cluster.client();
    execute(
        &mut client,
        "SELECT segment_create('ticket', step => 50);
         CREATE TABLE orders (session int, n int, id bigint DEFAULT snowflake_next(), ticket bigint DEFAULT segment_next('ticket'))
         PARTITION BY RANGE (ticket);
         CREATE TABLE orders_first PARTITION OF orders FOR VALUES FROM (0) TO (5000);
         CREATE TABLE orders_rest PARTITION OF orders DEFAULT",
    );
    thread::scope(|scope| {
        for session in 0..4 {
            let mut client = cluster.client();
            let program = format!("seq 5000 | sed \"s/^/{session},/\"");
            let copy = format!("COPY orders (session, n) FROM PROGRAM '{program}' (DELIMITER ',')");
            scope.spawn(move || execute(&mut client, &copy));
        }
    });
    for id in ["id", "ticket"] {
        for session in 0..4 {
            let of_session = format!("SELECT {id} FROM orders WHERE session = {session} ORDER BY n");
            assert_increasing(&ids(&mut client, &of_session));
        }
        assert_eq!(assert_distinct(ids(&mut client, &format!("SELECT {id} FROM orders"))).len(), 20000);
    }
}

#[test]
fn dump_has_the_draw_as_it_was_written() {
    let cluster = Cluster::builder().start_with_extension();
    cluster.execute("CREATE TABLE orders (id bigint DEFAULT snowflake_next(), u uuid DEFAULT uuidv7_next(true))");
    cluster.execute("COPY orders FROM PROGRAM 'true'; COPY orders (id) FROM PROGRAM 'echo 1'");
    let dumped = cluster.program("pg_dump").output().expect("pg_dump runs");
    let text = String::from_utf8(dumped.stdout).expect("a dump");
    assert!(text.contains("id bigint DEFAULT public.snowflake_next(),"), "{text}");
    assert!(text.contains("u uuid DEFAULT public.uuidv7_next(true)"), "{text}");
    assert!(!text.contains("allow_copy_batches"), "{text}");
}

/// The subscriber draws for a column that the publisher lacks: in the first copy of the table, and for later rows.
#[test]
fn subscriber_draws_ids_that_the_publisher_lacks() {
    let cluster = Cluster::builder().conf("wal_level", "logical").start_with_extension();
    cluster.execute("CREATE DATABASE target");
    let (mut source, mut target) = (cluster.client(), cluster.client_in("target"));
    execute(
        &mut source,
        "CREATE TABLE t (n int PRIMARY KEY);
         INSERT INTO t SELECT generate_series(1, 2000);
         CREATE PUBLICATION p FOR TABLE t",
    );
    execute(&mut source, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
    execute(
        &mut target,
        "CREATE EXTENSION idgen;
         CREATE TABLE t (n int PRIMARY KEY, id bigint NOT NULL DEFAULT snowflake_next())",
    );
    let (connection, with) = (cluster.conninfo(), "WITH (create_slot = false, slot_name = 's')");
    execute(&mut target, &format!("CREATE SUBSCRIPTION s CONNECTION $${connection}$$ PUBLICATION p {with}"));
    let count = |n: i64| format!("SELECT count(*) = {n} FROM t");
    cluster.wait_for(PATIENCE, "the first copy", || value(&mut target, &count(2000)));
    execute(&mut source, "INSERT INTO t SELECT generate_series(2001, 2010)");
    cluster.wait_for(PATIENCE, "later rows", || value(&mut target, &count(2010)));
    assert_distinct(ids(&mut target, "SELECT id FROM t"));
    assert_increasing(&ids(&mut target, "SELECT id FROM t WHERE n <= 2000 ORDER BY n"));
    execute(
        &mut target,
        "ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s",
    );
}
