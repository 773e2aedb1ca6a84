//! The life of segments on real servers: tags that change, go and come back, the worker that refills them, who may draw,
//! and the transactions that draw.

mod access;
mod databases;
mod dump;
mod modes;
mod private;
mod stale;
mod worker;

use idgen_cluster_tests::sql::{PATIENCE, column, execute, value};
use idgen_cluster_tests::{Builder, Cluster};
use postgres::Client;
use postgres::error::DbError;

fn start(builder: Builder) -> Cluster {
    builder.start_with_extension()
}

fn create(client: &mut Client, tag: &str, settings: &str) {
    execute(client, &format!("SELECT segment_create('{tag}'{settings})"));
}

fn draw(tag: &str) -> String {
    format!("SELECT segment_next('{tag}')")
}

fn next(client: &mut Client, tag: &str) -> i64 {
    value(client, &draw(tag))
}

/// Draws until that is refused: what came, and the error.
fn draw_until_refused(client: &mut Client, tag: &str) -> (Vec<i64>, DbError) {
    let mut drawn = Vec::new();
    loop {
        match client.query_one(&draw(tag), &[]) {
            Ok(row) => drawn.push(row.get(0)),
            Err(error) => return (drawn, error.as_db_error().unwrap_or_else(|| panic!("{error:?}")).clone()),
        }
    }
}

/// The row of a tag, as the table has it.
fn max_id(client: &mut Client, tag: &str) -> i64 {
    value(client, &format!("SELECT max_id FROM idgen.segment WHERE tag = '{tag}'"))
}

/// The refill workers of a database; there is never more than one.
fn workers(client: &mut Client, database: &str) -> Vec<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idgen refill' AND datname";
    let pids = column(client, &format!("{sql} = '{database}'"));
    assert!(pids.len() <= 1, "{pids:?} refill {database}");
    pids
}

/// Waits until the worker of a database has come, and says which process it is.
fn await_worker(cluster: &Cluster, database: &str) -> i32 {
    let mut client = cluster.client();
    let mut found = Vec::new();
    cluster.wait_for(PATIENCE, "a refill worker", || {
        found = workers(&mut client, database);
        !found.is_empty()
    });
    found[0]
}

/// Waits until the refill worker has ended, and its place is free: the postmaster frees that after it has buried the
/// process, and before it lets anybody else connect.
fn await_no_worker(cluster: &Cluster, database: &str) {
    let mut client = cluster.client();
    let mut seen = Vec::new();
    cluster.wait_for(PATIENCE, "the end of the refill worker", || {
        let now = workers(&mut client, database);
        seen.extend(&now);
        now.is_empty()
    });
    let is_buried = |pid: &i32| !std::fs::exists(format!("/proc/{pid}")).unwrap_or(true);
    cluster.wait_for(PATIENCE, "the postmaster to bury the refill worker", || seen.iter().all(is_buried));
    drop(cluster.client());
}

/// Waits until a session waits for a refill.
fn await_dry(cluster: &Cluster, pid: i32) {
    let mut client = cluster.client();
    let sql = format!(
        "SELECT count(*) = 1 FROM pg_stat_activity
         WHERE pid = {pid} AND state = 'active' AND wait_event_type = 'Extension' AND query LIKE '%segment_next%'"
    );
    cluster.wait_for(PATIENCE, "the session to wait for a refill", || value(&mut client, &sql));
}

/// The superuser's session in a new database with the extension.
fn in_new_database(cluster: &Cluster, name: &str) -> Client {
    cluster.execute(&format!("CREATE DATABASE {name}"));
    let mut client = cluster.client_in(name);
    execute(&mut client, "CREATE EXTENSION idgen");
    client
}
