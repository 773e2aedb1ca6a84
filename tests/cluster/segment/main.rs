//! Segment ids on real servers: without gaps while nothing crashes, and without repeats in any case; changed, dropped and
//! recreated tags; the refill worker; privileges; and transactions that draw.

mod access;
mod crash;
mod evicted;
mod exact;
mod failover;
mod fleet;
mod locked_row;
mod modes;
mod refill;
mod refill_worker;
mod settled;
mod stale;
mod storm;
mod uncommitted;
mod waits;

use idgen_testkit::segment::{create, draw};
use idgen_testkit::sql::{execute, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;
use postgres::error::{DbError, SqlState};

/// A server with the tag t, whose step is fixed.
fn with_segment(builder: Builder, step: i64) -> Cluster {
    // A timeout, so that a wait that does not end fails the test and does not hang.
    let cluster = builder.conf("statement_timeout", "60s").start_with_extension();
    create(&mut cluster.client(), "t", &fixed(step));
    cluster
}

/// The settings of a fixed step.
fn fixed(step: i64) -> String {
    format!(", step => {step}, max_step => {step}")
}

/// A statement with this many calls, each for one value.
fn singly(count: i64) -> String {
    format!("SELECT segment_next('t') FROM generate_series(1, {count})")
}

/// The highest value that may have been issued, by the table.
fn max_id(client: &mut Client, tag: &str) -> i64 {
    value(client, &format!("SELECT max_id FROM idgen.segment WHERE tag = '{tag}'"))
}

/// The number of values left in shared memory.
fn remaining(client: &mut Client) -> i64 {
    value(client, "SELECT remaining FROM idgen.stat_segment WHERE tag = 't'")
}

/// Draws one by one until nothing is left. Returns the values and the error.
fn draw_dry(client: &mut Client) -> (Vec<i64>, DbError) {
    // A short timeout, because the refill stays blocked.
    execute(client, "SET idgen.segment_timeout = '100ms'");
    let (drawn, error) = draw_until_refused(client, "t");
    execute(client, "RESET idgen.segment_timeout");
    assert_eq!(*error.code(), SqlState::LOCK_NOT_AVAILABLE, "{error:?}");
    (drawn, error)
}

/// Draws until a call fails. Returns the values and the error.
fn draw_until_refused(client: &mut Client, tag: &str) -> (Vec<i64>, DbError) {
    let mut drawn = Vec::new();
    loop {
        match client.query_one(&draw(tag), &[]) {
            Ok(row) => drawn.push(row.get(0)),
            Err(error) => return (drawn, error.as_db_error().unwrap_or_else(|| panic!("{error:?}")).clone()),
        }
    }
}

/// Makes every refill wait for an advisory lock between its last statement and its commit: see `HOLD_COMMITS`.
const COMMITS_WAIT_FOR_LOCK: &str = "
    CREATE FUNCTION await_permission() RETURNS trigger LANGUAGE plpgsql
        AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER before_commit AFTER UPDATE ON idgen.segment DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION await_permission();";

/// Blocks the commits of refills while the session holds the lock.
const HOLD_COMMITS: &str = "SELECT pg_advisory_lock(1)";
const RELEASE_COMMITS: &str = "SELECT pg_advisory_unlock(1)";
