//! A server's worker id over starts and stops of the server and of its keeper.

use std::time::{SystemTime, UNIX_EPOCH};

use idgen_testkit::grants::{Rectangle, rectangles, time_us_of, worker_id_of};
use idgen_testkit::ids::{assert_distinct, assert_increasing, last};
use idgen_testkit::sql::{PATIENCE, execute, expect_error, ids, wait_for_one};
use idgen_testkit::{Cluster, Stop, pause, rounds};
use postgres::fallible_iterator::FallibleIterator;

use super::faults::end;
use super::{Worker, assert_granted, coordinator, coordinator_and_server, draw, draw_some, end_token};
use crate::{POOL, builder, pooled};

fn pooled_by(coordinator: &Cluster) -> Cluster {
    pooled(&coordinator.conninfo()).start_with_extension()
}

fn granted(coordinator: &Cluster) -> Vec<Rectangle> {
    rectangles(&mut coordinator.client())
}

#[test]
fn restarted_server_gets_its_worker_id_back_and_continues_at_once() {
    let (coordinator, server) = coordinator_and_server(4, "1 hour");
    let mut seen = draw_some(&mut server.client());
    for _ in 0..rounds(2, 20) {
        server.restart();
        let mut client = server.client();
        let id = draw(&mut client);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970").as_micros() as i64;
        // If the stop had not released the rest of the lease, the id would be an hour ahead.
        assert!(time_us_of(id) <= now, "{} us ahead", time_us_of(id) - now);
        assert_eq!(worker_id_of(id), 0);
        seen.push(id);
        seen.extend(draw_some(&mut client));
        let pairs = granted(&coordinator);
        let [.., before, after] = &pairs[..] else { panic!("{pairs:?}") };
        assert_eq!(before.until_us, after.from_us);
    }
    assert_increasing(&seen);
    assert_granted(&coordinator, [(&server, seen)]);
}

#[test]
fn new_keeper_continues_the_lease_of_a_terminated_one_smoke() {
    let (coordinator, server) = coordinator_and_server(4, "6 s");
    let mut client = server.client();
    let mut seen = vec![draw(&mut client)];
    for _ in 0..rounds(1, 20) {
        let keeper = Worker::of(&mut client).keeper.expect("the server has a keeper");
        end(keeper);
        let now = || Worker::of(&mut server.client());
        // Each probe connects: PostgreSQL 15 can miss that a process is due to be started until something else happens.
        server.wait_for(PATIENCE, "another keeper", || now().keeper.is_some_and(|pid| pid != keeper));
        let before = now();
        // The server has a worker id for longer than a lease lasts: an error would fail the test.
        server.wait_for(PATIENCE, "renewals by the new keeper", || {
            seen.push(draw(&mut client));
            Worker::of(&mut client).renewals > before.renewals + 3
        });
    }
    assert_increasing(&seen);
    let worker = Worker::of(&mut client);
    assert_eq!((worker.changes, worker.failures), (1, 0));
    let granted = granted(&coordinator);
    assert_eq!(granted.len(), 1, "one token: {granted:?}");
    assert_granted(&coordinator, [(&server, seen)]);
}

/// The request begins before the pool is committed, and is granted after it. So it reads no ttl, and has to be asked again.
#[test]
fn server_renews_the_lease_of_a_pool_that_is_newer_than_its_request() {
    let coordinator = builder().start_with_extension();
    let mut definer = coordinator.client();
    let define = format!("SELECT worker_pool_define('{POOL}', count => 4, ttl => '3 s')");
    execute(&mut definer, &format!("BEGIN; LOCK TABLE idgen.worker_pool IN EXCLUSIVE MODE; {define}"));
    let server = pooled_by(&coordinator);
    let waiting = "pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'worker_acquire'";
    wait_for_one(&coordinator, "a request that waits for the definition", waiting);
    execute(&mut definer, "COMMIT");
    let mut client = server.client();
    server.wait_for(PATIENCE, "renewals", || Worker::of(&mut client).renewals > 1);
}

#[test]
fn second_server_gets_the_only_worker_id_when_the_first_stops() {
    let coordinator = coordinator(builder(), 1, "1 hour");
    let first = pooled_by(&coordinator);
    let of_first = draw_some(&mut first.client());
    let second = pooled_by(&coordinator);
    let mut client = second.client();
    let error = expect_error(&mut client, "SELECT snowflake_next()", "55000");
    assert_eq!(error.message(), "this server has no worker id yet from pool \"servers\"");
    let detail = error.detail().expect("the coordinator's error");
    let holder = "all 1 worker ids of pool \"servers\" are taken. Least recently renewed: 0 by \"";
    assert!(detail.contains(holder), "{detail}");
    assert!(detail.contains(first.data_dir().to_str().expect("a path of ASCII")), "{detail}");

    first.stop(Stop::Fast);
    second.wait_for(PATIENCE, "the worker id", || Worker::of(&mut client).state == "leased");
    let of_second = draw_some(&mut client);
    assert_eq!(worker_id_of(of_second[0]), 0);
    assert_distinct([&of_first[..], &of_second].concat());
    assert_granted(&coordinator, [(&first, of_first), (&second, of_second)]);
}

