//! The durable clock on real servers: no id that a client has seen is issued again, over crashes, clock steps and promotions.

mod crash;
mod file;
mod histories;
mod label;
mod recovery;
mod replica;
mod steps;
mod storm;
mod wrong;

use std::time::{SystemTime, UNIX_EPOCH};

use idgen_testkit::sql::{PATIENCE, row, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;

/// A server with a fake clock. Its worker id fits every preset.
fn builder() -> Builder {
    Cluster::builder().conf("idgen.worker_id", "5").fake_clock()
}

/// The value of an SQL expression for a time, in milliseconds since 1970.
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

/// Sets the clock of a server to this time.
fn set_clock(cluster: &Cluster, ms: i64) {
    cluster.clock().set_offset_ms(ms - true_ms());
}

/// Waits until no worker writes the label.
fn wait_for_end_of_worker(server: &Cluster, client: &mut Client) {
    let workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idgen label'";
    server.wait_for(PATIENCE, "the end of the worker", || value::<i64>(client, workers) == 0);
}

/// A checkpoint's time has a resolution of a second. Within that second a first start begins ahead of the clock.
fn wait_until_past_checkpoint(cluster: &Cluster) {
    let mut client = cluster.client();
    let sql = "SELECT clock_timestamp() >= checkpoint_time + interval '1 s' FROM pg_control_checkpoint()";
    cluster.wait_for(PATIENCE, "the clock to be past the last checkpoint", || value(&mut client, sql));
}

/// One id and its lead in milliseconds over the clock, read after the draw.
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

/// Draws `count` ids in one statement and returns those that are not above `ceiling`.
fn draw_not_above(client: &mut Client, layout: &str, count: usize, ceiling: i64) -> Vec<i64> {
    let sql = format!(
        "SELECT count(*), coalesce(array_agg(id) FILTER (WHERE id <= {ceiling}), '{{}}')
         FROM snowflake_next_many({count}, '{layout}') AS id"
    );
    let row = row(client, &sql);
    assert_eq!(row.get::<_, i64>(0), count as i64);
    row.get(1)
}
