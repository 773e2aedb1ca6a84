//! A server's number over its starts and stops, and those of its keeper.

use std::time::{SystemTime, UNIX_EPOCH};

use idgen_testkit::grants::{Rectangle, Seen, assert_ids_granted, rectangles, time_us_of, worker_id_of};
use idgen_testkit::ids::{assert_distinct, assert_increasing, last};
use idgen_testkit::sql::{PATIENCE, execute, expect_error, ids, value};
use idgen_testkit::{Cluster, Stop, pause, rounds};
use postgres::Client;
use postgres::fallible_iterator::FallibleIterator;

use super::faults::end;
use super::{Worker, coordinator, draw};
use crate::{POOL, builder, pooled};

fn pooled_by(coordinator: &Cluster) -> Cluster {
    pooled(&coordinator.connect_string("postgres", "postgres")).start_with_extension()
}

fn draw_some(client: &mut Client) -> Vec<i64> {
    ids(client, "SELECT snowflake_next_many(10000)")
}

fn granted(coordinator: &Cluster) -> Vec<Rectangle> {
    rectangles(&mut coordinator.client())
}

fn of(server: &Cluster, ids: Vec<i64>) -> Seen {
    Seen { data_dir: server.data_dir(), ids }
}

#[test]
fn a_server_that_starts_again_has_its_number_again_and_goes_on_at_once() {
    let coordinator = coordinator(builder(), 4, "1 hour");
    let server = pooled_by(&coordinator);
    let mut seen = draw_some(&mut server.client());
    for _ in 0..rounds(2, 20) {
        server.restart();
        let mut client = server.client();
        let id = draw(&mut client);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970").as_micros() as i64;
        // An hour ahead it would be if the number had not been given back with the last time used.
        assert!(time_us_of(id) <= now, "{} us ahead", time_us_of(id) - now);
        assert_eq!(worker_id_of(id), 0);
        seen.push(id);
        seen.extend(draw_some(&mut client));
        let pairs = granted(&coordinator);
        let [.., before, after] = &pairs[..] else { panic!("{pairs:?}") };
        assert_eq!(before.until_us, after.from_us);
    }
    assert_increasing(&seen);
    assert_ids_granted(&granted(&coordinator), &[of(&server, seen)]);
}

#[test]
fn a_server_that_was_stopped_at_once_leases_anew() {
    let coordinator = coordinator(builder(), 32, "1 hour");
    let server = pooled_by(&coordinator);
    let mut seen = draw_some(&mut server.client());
    let tokens = rounds(2, 20);
    for _ in 0..tokens {
        server.stop(Stop::Immediate);
        server.start_again();
        seen.extend(draw_some(&mut server.client()));
    }
    assert_increasing(&seen);
    let granted = granted(&coordinator);
    assert_eq!(granted.len(), tokens + 1, "a token for each start: {granted:?}");
    assert_ids_granted(&granted, &[of(&server, seen)]);
}

#[test]
fn a_keeper_that_is_ended_is_followed_by_one_that_goes_on_with_its_lease_smoke() {
    let coordinator = coordinator(builder(), 4, "6 s");
    let server = pooled_by(&coordinator);
    let mut client = server.client();
    let mut seen = vec![draw(&mut client)];
    for _ in 0..rounds(1, 20) {
        let keeper = Worker::of(&mut client).keeper.expect("it has leased");
        end(keeper);
        let now = || Worker::of(&mut server.client());
        // Each look is a connection: PostgreSQL 15 can miss that a process is due to be started until something else happens.
        server.wait_for(PATIENCE, "another keeper", || now().keeper.is_some_and(|pid| pid != keeper));
        let before = now();
        // For more than a lease lasts there is a number all the while: an error would fail the test.
        server.wait_for(PATIENCE, "its renewals", || {
            seen.push(draw(&mut client));
            Worker::of(&mut client).renewals > before.renewals + 3
        });
    }
    assert_increasing(&seen);
    let worker = Worker::of(&mut client);
    assert_eq!((worker.changes, worker.failures), (1, 0));
    let granted = granted(&coordinator);
    assert_eq!(granted.len(), 1, "one token: {granted:?}");
    assert_ids_granted(&granted, &[of(&server, seen)]);
}

#[test]
fn the_second_of_two_servers_has_the_one_number_when_the_first_has_stopped() {
    let coordinator = coordinator(builder(), 1, "1 hour");
    let first = pooled_by(&coordinator);
    let of_first = draw_some(&mut first.client());
    let second = pooled_by(&coordinator);
    let mut client = second.client();
    let error = expect_error(&mut client, "SELECT snowflake_next()", "55000");
    assert_eq!(error.message(), "this server has no worker id yet from pool \"servers\"");
    let detail = error.detail().expect("the coordinator's error");
    let holder = "all 1 numbers of worker pool \"servers\" are taken. Not renewed for longest: 0 by \"";
    assert!(detail.contains(holder), "{detail}");
    assert!(detail.contains(first.data_dir().to_str().expect("a path of ASCII")), "{detail}");

    first.stop(Stop::Fast);
    second.wait_for(PATIENCE, "the number", || Worker::of(&mut client).state == "leased");
    let of_second = draw_some(&mut client);
    assert_eq!(worker_id_of(of_second[0]), 0);
    assert_distinct([&of_first[..], &of_second].concat());
    assert_ids_granted(&granted(&coordinator), &[of(&first, of_first), of(&second, of_second)]);
}