/// A running statement continues in the next term. Ids that it has reserved before are still of the last one.
#[test]
fn lost_worker_id_is_followed_by_another_under_a_running_statement() {
    let coordinator = coordinator(builder(), 4, "6 s");
    // A small drift limits what is reserved at a time.
    let server = pooled(&coordinator.conninfo()).conf("idgen.max_drift", "5 ms");
    let (server, [mut client, mut other]) = server.start_with_clients();
    let mut rows = client.query_raw("SELECT snowflake_next_many(300000)", std::iter::empty::<i32>()).unwrap();
    let mut seen: Vec<i64> = Vec::new();
    for _ in 0..3 {
        // The sockets buffer far fewer rows than follow, so the statement is still running.
        for _ in 0..50_000 {
            seen.push(rows.next().unwrap().expect("a row").get(0));
        }
        let held = Worker::of(&mut other);
        let worker_id = held.worker_id.expect("the server has a lease");
        end_token(&coordinator, worker_id);
        Worker::wait_until(&server, "another term", |worker| worker.from_us > held.from_us);
        // Above every id of other sessions.
        let new = draw(&mut other);
        assert_eq!(Some(worker_id_of(new)), Worker::of(&mut other).worker_id);
    }
    while let Some(row) = rows.next().unwrap() {
        seen.push(row.get(0));
    }
    assert_eq!(seen.len(), 300_000);
    assert_increasing(&seen);
    let granted = granted(&coordinator);
    assert_eq!(granted.len(), 4, "{granted:?}");
    assert_granted(&coordinator, [(&server, seen)]);
}

/// A server whose keeper is paused does not know that its token has ended, and need not.
#[test]
fn next_holder_of_a_lost_worker_id_begins_where_the_paused_one_ends() {
    let coordinator = coordinator(builder(), 1, "5 s");
    let first = pooled_by(&coordinator);
    let mut client = first.client();
    let mut of_first = vec![draw(&mut client)];
    let second = pooled_by(&coordinator);
    let mut other = second.client();
    expect_error(&mut other, "SELECT snowflake_next()", "55000");
    let paused = pause(Worker::of(&mut client).keeper.expect("the server has a keeper"));
    end_token(&coordinator, 0);
    Worker::wait_for_state(&second, "leased");
    let mut of_second = Vec::new();
    let ended = loop {
        of_second.push(draw(&mut other));
        match client.query_one("SELECT snowflake_next()", &[]) {
            Ok(row) => of_first.push(row.get(0)),
            Err(error) => break error,
        }
    };
    assert_eq!(ended.code().map(|code| code.code()), Some("55000"), "{ended:?}");
    assert!(of_first.len() > 1 && worker_id_of(of_second[0]) == 0, "both servers had the worker id at once");
    paused.resume();
    assert!(last(&of_first) < of_second[0], "{} and {}", last(&of_first), of_second[0]);
    assert_granted(&coordinator, [(&first, of_first), (&second, of_second)]);
}

#[test]
fn promoted_standby_leases_its_own_worker_id_smoke() {
    let coordinator = coordinator(builder(), 4, "1 hour");
    let primary = pooled_by(&coordinator);
    let standby = primary.standby();
    let mut client = primary.client();
    execute(&mut client, "CREATE TABLE t (id bigint)");
    let replicated = ids(&mut client, "INSERT INTO t SELECT snowflake_next_many(10000) RETURNING id");
    standby.wait_until_replayed(&primary);
    expect_error(&mut standby.client(), "SELECT snowflake_next()", "25006");
    assert_eq!(granted(&coordinator).len(), 1, "a standby needs no worker id");

    standby.promote();
    let mut other = standby.client();
    let of_promoted = draw_some(&mut other);
    assert!(of_promoted[0] > last(&replicated), "{} after {}", of_promoted[0], last(&replicated));
    let mut of_primary = replicated;
    of_primary.extend(draw_some(&mut client));
    assert_ne!(Worker::of(&mut client).worker_id, Worker::of(&mut other).worker_id, "two running servers");
    assert_distinct([&of_primary[..], &of_promoted].concat());
    assert_granted(&coordinator, [(&primary, of_primary), (&standby, of_promoted)]);
}
