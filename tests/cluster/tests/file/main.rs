//! The high-water file on real servers: faults while it is written, damage while it lies there, what it says and when,
//! and what a DBA can tell it.

mod damage;
mod faults;
mod marks;
mod observe;
mod shim;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use idgen_cluster_tests::{Builder, Cluster};
use idgen_core::clock::record::{Found, Record};
use postgres::Client;
use postgres::error::DbError;
use postgres::types::FromSqlOwned;

/// How long anything may take that a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);

const NEXT: &str = "SELECT snowflake_next()";

/// A server with the extension in database postgres.
fn start(builder: Builder) -> Cluster {
    let cluster = builder.conf("idgen.worker_id", "5").start();
    cluster.execute("CREATE EXTENSION idgen");
    cluster
}

/// The one value that a query returns.
fn value<T: FromSqlOwned>(client: &mut Client, sql: &str) -> T {
    client.query_one(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}")).get(0)
}

/// The first column of what a query returns.
fn ids(client: &mut Client, sql: &str) -> Vec<i64> {
    let rows = client.query(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

fn next(client: &mut Client) -> i64 {
    value(client, NEXT)
}

/// The error that a statement must end with, when its SQLSTATE is this one.
fn refused(client: &mut Client, sql: &str, code: &str) -> DbError {
    let error = client.simple_query(sql).expect_err(sql);
    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error:?}")).clone();
    assert_eq!(error.code().code(), code, "{sql}: {error:?}");
    error
}

/// Every way to generate ends with this error, which names the file and says what to do.
fn assert_no_generation(client: &mut Client, code: &str) -> DbError {
    let new_layout = "SELECT snowflake_next('time:41 tag:4=3 sequence:12 epoch:2020-01-01')";
    for sql in ["SELECT count(*) FROM snowflake_next_many(3)", new_layout] {
        refused(client, sql, code);
    }
    let error = refused(client, NEXT, code);
    assert_names_file_and_way_out(&error);
    error
}

fn assert_names_file_and_way_out(error: &DbError) {
    assert!(error.message().contains("\"idgen/clock\""), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("\"idgen\"")), "{error:?}");
}

/// Reading ids works, whatever the file is like.
fn assert_decoding_works(client: &mut Client) {
    let ts = "SELECT snowflake_time(snowflake_make('2026-01-02 03:04:05.678Z', 5, 3)) = '2026-01-02 03:04:05.678Z'";
    assert!(value::<bool>(client, ts));
    assert!(value::<bool>(client, "SELECT idgen.status() ? 'checks'"));
    assert_eq!(value::<i64>(client, "SELECT count(*) FROM idgen.stat_clock"), 1);
}

/// What one check of `idgen.status()` says.
fn check(client: &mut Client, name: &str) -> (bool, String) {
    let checks = "jsonb_array_elements(idgen.status()->'checks') AS c";
    let sql = format!("SELECT (c->>'ok')::bool, c->>'message' FROM {checks} WHERE c->>'check' = '{name}'");
    let row = client.query_one(&sql, &[]).unwrap();
    (row.get(0), row.get(1))
}

fn backend_pid(client: &mut Client) -> i32 {
    value(client, "SELECT pg_backend_pid()")
}

fn clock_ms(client: &mut Client) -> i64 {
    value(client, "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")
}

/// The time of an id of the default layout, by arithmetic of the test's own.
fn time_ms(id: i64) -> i64 {
    (id >> 22) + 1_288_834_974_657
}

fn assert_increasing(ids: &[i64]) {
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] >= pair[1]) {
        panic!("{} after {} in {} ids", pair[1], pair[0], ids.len());
    }
}

fn assert_no_repeats(before: &[i64], after: &[i64]) {
    let seen: BTreeSet<i64> = before.iter().copied().collect();
    if let Some(id) = after.iter().find(|id| seen.contains(id)) {
        panic!("{id} was issued twice, in {} ids and {} later ones", before.len(), after.len());
    }
}

/// All of the new ids are after all of the old ones.
fn assert_after(before: &[i64], after: &[i64]) {
    let (last, first) = (before.iter().max().unwrap(), after.iter().min().unwrap());
    assert!(first > last, "{first} was issued after {last}");
}

fn directory(cluster: &Cluster) -> PathBuf {
    cluster.data_dir().join("idgen")
}

fn file(cluster: &Cluster) -> PathBuf {
    directory(cluster).join("clock")
}

fn bytes(cluster: &Cluster) -> Vec<u8> {
    std::fs::read(file(cluster)).expect("there is a high-water file")
}

fn on_file(cluster: &Cluster) -> Found {
    Record::newest(&bytes(cluster)).expect("the high-water file has a record")
}

fn mark_ms(cluster: &Cluster) -> i64 {
    on_file(cluster).record.mark_ms
}

/// Draws until the clock has passed this.
fn draw_until(cluster: &Cluster, client: &mut Client, until_ms: i64) -> Vec<i64> {
    let mut drawn = Vec::new();
    cluster.wait_for(PATIENCE, "the clock", || {
        drawn.extend(ids(client, "SELECT snowflake_next() FROM generate_series(1, 5)"));
        clock_ms(client) >= until_ms
    });
    assert_increasing(&drawn);
    drawn
}
