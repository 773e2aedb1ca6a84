//! Snowflake ids on real servers: what holds over sessions, databases, waits, limits, roles and crashes.

mod call_sites;
mod crash;
mod generators;
mod limits;
mod modes;
mod roles;
mod sets;
mod unique;
mod waits;

use std::time::Duration;

use idgen_cluster_tests::{Builder, Cluster};
use postgres::error::DbError;
use postgres::types::FromSqlOwned;
use postgres::{Client, Row};

/// How long anything may take that a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with the extension in database postgres.
fn start(builder: Builder) -> Cluster {
    let cluster = builder.start();
    cluster.execute("CREATE EXTENSION idgen");
    cluster
}

fn row(client: &mut Client, sql: &str) -> Row {
    client.query_one(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}

/// The one value that a query returns.
fn value<T: FromSqlOwned>(client: &mut Client, sql: &str) -> T {
    row(client, sql).get(0)
}

/// The first column of what a query returns.
fn ids(client: &mut Client, sql: &str) -> Vec<i64> {
    let rows = client.query(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

fn execute(client: &mut Client, sql: &str) {
    client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// The error that a statement must end with.
fn refusal(client: &mut Client, sql: &str) -> DbError {
    let error = client.simple_query(sql).expect_err(sql);
    error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error:?}")).clone()
}

/// The error, when its SQLSTATE is this one.
fn refused(client: &mut Client, sql: &str, code: &str) -> DbError {
    let error = refusal(client, sql);
    assert_eq!(error.code().code(), code, "{sql}: {error:?}");
    error
}

fn hint(error: &DbError) -> &str {
    error.hint().unwrap_or_else(|| panic!("a HINT in {error:?}"))
}

fn backend_pid(client: &mut Client) -> i32 {
    value(client, "SELECT pg_backend_pid()")
}

fn assert_increasing(ids: &[i64]) {
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] >= pair[1]) {
        panic!("{} after {} in {} ids", pair[1], pair[0], ids.len());
    }
}

/// No value twice; returns them in order.
fn assert_distinct(mut ids: Vec<i64>) -> Vec<i64> {
    ids.sort_unstable();
    if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
        panic!("{} twice in {} ids", pair[0], ids.len());
    }
    ids
}
