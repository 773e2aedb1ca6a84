//! Leases with slots, shared terms and fences, some of them in prepared transactions: a storm with a crash, then the
//! promotion of a standby, and a storm there.

use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idgen_sim::model::trace::lease::Replay;
use idgen_testkit::sql::{PATIENCE, column, execute};
use idgen_testkit::{Cluster, rounds};
use nix::time::{ClockId, clock_gettime};
use postgres::error::SqlState;
use postgres::{Client, Error};

use crate::storm::{Storm, is_held};
use crate::{assert_allowed, begin_trace, builder, take_trace};

const TTL_MS: u64 = 150;

/// CLOCK_BOOTTIME in microseconds, the clock of leases.
fn boot_us() -> i64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has this clock");
    now.tv_sec() * 1_000_000 + now.tv_nsec() / 1_000
}

fn wall_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_micros() as i64
}

/// Acquires, writes under a fence, renews, and releases or vanishes.
fn work(client: &mut Client, told: &Mutex<Vec<i64>>) -> Result<(), Error> {
    if fastrand::bool() {
        end_prepared_of_others(client)?;
    }
    // Those that share, and those that never do so.
    let (name, sharing) = [("defined", 0), ("undefined", 1), ("readers", 3)][fastrand::usize(..3)];
    let shared = fastrand::u32(..4) < sharing;
    let wish =
        format!("SELECT slot, token FROM lease_try_acquire('{name}', '300 ms', '{TTL_MS} ms', shared => {shared})");
    let Some(row) = client.query_opt(&wish, &[])? else { return Ok(()) };
    let (slot, token): (i32, i64) = (row.get(0), row.get(1));
    told.lock().expect("no thread panics with the lock").push(token);
    for _ in 0..fastrand::u32(1..4) {
        let begin = format!(
            "BEGIN; SELECT lease_fence('{name}', {token}); INSERT INTO work VALUES ('{name}', {slot}, {token})"
        );
        let outcome = client.batch_execute(&begin);
        if outcome.is_ok() && fastrand::u32(..4) == 0 {
            be_slow(client)?;
        }
        if !is_held(outcome)? {
            return client.batch_execute("ROLLBACK");
        }
        if fastrand::u32(..5) > 0 {
            client.batch_execute("COMMIT")?;
        } else {
            prepare(client, name, token)?;
        }
        if !is_held(client.query(&format!("SELECT lease_renew('{name}', {token})"), &[]))? {
            return Ok(());
        }
    }
    if fastrand::u32(..3) > 0 {
        is_held(client.query(&format!("SELECT lease_release('{name}', {token})"), &[]))?;
    }
    Ok(())
}

/// Often until after the term.
fn be_slow(client: &mut Client) -> Result<(), Error> {
    client.batch_execute(&format!("SELECT pg_sleep({})", fastrand::u64(..TTL_MS * 3 / 2) as f64 / 1000.0))
}

/// Prepares the transaction, and ends it later, or leaves that to others.
fn prepare(client: &mut Client, name: &str, token: i64) -> Result<(), Error> {
    let identifier = format!("{name} {token} {}", fastrand::u64(..));
    client.batch_execute(&format!("PREPARE TRANSACTION '{identifier}'"))?;
    if fastrand::bool() {
        be_slow(client)?;
    }
    if fastrand::u32(..3) > 0 { end_prepared(client, &identifier) } else { Ok(()) }
}

fn end_prepared(client: &mut Client, identifier: &str) -> Result<(), Error> {
    let ending = if fastrand::bool() { "COMMIT" } else { "ROLLBACK" };
    match client.batch_execute(&format!("{ending} PREPARED '{identifier}'")) {
        // Another session has ended it, or is about to.
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => Ok(()),
        outcome => is_held(outcome).map(drop),
    }
}

fn end_prepared_of_others(client: &mut Client) -> Result<(), Error> {
    let old = "SELECT gid FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - interval '200 ms'";
    let identifiers: Vec<String> = client.query(old, &[])?.iter().map(|row| row.get(0)).collect();
    identifiers.iter().try_for_each(|identifier| end_prepared(client, identifier))
}

