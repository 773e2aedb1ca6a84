//! The durable clock on real servers: what clients have seen never comes again, whatever crashes, steps or is promoted.

mod crash;
mod recovery;
mod steps;

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idgen_cluster_tests::{Builder, Cluster};
use postgres::types::FromSqlOwned;
use postgres::{Client, Row};

/// How long anything may take that a test waits for.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with a clock that can be stepped. Its number fits every preset.
fn builder() -> Builder {
    Cluster::builder().conf("idgen.worker_id", "5").fake_clock()
}

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

fn execute(client: &mut Client, sql: &str) {
    client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

fn backend_pid(client: &mut Client) -> i32 {
    value(client, "SELECT pg_backend_pid()")
}

/// A time that a query says, in milliseconds since 1970.
fn ms(client: &mut Client, time: &str) -> i64 {
    value(client, &format!("SELECT floor(extract(epoch FROM {time}) * 1000)::bigint"))
}

/// The beginning of an id's tick.
fn time_of(client: &mut Client, id: i64, layout: &str) -> i64 {
    ms(client, &format!("snowflake_time({id}, '{layout}')"))
}

fn true_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970");
    i64::try_from(now.as_millis()).expect("a time fits")
}

/// Sets the clock of a server to show this time now.
fn set_clock(cluster: &Cluster, ms: i64) {
    cluster.clock().set_offset_ms(ms - true_ms());
}

/// The time of a checkpoint counts to the second: within that second a first start begins ahead of the clock.
fn await_clock_past_checkpoint(cluster: &Cluster) {
    let mut client = cluster.client();
    let sql = "SELECT clock_timestamp() >= checkpoint_time + interval '1 s' FROM pg_control_checkpoint()";
    cluster.wait_for(PATIENCE, "the clock to be past the last checkpoint", || value(&mut client, sql));
}

/// One id, and the milliseconds that it is ahead of the clock as read after it was drawn.
struct Drawn {
    id: i64,
    time_ms: i64,
    clock_ms: f64,
    lead_ms: f64,
}

fn draw_one(client: &mut Client, layout: &str) -> Drawn {
    let sql = format!(
        "SELECT id, (extract(epoch FROM snowflake_time(id, '{layout}')) * 1000)::bigint,
                (extract(epoch FROM clock) * 1000)::float8,
                (extract(epoch FROM snowflake_time(id, '{layout}') - clock) * 1000)::float8
         FROM (SELECT id, clock_timestamp() AS clock
               FROM (SELECT snowflake_next('{layout}') AS id OFFSET 0) AS drawn OFFSET 0) AS timed"
    );
    let row = row(client, &sql);
    Drawn { id: row.get(0), time_ms: row.get(1), clock_ms: row.get(2), lead_ms: row.get(3) }
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

/// How many of the new ids were seen before.
fn repeated(seen: &[i64], new: &[i64]) -> usize {
    let seen: HashSet<i64> = seen.iter().copied().collect();
    new.iter().filter(|id| seen.contains(id)).count()
}

fn last(ids: &[i64]) -> i64 {
    *ids.last().expect("ids were drawn")
}
