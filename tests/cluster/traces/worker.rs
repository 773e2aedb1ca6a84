//! Worker ids from a pool: a storm with a crash, then the promotion of a standby that lacks the last grants, and a storm
//! there.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use idgen_sim::model::trace::worker::Replay;
use idgen_testkit::grants::epoch_us;
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;
use postgres::error::SqlState;

use crate::storm::{Storm, is_held};
use crate::{assert_allowed, begin_trace, builder, take_trace};

const TTL_MS: u64 = 100;
const LEAD_S: i64 = 5;
const TIME: &str = "'epoch'::timestamptz + $2 * interval '1 microsecond'";

/// The tokens and ends that clients pass.
type Passed = Mutex<BTreeSet<(i64, i64)>>;

/// Acquires a worker id, uses and renews it, and releases it or vanishes.
fn work(client: &mut Client, passed: &Passed) -> Result<(), postgres::Error> {
    let (from, until) = (epoch_us("not_before"), epoch_us("not_after"));
    let wish = format!(
        "SELECT worker_id, token, {from}, {until} FROM worker_acquire('p', 'pod-{}', '{TTL_MS} ms', clock_timestamp())",
        fastrand::u32(..6)
    );
    let row = match client.query_one(&wish, &[]) {
        // All are held, or begin too far ahead.
        Err(error) if matches!(error.code().map(SqlState::code), Some("53400" | "55000")) => return Ok(()),
        row => row?,
    };
    let (worker_id, token, mut next, mut until_us): (i32, i64, i64, i64) =
        (row.get(0), row.get(1), row.get(2), row.get(3));
    for _ in 0..fastrand::u32(1..4) {
        if next < until_us && fastrand::bool() {
            next = fastrand::i64(next..until_us);
            client.execute("INSERT INTO used VALUES ($1, $2, $3)", &[&worker_id, &token, &next])?;
            next += 1;
        }
        passed.lock().expect("no thread panics with the lock").insert((token, until_us));
        let renew = format!("SELECT {until} FROM worker_renew('p', $1, {TIME}, clock_timestamp())");
        let renewed = client.query_one(&renew, &[&token, &(until_us as f64)]);
        match renewed {
            Ok(row) => until_us = row.get(0),
            outcome => return is_held(outcome).map(drop),
        }
    }
    if fastrand::bool() {
        passed.lock().expect("no thread panics with the lock").insert((token, until_us));
        let last = format!("'epoch'::timestamptz + {} * interval '1 microsecond'", next - 1);
        let release = format!("SELECT worker_release('p', $1, {last}, {TIME})");
        is_held(client.query(&release, &[&token, &(until_us as f64)]))?;
    }
    Ok(())
}

fn storm(cluster: &Cluster, replay: &mut Replay, crashes: u32, rounds: usize) {
    let passed = Mutex::default();
    let storm = Storm::new(cluster, Duration::from_millis(TTL_MS + TTL_MS / 2));
    storm.run(8, Duration::from_millis(500) * rounds as u32, crashes, |client| {
        while storm.goes_on() {
            work(client, &passed)?;
        }
        Ok(())
    });
    replay.passed(passed.into_inner().expect("no thread panicked"));
    replay.replay(&take_trace(cluster));
}

#[test]
fn worker_ids_make_only_steps_that_the_rules_allow() {
    let mut replay = Replay::new(TTL_MS as i64 * 1000 + LEAD_S * 1_000_000);
    let cluster = builder().conf("idgen.worker_max_lead", &format!("{LEAD_S}s")).start_with_extension();
    begin_trace(&cluster);
    cluster.execute(&format!(
        "CREATE TABLE used (number int, token bigint, time_us bigint); SELECT lease_define('p', 6, '{TTL_MS} ms')"
    ));
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
    storm(&standby, &mut replay, 0, rounds(4, 30));
    let least = [("grant again", 50), ("renew", 50), ("release", 20), ("use", 50), ("history", 2)];
    assert_allowed(&replay.report, &least);
}
