//! Segment ids on real servers: one after the other while nothing crashes, and none twice whatever does; tags that change,
//! go and come back; the worker that refills them; who may draw; and the transactions that draw.

mod access;
mod crash;
mod databases;
mod durable;
mod exact;
mod failover;
mod held;
mod modes;
mod private;
mod refill;
mod stale;
mod two_servers;
mod waits;
mod worker;

use idgen_testkit::segment::{create, draw};
use idgen_testkit::sql::{execute, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;
use postgres::error::{DbError, SqlState};

/// A server with the tag t, whose step stays as it is.
fn with_segment(builder: Builder, step: i64) -> Cluster {
    // So that what should end by itself and does not is an error, and no hang.
    let cluster = builder.conf("statement_timeout", "60s").start_with_extension();
    create(&mut cluster.client(), "t", &fixed(step));
    cluster
}

/// Settings of a step that does not adapt.
fn fixed(step: i64) -> String {
    format!(", step => {step}, max_step => {step}")
}

/// As many calls in one statement, each for one value.
fn singly(count: i64) -> String {
    format!("SELECT segment_next('t') FROM generate_series(1, {count})")
}

/// The highest value that may have been handed out, by the table.
fn max_id(client: &mut Client, tag: &str) -> i64 {
    value(client, &format!("SELECT max_id FROM idgen.segment WHERE tag = '{tag}'"))
}

/// How many values are left in shared memory.
fn remaining(client: &mut Client) -> i64 {
    value(client, "SELECT remaining FROM idgen.stat_segment WHERE tag = 't'")
}

/// Draws one by one until nothing is left. Returns what came, and the error that says why no more does.
fn draw_dry(client: &mut Client) -> (Vec<i64>, DbError) {
    // There is nothing to wait for: what keeps the refill away stays.
    execute(client, "SET idgen.segment_timeout = '100ms'");
    let (drawn, error) = draw_until_refused(client, "t");
    execute(client, "RESET idgen.segment_timeout");
    assert_eq!(*error.code(), SqlState::LOCK_NOT_AVAILABLE, "{error:?}");
    (drawn, error)
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

/// Makes every refill wait, after its last statement and before its commit, for an advisory lock: see `HOLD_COMMITS`.
const COMMITS_CAN_BE_HELD: &str = "
    CREATE FUNCTION await_permission() RETURNS trigger LANGUAGE plpgsql
        AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER before_commit AFTER UPDATE ON idgen.segment DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION await_permission();";

/// Keeps refills from committing as long as the session holds this.
const HOLD_COMMITS: &str = "SELECT pg_advisory_lock(1)";
const LET_COMMITS_GO: &str = "SELECT pg_advisory_unlock(1)";