/// A statement in the middle of a set goes on in the next term, and what it had reserved before is still of the last one.
#[test]
fn a_term_that_is_taken_away_is_followed_by_another() {
    let coordinator = coordinator(builder(), 4, "6 s");
    // Little is reserved at a time.
    let server = pooled(&coordinator.connect_string("postgres", "postgres")).conf("idgen.max_drift", "5 ms");
    let server = server.start_with_extension();
    let (mut client, mut other) = (server.client(), server.client());
    let mut rows = client.query_raw("SELECT snowflake_next_many(300000)", std::iter::empty::<i32>()).unwrap();
    let mut seen: Vec<i64> = Vec::new();
    for _ in 0..3 {
        // What fits into the sockets is far less than what is to come, so the statement is in the middle of it.
        for _ in 0..50_000 {
            seen.push(rows.next().unwrap().expect("a row").get(0));
        }
        let held = Worker::of(&mut other);
        let number = held.number.expect("it is leased");
        assert!(value::<bool>(&mut coordinator.client(), &format!("SELECT lease_revoke('{POOL}', {number})")));
        Worker::wait_until(&server, "another term", |worker| worker.from_us > held.from_us);
        // After all that any other session was given.
        let new = draw(&mut other);
        assert_eq!(Some(worker_id_of(new)), Worker::of(&mut other).number);
    }
    while let Some(row) = rows.next().unwrap() {
        seen.push(row.get(0));
    }
    assert_eq!(seen.len(), 300_000);
    assert_increasing(&seen);
    let granted = granted(&coordinator);
    assert_eq!(granted.len(), 4, "{granted:?}");
    assert_ids_granted(&granted, &[of(&server, seen)]);
}

/// A server whose keeper stands still does not know that its number was taken away, and need not.
#[test]
fn whoever_is_given_a_number_that_was_taken_away_begins_where_the_holder_before_had_to_end() {
    let coordinator = coordinator(builder(), 1, "5 s");
    let first = pooled_by(&coordinator);
    let mut client = first.client();
    let mut of_first = vec![draw(&mut client)];
    let second = pooled_by(&coordinator);
    let mut other = second.client();
    expect_error(&mut other, "SELECT snowflake_next()", "55000");
    let paused = pause(Worker::of(&mut client).keeper.expect("it has leased"));
    assert!(value::<bool>(&mut coordinator.client(), &format!("SELECT lease_revoke('{POOL}')")));
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
    assert!(of_first.len() > 1 && worker_id_of(of_second[0]) == 0, "both had the number at once");
    paused.resume();
    assert!(last(&of_first) < of_second[0], "{} and {}", last(&of_first), of_second[0]);
    assert_ids_granted(&granted(&coordinator), &[of(&first, of_first), of(&second, of_second)]);
}

#[test]
fn a_promoted_standby_leases_a_number_of_its_own_smoke() {
    let coordinator = coordinator(builder(), 4, "1 hour");
    let primary = pooled_by(&coordinator);
    let standby = primary.standby();
    let mut client = primary.client();
    execute(&mut client, "CREATE TABLE t (id bigint)");
    let replicated = ids(&mut client, "INSERT INTO t SELECT snowflake_next_many(10000) RETURNING id");
    standby.wait_until_replayed(&primary);
    expect_error(&mut standby.client(), "SELECT snowflake_next()", "25006");
    assert_eq!(granted(&coordinator).len(), 1, "a standby needs no number");

    standby.promote();
    let mut other = standby.client();
    let of_promoted = draw_some(&mut other);
    assert!(of_promoted[0] > last(&replicated), "{} after {}", of_promoted[0], last(&replicated));
    let mut of_primary = replicated;
    of_primary.extend(draw_some(&mut client));
    assert_ne!(Worker::of(&mut client).number, Worker::of(&mut other).number, "both are alive");
    assert_distinct([&of_primary[..], &of_promoted].concat());
    assert_ids_granted(&granted(&coordinator), &[of(&primary, of_primary), of(&standby, of_promoted)]);
}

#[test]
fn a_copy_has_no_number_until_it_has_leased_one_of_its_own() {
    let coordinator = coordinator(builder(), 4, "1 hour");
    let server = pooled_by(&coordinator);
    let mut client = server.client();
    let mut seen = draw_some(&mut client);
    coordinator.stop(Stop::Immediate);
    let copy = server.copy();
    let mut other = copy.client();
    let error = expect_error(&mut other, "SELECT snowflake_next()", "55000");
    assert_eq!(error.message(), "this server has no worker id yet from pool \"servers\"");
    assert_eq!(Worker::of(&mut other).number, None);

    coordinator.start_again();
    let [held, of_copy] = [&server, &copy].map(|server| Worker::wait_for_state(server, "leased").number);
    assert_ne!(held, of_copy);
    seen.extend(draw_some(&mut client));
    let copied = draw_some(&mut other);
    assert_distinct([&seen[..], &copied].concat());
    assert_ids_granted(&granted(&coordinator), &[of(&server, seen), of(&copy, copied)]);
}
