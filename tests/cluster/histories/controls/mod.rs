//! Controls: ways that many programs go, and that break the promises. The judge must find each of them guilty; otherwise its
//! verdicts on idgen mean nothing. That of settled reads is in `tests/cluster/snowflake/settled/storm.rs`.

mod public_ids;
mod segments;
mod worker_ids;

use std::time::Duration;

use idgen_sim::history::appends::{self, Append};
use idgen_sim::history::holders::{Answer, Op};
use idgen_sim::history::linear::{self, LEASE};
use idgen_sim::history::{Ns, Outcome, Verdict, order};
use idgen_testkit::recorder::{Draws, Recorder};
use idgen_testkit::sql::{PATIENCE, execute};
use idgen_testkit::{Cluster, rounds};
use postgres::{Client, Error};

use crate::appends::{Appends, create_list, insert, judge};
use crate::storm::{Fault, Storm, repeat};

/// A sequence whose sessions keep values in a cache, as is advised for speed.
#[test]
fn judge_finds_that_values_of_a_cached_sequence_have_no_order() {
    let cluster = Cluster::builder().start();
    cluster.execute("CREATE SEQUENCE s CACHE 32");
    let (draws, storm) = (Draws::<i64>::default(), Storm::new(&cluster));
    let draw = |_| {
        let mut session = storm.connect("postgres").expect("the storm has begun");
        while storm.goes_on() {
            draws.draw(&mut session.client, "SELECT nextval('s')", |row| [row.get(0)]).expect("a sequence");
        }
    };
    storm.run(8, draw, || draws.count(), rounds(5_000, 1_000_000), &[]);
    let verdict = order::judge(&draws.into_draws());
    println!("nextval with CACHE 32: {verdict}");
    assert!(verdict.count(order::ORDER) > 0);
    assert_eq!(verdict.count(order::TWICE), 0);
}

/// How the controls take the lock and check that they have it. Both write later.
struct Control {
    setup: &'static str,
    /// Returns a token, or no row.
    acquire: &'static str,
    check: &'static str,
    release: &'static str,
}

/// The fence in a transaction of its own, before the one that writes.
const CHECKED_BEFORE: Control = Control {
    setup: "SELECT lease_define('n', 1, '100 ms')",
    acquire: "SELECT token FROM lease_try_acquire('n', '1 s')",
    check: "SELECT lease_fence('n', $token)",
    release: "SELECT lease_release('n', $token)",
};

/// `SET NX` with a time limit, as a row.
const SET_NX: Control = Control {
    setup: "CREATE SEQUENCE tokens; CREATE TABLE nx (name text PRIMARY KEY, token bigint, expires timestamptz)",
    acquire: "INSERT INTO nx VALUES ('n', nextval('tokens'), clock_timestamp() + $ttl)
              ON CONFLICT (name) DO UPDATE SET token = nextval('tokens'), expires = clock_timestamp() + $ttl
              WHERE nx.expires < clock_timestamp() RETURNING token",
    check: "SELECT 1 / count(*) FROM nx WHERE token = $token",
    release: "DELETE FROM nx WHERE token = $token",
};

/// One turn of a holder that writes without a fence.
fn unfenced(client: &mut Client, appends: &Appends, storm: &Storm<'_>, control: &Control) -> Result<(), Error> {
    let Some(row) = client.query_opt(&control.acquire.replace("$ttl", "interval '100 ms'"), &[])? else {
        return Ok(());
    };
    let token: i64 = row.get(0);
    let of_token = |sql: &str| sql.replace("$token", &token.to_string());
    client.batch_execute(&of_token(control.check))?;
    let append = Append { lane: 0, token, shared: false, number: u64::from(appends.number()) };
    if append.number.is_multiple_of(50) {
        // The client is paused for longer than its term lasts: until another holder has written. That one has another
        // number, so it does not wait here too.
        let written = appends.len();
        storm.cluster.wait_for(PATIENCE, "another holder", || !storm.goes_on() || appends.len() > written);
    }
    appends.call(0, append, || client.batch_execute(&insert(&append)));
    client.batch_execute(&of_token(control.release))
}

fn stale_writes(control: &Control) -> Verdict {
    let cluster = Cluster::builder().conf("fsync", "off").start_with_extension();
    let mut client = cluster.client();
    create_list(&mut client, 1);
    execute(&mut client, control.setup);
    let (appends, storm) = (Appends::default(), Storm::new(&cluster));
    let session = |_| {
        let mut session = storm.connect("postgres").expect("the storm has begun");
        while storm.goes_on() {
            // A lost lease is an error here.
            let _ = unfenced(&mut session.client, &appends, &storm, control);
        }
        storm.forget(session.pid);
    };
    storm.run(4, session, || appends.len(), rounds(300, 20_000), &[]);
    judge(&mut client, &appends.into_calls())
}

#[test]
fn judge_finds_stale_writes_of_a_fence_in_an_earlier_transaction() {
    let verdict = stale_writes(&CHECKED_BEFORE);
    println!("fence in an earlier transaction: {verdict}");
    assert!(verdict.count(appends::STALE) > 0);
    assert_eq!(verdict.violations(), verdict.count(appends::STALE), "{verdict}");
}

#[test]
fn judge_finds_stale_writes_under_set_nx() {
    let verdict = stale_writes(&SET_NX);
    println!("SET NX with a time limit: {verdict}");
    assert!(verdict.count(appends::STALE) > 0);
    assert_eq!(verdict.violations(), verdict.count(appends::STALE), "{verdict}");
}

/// One turn of a holder whose term lasts ten seconds.
fn hold(client: &mut Client, calls: &Recorder<Op, Answer>) {
    let acquire = SET_NX.acquire.replace("$ttl", "interval '10 s'");
    let number = calls.number();
    let ttl = Duration::from_secs(10).as_nanos() as Ns;
    let answer = calls.call(number, Op::Acquire { shared: false, ttl }, || {
        Ok(client.query_opt(&acquire, &[])?.map_or(Answer::Refused, |row| Answer::Granted(row.get(0))))
    });
    let Outcome::Answered(Answer::Granted(token)) = answer else { return };
    // Not in the server, whose sleep follows the stepped clock.
    std::thread::sleep(Duration::from_millis(5));
    let release = SET_NX.release.replace("$token", &token.to_string());
    calls.call(number, Op::Release { token }, || {
        Ok(if client.execute(&release, &[])? == 1 { Answer::Done } else { Answer::Stale })
    });
}

#[test]
fn judge_finds_two_holders_of_a_lock_that_ends_by_the_wall_clock() {
    let cluster = Cluster::builder().conf("fsync", "off").fake_clock().start();
    cluster.execute(SET_NX.setup);
    let (calls, storm) = (Recorder::default(), Storm::new(&cluster));
    let session = |_| {
        let mut session = storm.connect("postgres").expect("the storm has begun");
        while storm.goes_on() {
            hold(&mut session.client, &calls);
        }
        storm.forget(session.pid);
    };
    let steps = repeat(&[Fault::Clock(60_000), Fault::Clock(0)], rounds(20, 200));
    storm.run(4, session, || calls.len(), rounds(1_000, 20_000), &steps);
    let verdict = linear::judge(&calls.into_calls(), LEASE);
    println!("a lock that ends by the wall clock: {verdict}");
    assert!(verdict.count(linear::IMPOSSIBLE) > 0);
}
