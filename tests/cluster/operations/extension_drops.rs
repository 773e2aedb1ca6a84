//! DROP EXTENSION and CREATE EXTENSION while sessions draw, hold locks and leases, and have open cursors.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use idgen_testkit::ids::{assert_distinct, assert_increasing};
use idgen_testkit::sql::{PATIENCE, execute, expect_error, ids, value};
use idgen_testkit::{Builder, Cluster, rounds};
use postgres::{Client, SimpleQueryMessage};

fn builder() -> Builder {
    Cluster::builder().conf("idgen.worker_id", "1").conf("statement_timeout", "1min").conf("deadlock_timeout", "100ms")
}

/// In the order in which readers lock a view and its tables, so that few drops end in a deadlock.
const LOCK: &str =
    "BEGIN; LOCK TABLE idgen.leases, idgen.stat_segment, idgen.lease, idgen.lease_definition, idgen.segment";

/// The first value of the segment of an extension. Segments of a new extension begin at their start again, so this one is
/// above all values that the extension before it can draw, however long that lasts.
fn first_value(round: usize) -> i64 {
    round as i64 * 1_000_000_000_000
}

/// A deadlock with each session that acquires the lease would be certain if this defined the lease too: `lease_define` and
/// the sessions lock its name, and the sessions then wait for the tables.
fn recreate(round: usize) -> String {
    format!(
        "DROP EXTENSION IF EXISTS idgen; CREATE EXTENSION idgen; SELECT segment_create('t', start => {}, step => 20)",
        first_value(round)
    )
}

/// The errors of a session whose objects go away: no function, no table, no segment, no term, a deadlock with the drop, no
/// refill while the drop waits for the session.
const EXPECTED: [&str; 6] = ["42883", "42P01", "42704", "55000", "40P01", "55P03"];

/// True for a function or relation that was found before the drop and is used after it. PostgreSQL reports that of any
/// extension as an internal error.
fn is_lost_in_lookup(error: &postgres::error::DbError) -> bool {
    let messages = ["cache lookup failed for ", "could not open relation with OID "];
    error.code().code() == "XX000" && messages.iter().any(|start| error.message().starts_with(start))
}

/// Runs statements, which may fail as expected. Returns the ids in the first columns of their results.
fn attempt(client: &mut Client, sql: &str) -> Option<Vec<i64>> {
    match client.simple_query(sql) {
        Ok(messages) => Some(messages.iter().filter_map(first_id).collect()),
        Err(error) => {
            let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error:?}")).clone();
            assert!(EXPECTED.contains(&error.code().code()) || is_lost_in_lookup(&error), "{sql}: {error:?}");
            execute(client, "ROLLBACK");
            None
        }
    }
}

fn first_id(message: &SimpleQueryMessage) -> Option<i64> {
    let SimpleQueryMessage::Row(row) = message else { return None };
    row.get(0)?.parse().ok()
}

/// With a definition, the row of the lease stays when it is released.
const DEFINE: &str = "SELECT lease_define('job', 2)";

/// Statements that the sessions repeat during the drops. The test collects the ids in their first columns.
const WORK: [&str; 8] = [
    "SELECT snowflake_next_many(20)",
    "SELECT segment_next_many('t', 30)",
    "SELECT segment_next('t') FROM generate_series(1, 5)",
    "BEGIN; DECLARE c CURSOR FOR SELECT snowflake_next_many(1000); FETCH 10 FROM c; FETCH 10 FROM c; COMMIT",
    "BEGIN; DECLARE c CURSOR FOR SELECT segment_next_many('t', 50); FETCH 10 FROM c; FETCH 10 FROM c; COMMIT",
    "BEGIN; SELECT lock_acquire_xact('a'), lock_acquire('b'); SELECT '' FROM idgen.locks; SELECT lock_release('b'); COMMIT",
    "BEGIN; SELECT lease_renew('job', token), lease_release('job', token) FROM lease_acquire('job', ttl => '1 s'); COMMIT",
    "SELECT '' FROM idgen.leases, idgen.stat_segment, idgen.stat_snowflake, idgen.status()",
];

#[test]
fn drops_of_the_extension_under_load_break_nothing_smoke() {
    let cluster = builder().conf("idgen.segment_timeout", "1s").start();
    cluster.execute(&recreate(1));
    cluster.execute(DEFINE);
    let is_over = AtomicBool::new(false);
    let succeeded = [const { AtomicUsize::new(0) }; WORK.len()];
    let mut seen: Vec<i64> = std::thread::scope(|scope| {
        let work = WORK.iter().zip(&succeeded).map(|(sql, succeeded)| {
            let (cluster, is_over) = (&cluster, &is_over);
            scope.spawn(move || {
                let mut client = cluster.client();
                let mut seen = Vec::new();
                while !is_over.load(Relaxed) {
                    if let Some(ids) = attempt(&mut client, sql) {
                        succeeded.fetch_add(1, Relaxed);
                        seen.extend(ids);
                    }
                }
                seen
            })
        });
        let work: Vec<_> = work.collect();
        let mut dropper = cluster.client();
        let mut round = 2;
        while round < rounds(4, 200) {
            let before = succeeded.each_ref().map(|count| count.load(Relaxed));
            if attempt(&mut dropper, &format!("{LOCK}; {}; COMMIT", recreate(round))).is_some() {
                execute(&mut dropper, DEFINE);
                round += 1;
                // Each kind of work succeeds under each extension.
                cluster.wait_for(PATIENCE, "all sessions to work", || {
                    work.iter().any(|thread| thread.is_finished())
                        || succeeded.iter().zip(before).all(|(now, before)| now.load(Relaxed) > before)
                });
            }
        }
        is_over.store(true, Relaxed);
        work.into_iter().flat_map(|thread| thread.join().expect("the session worked")).collect()
    });
    assert!(!cluster.log().contains("server process"), "a process crashed");

    // The sessions have ended, and no lock, lease or ring of the dropped extensions is left over.
    let mut client = cluster.client();
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    cluster.wait_for(PATIENCE, "the sessions' locks to go", || value::<i64>(&mut client, locks) == 0);
    seen.extend(ids(&mut client, "SELECT snowflake_next_many(20)"));
    seen.extend(ids(&mut client, "SELECT segment_next_many('t', 20)"));
    assert_distinct(seen);
}