/// A storm on a server, replayed.
fn storm(cluster: &Cluster, replay: &mut Replay, crashes: u32, rounds: usize) {
    let told = Mutex::new(Vec::new());
    let storm = Storm::new(cluster, Duration::from_millis(TTL_MS + TTL_MS / 2));
    storm.run(8, Duration::from_millis(500) * rounds as u32, crashes, |client| {
        while storm.goes_on() {
            work(client, &told)?;
        }
        Ok(())
    });
    // A standby could not decode what was prepared before its promotion.
    let mut client = cluster.client();
    cluster.wait_for(PATIENCE, "the end of all prepared transactions", || {
        let identifiers: Vec<String> = column(&mut client, "SELECT gid FROM pg_prepared_xacts");
        identifiers.iter().for_each(|identifier| end_prepared(&mut client, identifier).expect("the server runs"));
        identifiers.is_empty()
    });
    let transactions = take_trace(cluster);
    replay.replay(&transactions);
    replay.told(&told.into_inner().expect("no thread panicked"), &transactions);
}

/// The term is over, and its fence, which is prepared before the crash, holds it until the transaction ends.
fn fence_over_a_crash(cluster: &Cluster) {
    let mut client = cluster.client();
    execute(&mut client, &format!("SELECT lease_acquire('over', ttl => '{TTL_MS} ms')"));
    let term = "FROM idgen.lease WHERE name = 'over'";
    execute(
        &mut client,
        &format!(
            "BEGIN; SELECT lease_fence(name, token) {term}; INSERT INTO work SELECT name, slot, token {term};
             PREPARE TRANSACTION 'over'"
        ),
    );
    cluster.kill9_postmaster();
    cluster.start_again();
    let mut client = cluster.client();
    let taken = format!("SELECT count(*) FROM lease_try_acquire('over', '{} ms')", TTL_MS * 2);
    assert_eq!(column::<i64>(&mut client, &taken), [0]);
    execute(&mut client, "COMMIT PREPARED 'over'");
    execute(&mut client, "SELECT lease_acquire('over')");
}

/// The rows of a server, as the replay has them.
fn assert_same_rows(cluster: &Cluster, replay: &Replay) {
    let sql = "SELECT name, slot::bigint, token, ends_us FROM idgen.lease";
    let rows = cluster.client().query(sql, &[]).expect("the rows");
    let rows = rows.iter().map(|row| ((row.get(0), row.get(1)), (row.get(2), row.get(3))));
    assert_eq!(replay.terms(), rows.collect());
}

#[test]
fn leases_make_only_steps_that_the_rules_allow() {
    let mut replay = Replay::default();
    replay.server_began(boot_us(), wall_us());
    let cluster = builder().start_with_extension();
    begin_trace(&cluster);
    cluster.execute(&format!(
        "CREATE TABLE work (name text, slot int, token bigint);
         SELECT lease_define('defined', 2, '{TTL_MS} ms', '20 ms');
         SELECT lease_define('readers', 1, '{TTL_MS} ms', '20 ms')"
    ));
    // Before the trace is taken for the first time: a crash can set it back to what was taken already.
    fence_over_a_crash(&cluster);
    storm(&cluster, &mut replay, 1, rounds(12, 60));
    let standby = cluster.standby();
    // Held over the promotion.
    execute(&mut cluster.client(), "SELECT lease_acquire('held', ttl => '1 s')");
    standby.wait_until_replayed(&cluster);
    let rest = take_trace(&cluster);
    replay.replay(&rest);
    cluster.kill9_postmaster();
    replay.server_began(boot_us(), wall_us());
    standby.promote();
    assert_same_rows(&standby, &replay);
    begin_trace(&standby);
    execute(&mut standby.client(), "SELECT lease_acquire('held')");
    storm(&standby, &mut replay, 0, rounds(5, 30));
    assert_same_rows(&standby, &replay);
    let least = [
        ("take over", 20),
        ("begin", 20),
        ("share", 20),
        ("end", 10),
        ("fenced write", 100),
        ("prepared write", 20),
        ("commit prepared", 5),
        ("roll back prepared", 5),
        ("renew", 50),
        ("release", 20),
        ("told", 50),
    ];
    assert_allowed(&replay.report, &least);
}
