//! The high-water file on real servers: write faults, damage, its contents over time, and snowflake_observe().

mod damage;
mod faults;
mod marks;
mod observe;
mod records;
mod shim;
mod slow_sync;

use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::{PATIENCE, expect_error, ids, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;
use postgres::error::DbError;

const NEXT: &str = "SELECT snowflake_next()";

/// A server with the extension in the database postgres.
fn start(builder: Builder) -> Cluster {
    builder.conf("idgen.worker_id", "5").start_with_extension()
}

fn next(client: &mut Client) -> i64 {
    value(client, NEXT)
}

/// Every call that generates fails with this error, which names the file and the remedy.
fn assert_no_generation(client: &mut Client, code: &str) -> DbError {
    let new_layout = "SELECT snowflake_next('time:41 tag:4=3 sequence:12 epoch:2020-01-01')";
    for sql in ["SELECT count(*) FROM snowflake_next_many(3)", new_layout] {
        expect_error(client, sql, code);
    }
    let error = expect_error(client, NEXT, code);
    assert_names_file_and_remedy(&error);
    error
}

fn assert_names_file_and_remedy(error: &DbError) {
    assert!(error.message().contains("\"idgen/clock\""), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("\"idgen\"")), "{error:?}");
}

/// Decoding and views work, whatever the state of the file.
fn assert_decoding_works(client: &mut Client) {
    let ts = "SELECT snowflake_time(snowflake_make('2026-01-02 03:04:05.678Z', 5, 3)) = '2026-01-02 03:04:05.678Z'";
    assert!(value::<bool>(client, ts));
    assert!(value::<bool>(client, "SELECT idgen.status() ? 'checks'"));
    assert_eq!(value::<i64>(client, "SELECT count(*) FROM idgen.stat_clock"), 1);
}

fn clock_ms(client: &mut Client) -> i64 {
    value(client, "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint")
}

/// The time of an id of the default layout, computed without idgen.
fn time_ms(id: i64) -> i64 {
    (id >> 22) + 1_288_834_974_657
}

/// Draws until the call fails with this SQLSTATE.
fn draw_until_refused(cluster: &Cluster, client: &mut Client, code: &str) -> (Vec<i64>, DbError) {
    let mut drawn = Vec::new();
    let mut refusal = None;
    cluster.wait_for(PATIENCE, "an error", || {
        for _ in 0..10 {
            match client.query_one(NEXT, &[]) {
                Ok(row) => drawn.push(row.get(0)),
                Err(error) => {
                    refusal = Some(error.as_db_error().expect("the server's error").clone());
                    return true;
                }
            }
        }
        false
    });
    let error = refusal.unwrap();
    assert_eq!(error.code().code(), code, "{error:?}");
    assert_increasing(&drawn);
    (drawn, error)
}

fn last_time_ms(ids: &[i64]) -> i64 {
    time_ms(*ids.iter().max().expect("ids were drawn"))
}

/// All new ids are above all old ones.
fn assert_after(before: &[i64], after: &[i64]) {
    let (last, first) = (before.iter().max().unwrap(), after.iter().min().unwrap());
    assert!(first > last, "{first} was issued after {last}");
}

/// Draws until the clock is past this time.
fn draw_until(cluster: &Cluster, client: &mut Client, until_ms: i64) -> Vec<i64> {
    let mut drawn = Vec::new();
    cluster.wait_for(PATIENCE, "the clock", || {
        drawn.extend(ids(client, "SELECT snowflake_next() FROM generate_series(1, 5)"));
        clock_ms(client) >= until_ms
    });
    assert_increasing(&drawn);
    drawn
}
