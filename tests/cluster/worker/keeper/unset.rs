//! Changes between no worker id, one set by hand, one leased from a pool, and back.

use idgen_testkit::grants::worker_id_of;
use idgen_testkit::ids::{assert_distinct, assert_increasing, count_repeated};
use idgen_testkit::sql::{PATIENCE, execute, expect_error, hint, ids, value};
use idgen_testkit::{Cluster, Stop};

use super::{Worker, assert_granted, coordinator, draw, draw_some, end_token};
use crate::{POOL, builder, pooled, set_pool};

/// A server that has leased worker id 0.
fn holder_of_0(coordinator: &Cluster) -> Cluster {
    let server = pooled(&coordinator.conninfo()).start_with_extension();
    assert_eq!(worker_id_of(draw(&mut server.client())), 0);
    server
}

const HAD_A_POOL: &str = "this server no longer has a worker id";

#[test]
fn server_without_a_worker_id_stops_using_0_when_it_gets_a_pool() {
    let coordinator = coordinator(builder(), 4, "1 hour");
    let (idle, [mut client]) = builder().start_with_clients();
    assert_eq!(worker_id_of(draw(&mut client)), 0, "a single server needs no worker id");
    let other = holder_of_0(&coordinator);
    let of_other = draw_some(&mut other.client());
    set_pool(&idle, POOL, &coordinator.conninfo());
    let of_idle = ids(&mut client, "SELECT snowflake_next() FROM generate_series(1, 10000)");
    let as_0 = of_idle.iter().filter(|id| worker_id_of(**id) == 0).count();
    assert_eq!(as_0, 0, "ids of worker id 0, which the other server holds");
    assert_distinct([&of_other[..], &of_idle].concat());
    assert_granted(&coordinator, [(&other, of_other), (&idle, of_idle)]);
}

/// No draw is needed.
#[test]
fn keeper_leases_at_the_reload_and_renews_before_the_first_draw() {
    let coordinator = coordinator(builder(), 4, "1 s");
    let server = builder().start_with_extension();
    set_pool(&server, POOL, &coordinator.conninfo());
    let leased = Worker::wait_until(&server, "renewals", |worker| worker.renewals > 1);
    assert_eq!((leased.state.as_str(), leased.worker_id), ("leased", Some(0)));
}

#[test]
fn server_without_a_worker_id_issues_no_ids_if_its_pool_is_exhausted() {
    let coordinator = coordinator(builder(), 1, "1 hour");
    let (late, [mut client]) = builder().start_with_clients();
    draw(&mut client);
    let first = holder_of_0(&coordinator);
    let of_first = draw_some(&mut first.client());
    set_pool(&late, POOL, &coordinator.conninfo());
    let error = client.query("SELECT snowflake_next() FROM generate_series(1, 10000)", &[]);
    let of_late: Vec<i64> = error.as_ref().map_or(vec![], |rows| rows.iter().map(|row| row.get(0)).collect());
    assert_eq!(of_late.len(), 0, "ids of worker id 0, {} of them on both servers", count_repeated(&of_first, &of_late));
    let error = expect_error(&mut client, "SELECT snowflake_next()", "55000");
    assert_eq!(error.message(), "this server has no worker id yet from pool \"servers\"");
    assert!(error.detail().is_some_and(|detail| detail.contains("of pool \"servers\" are taken")), "{error:?}");
}

#[test]
fn server_whose_pool_was_removed_has_no_worker_id_after_a_restart() {
    let coordinator = coordinator(builder(), 4, "1 hour");
    let server = holder_of_0(&coordinator);
    for how in [Stop::Fast, Stop::Immediate] {
        server.set_conf("idgen.worker_pool", "");
        server.restart_by(how);
        let mut client = server.client();
        let error = expect_error(&mut client, "SELECT snowflake_next()", "55000");
        assert_eq!(error.message(), HAD_A_POOL);
        assert!(hint(&error).starts_with("Set idgen.worker_id and restart"), "{error:?}");
        let state = Worker::of(&mut client);
        assert_eq!((state.state.as_str(), state.worker_id, state.keeper), ("waiting", None, None));
    }
    server.restart_with("idgen.worker_id", "9");
    assert_eq!(worker_id_of(draw(&mut server.client())), 9);
}

#[test]
fn damaged_idgen_worker_file_counts_as_a_former_pool() {
    let (server, [mut client]) = builder().start_with_clients();
    assert_eq!(worker_id_of(draw(&mut client)), 0);
    let path = server.data_dir().join("idgen_worker");
    assert!(!path.exists(), "the server never had a pool");
    std::fs::write(&path, "idgen worker 1\n").expect("the data directory is writable");
    server.restart();
    let error = expect_error(&mut server.client(), "SELECT snowflake_next()", "55000");
    assert_eq!(error.message(), HAD_A_POOL);
    assert!(error.detail().is_some_and(|detail| detail.contains("\"idgen_worker\" could not be read")), "{error:?}");
    server.wait_for(PATIENCE, "the log line", || server.log().contains("could not read file \"idgen_worker\""));
    assert!(server.log().contains("HINT:  Set idgen.worker_id, or idgen.worker_pool"), "the log has a hint");
    server.restart_with("idgen.worker_id", "5");
    assert_eq!(worker_id_of(draw(&mut server.client())), 5, "a worker id that is set does not need the file");

    let coordinator = coordinator(builder(), 4, "1 hour");
    set_pool(&server, POOL, &coordinator.conninfo());
    Worker::wait_for_state(&server, "leased");
    let written = std::fs::read_to_string(&path).expect("the file exists");
    assert!(written.contains("\npool servers\n"), "{written}");
}