/// DROP EXTENSION drops the table without its triggers. Its rings are taken by other tags.
#[test]
fn more_extensions_than_rings_are_dropped_and_created() {
    let cluster = builder().conf("idgen.max_segments", "16").start();
    let mut client = cluster.client();
    let (mut seen, mut snowflakes) = (Vec::new(), Vec::new());
    execute(&mut client, "CREATE EXTENSION idgen; SELECT segment_create('t', step => 10)");
    execute(&mut client, "CREATE DATABASE other");
    let mut other = cluster.client_in("other");
    execute(&mut other, "CREATE EXTENSION idgen; SELECT segment_create('kept', step => 10)");
    let mut kept = Vec::new();
    for round in 1..=40 {
        execute(&mut client, &recreate(round));
        seen.extend(ids(&mut client, "SELECT segment_next_many('t', 5)"));
        snowflakes.extend(ids(&mut client, "SELECT snowflake_next_many(5)"));
        // A living tag of another database keeps its ring, so its values have no gap.
        kept.extend(ids(&mut other, "SELECT segment_next('kept')"));
    }
    assert_increasing(&seen);
    assert_increasing(&snowflakes);
    assert_eq!(kept, (1..=40).collect::<Vec<i64>>());
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.stat_segment"), 1);
}

/// A cursor finds its function by OID. One over snowflake ids goes on, also after a drop: it needs no table. One over segments
/// fails then.
#[test]
fn cursors_that_are_open_over_a_drop_repeat_nothing() {
    let cluster = builder().start();
    let (mut client, mut dba) = (cluster.client(), cluster.client());
    execute(&mut dba, &recreate(1));
    execute(
        &mut client,
        "BEGIN;
         DECLARE ids CURSOR FOR SELECT snowflake_next_many(100);
         DECLARE more CURSOR FOR SELECT snowflake_next() FROM generate_series(1, 100);
         DECLARE numbers CURSOR FOR SELECT segment_next_many('t', 50);
         DECLARE single CURSOR FOR SELECT segment_next('t') FROM generate_series(1, 100)",
    );
    let mut seen = Vec::new();
    let mut fetch = |client: &mut Client| {
        seen.extend(ids(client, "FETCH 10 FROM ids"));
        seen.extend(ids(client, "FETCH 10 FROM more"));
    };
    fetch(&mut client);
    execute(&mut dba, "DROP EXTENSION idgen");
    fetch(&mut client);
    execute(&mut client, "SAVEPOINT s");
    expect_error(&mut client, "FETCH 10 FROM numbers", "42P01");
    execute(&mut client, "ROLLBACK TO s");
    execute(&mut dba, &recreate(2));
    fetch(&mut client);
    let numbers = ids(&mut client, "FETCH 10 FROM single");
    assert_eq!((numbers[0], numbers.len()), (first_value(2), 10));
    execute(&mut client, "COMMIT");
    seen.extend(ids(&mut client, "SELECT snowflake_next_many(50)"));
    assert_eq!(assert_distinct(seen).len(), 110);
    assert!(value::<i64>(&mut client, "SELECT segment_next('t')") > numbers[9]);
}

/// As for any table, also if a cursor has read it. A transaction that has drawn ids locks nothing.
#[test]
fn drop_waits_for_transactions_that_use_tables_and_views() {
    let cluster = builder().start();
    let (mut client, mut dba) = (cluster.client(), cluster.client());
    execute(&mut dba, &recreate(1));
    for query in [
        "SELECT * FROM idgen.locks",
        "SELECT * FROM idgen.leases",
        "SELECT * FROM idgen.stat_segment",
        "SELECT * FROM idgen.stat_snowflake",
        "SELECT segment_next_many('t', 9)",
        "SELECT * FROM lease_acquire('job')",
    ] {
        execute(&mut client, &format!("BEGIN; DECLARE c CURSOR FOR {query}; FETCH 1 FROM c"));
        expect_error(&mut dba, "SET lock_timeout = '10ms'; DROP EXTENSION idgen", "55P03");
        execute(&mut client, "FETCH ALL FROM c; COMMIT");
    }
    execute(&mut client, "BEGIN; SELECT snowflake_next(), lock_acquire_xact('a')");
    execute(&mut dba, "SET lock_timeout = 0; DROP EXTENSION idgen");
}
