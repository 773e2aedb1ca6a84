//! Worker ids from a pool that is moved to another name, and back: a storm with a crash, then the promotion of a standby
//! that lacks the last grants, and a storm there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use idgen_sim::model::trace::worker::{Replay, Row};
use idgen_sim::model::worker::Rectangle;
use idgen_testkit::grants::epoch_us;
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::{Client, Error};

use crate::storm::Storm;
use crate::{assert_allowed, begin_trace, builder, take_trace};

const TTL_MS: u64 = 100;
const LEAD_S: i64 = 5;
const TIME: &str = "'epoch'::timestamptz + $2 * interval '1 microsecond'";

/// All worker ids are in one of these pools.
const POOLS: [&str; 2] = ["p", "q"];

/// The tokens and ends that clients pass.
type Passed = Mutex<BTreeSet<(i64, i64)>>;

/// Acquires a worker id, uses and renews it, and releases it or vanishes.
fn work(client: &mut Client, passed: &Passed) -> Result<(), Error> {
    let (from, until) = (epoch_us("not_before"), epoch_us("not_after"));
    let columns = format!("worker_id, token, {from}, {until}");
    let wish = format!("'pod-{}', '{TTL_MS} ms', clock_timestamp()", fastrand::u32(..6));
    let acquired = in_each_pool(|pool| {
        let row = client.query_one(&format!("SELECT {columns} FROM worker_acquire('{pool}', {wish})"), &[]);
        // All are held, or begin too far ahead.
        let is_refused = row.as_ref().is_err_and(|error| is_one_of(error, &["53400", "55000", GONE]));
        if is_refused { Ok(None) } else { row.map(Some) }
    })?;
    let Some(row) = acquired else { return Ok(()) };
    let (worker_id, token, mut next, mut until_us): (i32, i64, i64, i64) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    for _ in 0..fastrand::u32(1..4) {
        if next < until_us && fastrand::bool() {
            next = fastrand::i64(next..until_us);
            client.execute("INSERT INTO used VALUES ($1, $2, $3)", &[&worker_id, &token, &next])?;
            next += 1;
        }
        passed.lock().expect("no thread panics with the lock").insert((token, until_us));
        let renew = |pool: &str| format!("SELECT {until} FROM worker_renew('{pool}', $1, {TIME}, clock_timestamp())");
        let renewed = in_each_pool(|pool| held(client.query_one(&renew(pool), &[&token, &(until_us as f64)])))?;
        match renewed {
            Some(row) => until_us = row.get(0),
            None => return Ok(()),
        }
    }
    if fastrand::bool() {
        passed.lock().expect("no thread panics with the lock").insert((token, until_us));
        let last = format!("'epoch'::timestamptz + {} * interval '1 microsecond'", next - 1);
        let release = |pool: &str| format!("SELECT worker_release('{pool}', $1, {last}, {TIME})");
        in_each_pool(|pool| held(client.query_one(&release(pool), &[&token, &(until_us as f64)])))?;
    }
    Ok(())
}

/// The SQLSTATE of a pool that does not exist, or exists no more.
const GONE: &str = "42704";

fn is_one_of(error: &Error, codes: &[&str]) -> bool {
    error.code().is_some_and(|code| codes.contains(&code.code()))
}

/// `None` if the pool, or the lease, is another one by now.
fn held<T>(outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match outcome {
        Err(error) if is_one_of(&error, &["55000", GONE]) => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// The first answer of a pool. A move between two calls can hide a worker id from both: then the client gives it up.
fn in_each_pool<T>(mut call: impl FnMut(&str) -> Result<Option<T>, Error>) -> Result<Option<T>, Error> {
    for pool in POOLS {
        if let Some(answer) = call(pool)? {
            return Ok(Some(answer));
        }
    }
    Ok(None)
}

/// Moves all worker ids to the other name, which is then defined in the same transaction.
fn move_pool(client: &mut Client) -> Result<(), Error> {
    let names = "SELECT name FROM idgen.worker_pool WHERE name = ANY ($1)";
    let from: String = client.query_one(names, &[&&POOLS[..]])?.get(0);
    let to = if from == POOLS[0] { POOLS[1] } else { POOLS[0] };
    let mut transaction = client.transaction()?;
    transaction.batch_execute(&format!("{}; SELECT worker_move('{from}', '{to}')", define(to)))?;
    transaction.commit()
}

fn define(pool: &str) -> String {
    format!("SELECT worker_pool_define('{pool}', count => 6, ttl => '{TTL_MS} ms')")
}

fn storm(cluster: &Cluster, replay: &mut Replay, crashes: u32, rounds: usize) {
    let (passed, move_one_by_one) = (Mutex::default(), Mutex::new(()));
    let storm = Storm::new(cluster, Duration::from_millis(TTL_MS + TTL_MS / 2));
    storm.run(8, Duration::from_millis(500) * rounds as u32, crashes, |client| {
        while storm.goes_on() {
            work(client, &passed)?;
            if fastrand::u32(..20) == 0 {
                // Two moves at a time would wait for each other's pools.
                if let Ok(_alone) = move_one_by_one.try_lock() {
                    move_pool(client)?;
                }
            }
        }
        Ok(())
    });
    replay.passed(passed.into_inner().expect("no thread panicked"));
    replay.replay(&take_trace(cluster));
}

fn rows(cluster: &Cluster) -> BTreeMap<i64, Row> {
    let (from, until) = (epoch_us("not_before"), epoch_us("not_after"));
    let sql = format!("SELECT worker_id::bigint, pool, coalesce(token, 0), {from}, {until}, token IS NOT NULL, role IS NULL FROM idgen.worker_id
         WHERE acquired_at IS NOT NULL");
    let rows = cluster.client().query(&sql, &[]).expect("the rows");
    let row = |row: &postgres::Row| {
        let rectangle = Rectangle { token: row.get(2), not_before: row.get(3), not_after: row.get(4) };
        (row.get(0), Row { pool: row.get(1), rectangle, is_current: row.get(5), is_released: row.get(6) })
    };
    rows.iter().map(row).collect()
}

#[test]
fn worker_ids_make_only_steps_that_the_rules_allow() {
    let mut replay = Replay::new(TTL_MS as i64 * 1000 + LEAD_S * 1_000_000);
    let cluster = builder().conf("idgen.worker_max_lead", &format!("{LEAD_S}s")).start_with_extension();
    begin_trace(&cluster);
    cluster.execute("CREATE TABLE used (number int, token bigint, time_us bigint)");
    cluster.execute(&define(POOLS[0]));
    let standby = cluster.standby();
    storm(&cluster, &mut replay, 1, rounds(6, 40));
    standby.wait_until_replayed(&cluster);
    standby.stop(Stop::Fast);
    // The standby never has these.
    storm(&cluster, &mut replay, 0, rounds(3, 20));
    cluster.kill9_postmaster();
    standby.start_again();
    standby.promote();
    begin_trace(&standby);
    replay.server_began(rows(&standby));
    storm(&standby, &mut replay, 0, rounds(4, 30));
    let least = [("grant again", 50), ("renew", 50), ("release", 20), ("use", 50), ("move", 50), ("history", 2)];
    assert_allowed(&replay.report, &least);
}
