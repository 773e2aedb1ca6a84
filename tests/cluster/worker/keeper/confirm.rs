//! A server uses only what the coordinator has confirmed of a grant.

use idgen_testkit::grants::time_us_of;
use idgen_testkit::sql::{PATIENCE, execute, expect_error, ids, value};
use idgen_testkit::{Stop, pause};

use super::{
    Worker, any_of, assert_granted, coordinator, coordinator_and_server, draw, draw_some, end_token, rectangles,
};
use crate::{POOL, builder, pooled};

const ROWS: &str = "SELECT count(*) FROM idgen.worker_id WHERE acquired_at IS NOT NULL";

/// The wait for the standby is cancelled again and again, and warnings do not reach the keeper.
#[test]
fn grant_that_the_standby_lacks_is_not_used() {
    let primary = coordinator(builder(), 24, "5 s");
    primary.execute("CREATE ROLE keeper LOGIN; ALTER ROLE keeper SET client_min_messages = error");
    let standby = primary.standby_builder().synchronous().start();
    let addresses = [&primary, &standby].map(|cluster| (cluster.host(), cluster.port().to_owned()));
    standby.stop(Stop::Fast);
    let (server, [mut client]) =
        pooled(&any_of(&addresses).replace("user=postgres", "user=keeper")).start_with_clients();
    let mut impatient = primary.client();
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
                  WHERE usename = 'keeper' AND (wait_event = 'SyncRep' OR query LIKE '%worker_confirm%')";
    server.wait_for(PATIENCE, "failures", || {
        execute(&mut impatient, cancel);
        Worker::of(&mut client).failures > 8
    });
    expect_error(&mut client, "SELECT snowflake_next()", "55000");
    assert_eq!(Worker::of(&mut client).worker_id, None);
    assert_eq!(value::<i64>(&mut impatient, ROWS), 1, "all attempts are for one worker id");
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    assert_eq!(value::<i64>(&mut impatient, waiting), 0, "no session is left waiting for the standby");

    primary.kill9_postmaster();
    standby.start_again();
    standby.promote();
    Worker::wait_for_state(&server, "leased");
    let seen = ids(&mut client, "SELECT snowflake_next_many(10000)");
    assert_granted(&standby, [(&server, seen)]);
}

#[test]
fn unconfirmed_worker_id_is_confirmed_when_the_standby_is_back() {
    let primary = coordinator(builder(), 24, "5 s");
    let standby = primary.standby_builder().synchronous().start();
    let server = pooled(&primary.conninfo()).start_with_extension();
    let held = Worker::wait_for_state(&server, "leased");
    let keeper = pause(held.keeper.expect("the server has a keeper"));
    end_token(&primary, 0);
    standby.stop(Stop::Fast);
    keeper.resume();
    Worker::wait_until(&server, "failures", |worker| worker.failures > held.failures + 5);
    standby.start_again();
    Worker::wait_until(&server, "another term", |worker| worker.state == "leased" && worker.from_us > held.from_us);
    draw(&mut server.client());
    assert_eq!(value::<i64>(&mut primary.client(), ROWS), 2, "the lost one, and one for all attempts");
}

#[test]
fn keeper_ignores_unrelated_warnings() {
    let coordinator = coordinator(builder(), 4, "1 s");
    coordinator.execute(
        "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE WARNING 'database must be vacuumed within 1000000 transactions'; RETURN NULL; END $$;
         CREATE TRIGGER warn AFTER INSERT OR UPDATE ON idgen.worker_id FOR EACH ROW EXECUTE FUNCTION warn()",
    );
    let server = pooled(&coordinator.conninfo()).start_with_extension();
    let worker = Worker::wait_until(&server, "renewals", |worker| worker.renewals > 3);
    assert_eq!((worker.failures, worker.changes), (0, 1));
    draw(&mut server.client());
    assert_eq!(value::<i64>(&mut coordinator.client(), ROWS), 1);
}

/// A copy of the server's memory has the same token. Here a session renews as the copy would.
#[test]
fn server_does_not_use_a_renewal_by_another_holder_of_its_token() {
    let (coordinator, server) = coordinator_and_server(4, "3 s");
    let mut client = server.client();
    draw(&mut client);
    let keeper = pause(Worker::of(&mut client).keeper.expect("the server has a keeper"));
    let before = Worker::of(&mut client);
    let renew = format!(
        "SELECT (extract(epoch FROM r.not_after) * 1000000)::bigint
         FROM idgen.worker_id AS n, worker_renew('{POOL}', n.token, n.not_after) AS r
         WHERE n.token IS NOT NULL"
    );
    let others_us: i64 = value(&mut coordinator.client(), &renew);
    keeper.resume();
    let until_us = before.until_us.expect("the server has a lease");
    assert!(others_us > until_us);
    let mut seen = Vec::new();
    server.wait_for(PATIENCE, "another term", || {
        seen.extend(client.query("SELECT snowflake_next()", &[]).iter().flatten().map(|row| row.get::<_, i64>(0)));
        Worker::of(&mut client).from_us > before.from_us
    });
    seen.push(draw(&mut client));
    let of_other = |id: &&i64| (until_us..others_us).contains(&time_us_of(**id));
    assert_eq!(seen.iter().filter(of_other).count(), 0, "ids in the other holder's renewal");
    assert!(server.log().contains("was renewed by another holder of its token"), "{}", server.log());
    assert_granted(&coordinator, [(&server, seen)]);
}