#[test]
fn copied_server_does_not_use_0_and_keeps_the_term_of_its_origin() {
    let coordinator = coordinator(builder(), 4, "1 hour");
    let server = holder_of_0(&coordinator);
    let copy = server.copy();
    let mut other = copy.client();
    assert_ne!(worker_id_of(draw(&mut other)), 0);
    let held = "SELECT count(*) FROM idgen.workers WHERE state = 'held'";
    assert_eq!(value::<i64>(&mut coordinator.client(), held), 2, "the origin's and the copy's");
    assert_eq!(Worker::of(&mut server.client()).changes, 1);

    // A copy of a copy, without a pool from the start.
    server.set_conf("idgen.worker_pool", "");
    let alone = server.copy();
    assert_eq!(expect_error(&mut alone.client(), "SELECT snowflake_next()", "55000").message(), HAD_A_POOL);
}

#[test]
fn worker_id_set_by_hand_is_used_until_the_pool_grants_it() {
    let coordinator = coordinator(builder(), 16, "1 hour");
    let (server, [mut client]) = builder().conf("idgen.worker_id", "7").start_with_clients();
    let mut seen = draw_some(&mut client);
    coordinator.stop(Stop::Fast);
    set_pool(&server, POOL, &coordinator.conninfo());
    Worker::wait_until(&server, "failures", |worker| worker.failures > 2);
    seen.extend(draw_some(&mut client));
    // Also after a crash: no pool has granted it yet.
    server.restart_by(Stop::Immediate);
    client = server.client();
    seen.extend(draw_some(&mut client));
    assert_eq!(Worker::of(&mut client).state, "set");
    coordinator.start_again();
    let leased = Worker::wait_for_state(&server, "leased");
    seen.extend(draw_some(&mut client));
    assert!(seen.iter().all(|id| worker_id_of(*id) == 7) && leased.worker_id == Some(7), "{leased:?}");
    assert_increasing(&seen);

    // From now on the pool is in charge of it.
    coordinator.stop(Stop::Fast);
    server.restart_by(Stop::Immediate);
    expect_error(&mut server.client(), "SELECT snowflake_next()", "55000");
    // No longer once the server has released it and it is set by hand again.
    coordinator.start_again();
    Worker::wait_for_state(&server, "leased");
    set_pool(&server, "", "");
    Worker::wait_for_state(&server, "set");
    server.restart_by(Stop::Immediate);
    assert_eq!(worker_id_of(draw(&mut server.client())), 7);
}

#[test]
fn worker_id_set_by_hand_that_another_server_holds_is_replaced_and_logged() {
    let coordinator = coordinator(builder(), 16, "1 hour");
    let _other = holder_of_0(&coordinator);
    let (server, [mut client]) = builder().conf("idgen.worker_id", "0").start_with_clients();
    draw(&mut client);
    set_pool(&server, POOL, &coordinator.conninfo());
    let leased = Worker::wait_for_state(&server, "leased");
    assert_eq!(leased.worker_id, Some(1));
    assert_eq!(worker_id_of(draw(&mut client)), 1);
    let warning = "WARNING:  worker id 0, which idgen.worker_id sets, is not free in pool \"servers\"";
    assert!(server.log().contains(warning), "{}", server.log());
}

/// The keeper connects to no database, so it can run from the start on.
#[test]
fn keeper_blocks_neither_create_database_nor_a_smart_stop() {
    let (server, [mut client]) = builder().start_with_clients();
    assert_eq!(Worker::of(&mut client).keeper, None, "no keeper without a pool");
    set_pool(&server, POOL, &server.conninfo());
    Worker::wait_until(&server, "the keeper", |worker| worker.keeper.is_some());
    execute(&mut client, "SET statement_timeout = '10s'");
    execute(&mut client, "CREATE DATABASE made TEMPLATE template1");
    execute(&mut client, "DROP DATABASE made");
    drop(client);
    server.stop(Stop::Smart);
}

const YEAR_MS: i64 = 365 * 86_400_000;

/// The session's request reaches no coordinator. Later the server needs another lease, which is not refused for the sake of
/// that request.
#[test]
fn request_of_a_session_under_a_wrong_clock_does_not_outlive_the_wrong_clock() {
    let coordinator = coordinator(builder(), 4, "1 hour");
    let (server, [mut client]) = pooled(&coordinator.conninfo()).fake_clock().start_with_clients();
    let before = draw(&mut client);
    // The keeper, which renews once in a while, does not notice.
    end_token(&coordinator, 0);
    coordinator.stop(Stop::Fast);
    server.clock().set_offset_ms(YEAR_MS);
    expect_error(&mut client, "SELECT snowflake_next()", "55000");
    server.clock().set_offset_ms(0);
    Worker::wait_until(&server, "another failure", |worker| worker.failures > 1);
    coordinator.start_again();
    Worker::wait_until(&server, "another lease", |worker| worker.changes > 1 || worker.worker_id != Some(0));
    let after = draw(&mut client);
    assert!(after > before, "{after} after {before}");
    let is_near = format!("SELECT snowflake_time({after}) < clock_timestamp() + interval '1 day'");
    assert!(value::<bool>(&mut client, &is_near), "{after} is far ahead");
}
