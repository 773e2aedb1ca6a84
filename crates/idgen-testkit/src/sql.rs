//! Statements and their results. Every function panics with the statement if it fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postgres::error::{DbError, SqlState};
use postgres::fallible_iterator::FallibleIterator;
use postgres::types::FromSqlOwned;
use postgres::{Client, Row, ToStatement};

use crate::cluster::Cluster;

/// The limit for everything that a test waits for.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The one row that a query returns.
pub fn row(client: &mut Client, sql: &str) -> Row {
    client.query_one(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}

/// The one value that a query returns.
pub fn value<T: FromSqlOwned>(client: &mut Client, sql: &str) -> T {
    row(client, sql).get(0)
}

/// How many statements a call executes inside. `None` on a server that was built without contrib, and so lacks auto_explain.
pub fn inner_statements(cluster: &Cluster, client: &mut Client, call: &str) -> Option<usize> {
    if let Err(error) = client.batch_execute("LOAD 'auto_explain'") {
        let version = value::<String>(client, "SHOW server_version_num");
        assert!(version.as_str() > "16" && error.code() == Some(&SqlState::UNDEFINED_FILE), "{error}");
        return None;
    }
    execute(client, "SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on");
    let before = cluster.log().len();
    execute(client, call);
    execute(client, "RESET auto_explain.log_min_duration");
    // Without the call itself.
    Some(cluster.log()[before..].matches("Query Text: ").count() - 1)
}

/// The first column of what a query returns.
pub fn column<T: FromSqlOwned>(client: &mut Client, sql: &str) -> Vec<T> {
    let rows = client.query(sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.iter().map(|row| row.get(0)).collect()
}

/// The ids in the first column of what a query returns.
pub fn ids(client: &mut Client, sql: &str) -> Vec<i64> {
    column(client, sql)
}

/// Reads the rows of a statement until the statement or the connection ends. `seen` has the rows in either case.
pub fn stream(
    client: &mut Client,
    sql: &(impl ToStatement + ?Sized),
    seen: &mut Vec<i64>,
    count: &AtomicUsize,
) -> Result<(), postgres::Error> {
    let mut rows = client.query_raw(sql, std::iter::empty::<i32>())?;
    while let Some(row) = rows.next()? {
        seen.push(row.get(0));
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs statements in a session.
pub fn execute(client: &mut Client, sql: &str) {
    client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// Runs a statement that must fail with this SQLSTATE.
///
/// The server sends an error before it rolls back. The empty statement waits until the locks of the transaction are
/// released. It fails only if the error ended the session.
pub fn expect_error(client: &mut Client, sql: &str, code: &str) -> DbError {
    let error = client.simple_query(sql).expect_err(sql);
    let _ = client.simple_query("");
    let error = error.as_db_error().unwrap_or_else(|| panic!("{sql}: {error:?}")).clone();
    assert_eq!(error.code().code(), code, "{sql}: {error:?}");
    error
}

/// The HINT of an error, which must have one.
pub fn hint(error: &DbError) -> &str {
    error.hint().unwrap_or_else(|| panic!("a HINT in {error:?}"))
}

/// How many rows of a table of the extension a session reads, in the table and in its indexes. For PostgreSQL 15 and later,
/// and without other sessions.
pub fn rows_read<R>(client: &mut Client, table: &str, run: impl FnOnce(&mut Client) -> R) -> (R, i64) {
    let sum = format!(
        "SELECT sum(read)::bigint
         FROM (SELECT relid, seq_tup_read AS read FROM pg_stat_all_tables
               UNION ALL SELECT relid, idx_tup_read FROM pg_stat_all_indexes) AS of_table
         WHERE relid = 'idgen.{table}'::regclass"
    );
    let total = |client: &mut Client| {
        execute(client, "SELECT pg_stat_force_next_flush()");
        value::<i64>(client, &sum)
    };
    let before = total(client);
    let result = run(client);
    (result, total(client) - before)
}

pub fn backend_pid(client: &mut Client) -> i32 {
    value(client, "SELECT pg_backend_pid()")
}

/// A row of `idgen.checks`: whether it is ok, and its message, with what to do if it fails.
pub fn check(client: &mut Client, name: &str) -> (bool, String) {
    let text = "concat_ws('. ', message, action)";
    let row = row(client, &format!("SELECT ok, {text} FROM idgen.checks WHERE \"check\" = '{name}'"));
    (row.get(0), row.get(1))
}

/// Waits until a session that draws ids waits for the clock, the mark, a refill, or a lock that a refill meets.
pub fn wait_until_waiting(cluster: &Cluster, pid: i32) {
    let mut client = cluster.client();
    let waiting = "state = 'active' AND wait_event_type IN ('Extension', 'Lock') AND query ~ 'snowflake_next|segment_'";
    let sql = format!("SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {pid} AND {waiting}");
    cluster.wait_for(PATIENCE, "the session to wait", || value(&mut client, &sql));
}

/// Runs `waits` in a session, and `act` with the session's process id once it waits: for a lock, a standby, or in idgen.
/// Returns what `waits` returns. Panics if the session ends without a wait.
pub fn while_waiting<T: Send>(
    cluster: &Cluster,
    client: &mut Client,
    waits: impl FnOnce(&mut Client) -> T + Send,
    act: impl FnOnce(i32),
) -> T {
    let pid = backend_pid(client);
    let waiting = "state = 'active' AND wait_event_type IN ('Extension', 'IPC', 'Lock')";
    std::thread::scope(|scope| {
        let session = scope.spawn(|| waits(client));
        let mut observer = cluster.client();
        let is_waiting = format!("SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {pid} AND {waiting}");
        let has_begun = || session.is_finished() || value(&mut observer, &is_waiting);
        cluster.wait_for(PATIENCE, "the session to wait", has_begun);
        assert!(!session.is_finished(), "the session has not waited");
        act(pid);
        session.join().expect("the session's thread does not panic")
    })
}

/// Waits until a session waits for a `wait_event` such as `SyncRep`, or a `wait_event_type` such as `Extension`.
pub fn wait_for_event(cluster: &Cluster, pid: i32, event: &str) {
    let mut client = cluster.client();
    let sql = format!(
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {pid} AND '{event}' IN (wait_event, wait_event_type)"
    );
    cluster.wait_for(PATIENCE, &format!("session {pid} to wait for {event}"), || value(&mut client, &sql));
}

/// Waits until there is one row of `rows`, which follows FROM.
pub fn wait_for_one(cluster: &Cluster, what: &str, rows: &str) {
    let mut client = cluster.client();
    let sql = format!("SELECT count(*) = 1 FROM {rows}");
    cluster.wait_for(PATIENCE, what, || value(&mut client, &sql));
}

/// A session of the superuser in a new database with the extension.
pub fn in_new_database(cluster: &Cluster, name: &str) -> Client {
    cluster.execute(&format!("CREATE DATABASE {name}"));
    let mut client = cluster.client_in(name);
    execute(&mut client, "CREATE EXTENSION idgen");
    client
}