/// Each start releases the worker id of the one before. Its id times lie ahead, so another worker id is preferred.
#[test]
fn repeated_crashes_do_not_exhaust_the_pool() {
    let coordinator = coordinator(builder(), 2, "2 s");
    let server = pooled(&coordinator.conninfo()).conf("idgen.clock_window", "100 ms");
    let server = server.conf("idgen.max_drift", "100 ms").start_with_extension();
    let mut seen = draw_some(&mut server.client());
    for _ in 0..10 {
        server.restart_by(Stop::Immediate);
        seen.extend(draw_some(&mut server.client()));
    }
    idgen_testkit::ids::assert_increasing(&seen);
    let held = "SELECT count(*) FROM idgen.workers WHERE state = 'held'";
    assert_eq!(value::<i64>(&mut coordinator.client(), held), 1, "a crash leaves no worker id held");
    // An answer that comes too late costs one more.
    assert!(rectangles(&mut coordinator.client()).len() >= 11, "a token for each start");
    assert_granted(&coordinator, [(&server, seen)]);
}

#[test]
fn moved_worker_id_keeps_its_token_under_the_new_pool() {
    let coordinator = coordinator(builder(), 4, "1 min");
    coordinator.execute("SELECT worker_pool_define('others', count => 4, ttl => '1 min')");
    let (server, [mut client]) = pooled(&coordinator.conninfo()).start_with_clients();
    let mut seen = ids(&mut client, "SELECT snowflake_next_many(1000)");
    coordinator.execute(&format!("SELECT worker_move('{POOL}', 'others')"));
    server.reload_with("idgen.worker_pool", "others");
    Worker::wait_until(&server, "a renewal under the new name", |worker| worker.renewals > 0);
    seen.extend(ids(&mut client, "SELECT snowflake_next_many(1000)"));
    let worker = Worker::of(&mut client);
    assert_eq!((worker.worker_id, worker.changes), (Some(0), 1));
    let tokens = "SELECT count(DISTINCT token) FROM recorded";
    assert_eq!(value::<i64>(&mut coordinator.client(), tokens), 1);
    idgen_testkit::ids::assert_increasing(&seen);
    // The stop releases it under that name.
    server.stop(Stop::Fast);
    let held = "SELECT count(*) FROM idgen.workers WHERE state = 'held'";
    assert_eq!(value::<i64>(&mut coordinator.client(), held), 0);
}

/// The file idgen_worker tells a later start whether a pool is in charge of the worker id.
#[test]
fn worker_id_is_not_used_if_idgen_worker_cannot_be_written() {
    let (coordinator, server) = coordinator_and_server(4, "3 s");
    let before = Worker::wait_for_state(&server, "leased");
    let obstacle = server.data_dir().join("idgen_worker.tmp");
    std::fs::create_dir(&obstacle).expect("the name is free");
    end_token(&coordinator, before.worker_id.expect("the server has a lease"));
    let failing = Worker::wait_until(&server, "three attempts", |worker| worker.failures >= before.failures + 3);
    assert_eq!(failing.from_us, before.from_us);
    std::fs::remove_dir(&obstacle).expect("the directory is empty");
    Worker::wait_until(&server, "another lease", |worker| worker.from_us != before.from_us);
}

/// An error does not tell that the worker id is lost. The coordinator shows its token as before.
#[test]
fn worker_id_is_kept_while_its_role_may_not_renew_it() {
    let coordinator = coordinator(builder(), 24, "10 s");
    coordinator.execute("CREATE ROLE keeper LOGIN; GRANT SELECT ON idgen.worker_pool TO keeper");
    let server = pooled(&coordinator.connect_string("postgres", "keeper")).start_with_extension();
    let held = Worker::wait_for_state(&server, "leased");
    let token = || value::<i64>(&mut coordinator.client(), "SELECT token FROM idgen.workers WHERE state = 'held'");
    let granted = token();
    coordinator.execute("REVOKE EXECUTE ON FUNCTION worker_renew(text, bigint, timestamptz, timestamptz) FROM PUBLIC");
    let failing = Worker::wait_until(&server, "failures", |worker| worker.failures > held.failures + 2);
    coordinator.execute("GRANT EXECUTE ON FUNCTION worker_renew(text, bigint, timestamptz, timestamptz) TO keeper");
    Worker::wait_until(&server, "renewals", |worker| worker.renewals > failing.renewals);
    assert_eq!(token(), granted);
    let log = server.log();
    assert!(!log.contains("is lost"), "{log}");
}
