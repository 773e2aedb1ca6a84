//! What a server may use of a grant: what the coordinator has confirmed, whatever else it says.

use idgen_testkit::grants::{Seen, assert_ids_granted, rectangles, time_us_of};
use idgen_testkit::sql::{PATIENCE, execute, expect_error, ids, value};
use idgen_testkit::{Stop, pause};

use super::{Worker, coordinator, draw, one_of};
use crate::{POOL, builder, pooled};

const ROWS: &str = "SELECT count(*) FROM idgen.worker_number";

/// The wait for the standby is cancelled again and again, and no warning reaches the keeper.
#[test]
fn what_the_standby_of_the_coordinator_does_not_have_is_not_used() {
    let primary = coordinator(builder(), 24, "5 s");
    primary.execute("CREATE ROLE keeper LOGIN; ALTER ROLE keeper SET client_min_messages = error");
    primary.execute("GRANT SELECT ON idgen.lease_definition TO keeper");
    let standby = primary.standby_builder().synchronous().start();
    let places = [&primary, &standby].map(|cluster| (cluster.host(), cluster.port().to_owned()));
    standby.stop(Stop::Fast);
    let server = pooled(&one_of(&places).replace("user=postgres", "user=keeper")).start_with_extension();
    let mut client = server.client();
    let mut impatient = primary.client();
    let cancel = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
                  WHERE usename = 'keeper' AND (wait_event = 'SyncRep' OR query LIKE '%worker_confirm%')";
    server.wait_for(PATIENCE, "failures", || {
        execute(&mut impatient, cancel);
        Worker::of(&mut client).failures > 8
    });
    expect_error(&mut client, "SELECT snowflake_next()", "55000");
    assert_eq!(Worker::of(&mut client).number, None);
    assert_eq!(value::<i64>(&mut impatient, ROWS), 1, "all tries are for one worker id");
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    assert_eq!(value::<i64>(&mut impatient, waiting), 0, "no session waits for what nothing ends");

    primary.kill9_postmaster();
    standby.start_again();
    standby.promote();
    Worker::wait_for_state(&server, "leased");
    let seen = ids(&mut client, "SELECT snowflake_next_many(10000)");
    assert_ids_granted(&rectangles(&mut standby.client()), &[Seen { data_dir: server.data_dir(), ids: seen }]);
}

#[test]
fn an_unconfirmed_worker_id_is_confirmed_when_the_standby_is_back() {
    let primary = coordinator(builder(), 24, "5 s");
    let standby = primary.standby_builder().synchronous().start();
    let server = pooled(&primary.connect_string("postgres", "postgres")).start_with_extension();
    let held = Worker::wait_for_state(&server, "leased");
    let keeper = pause(held.keeper.expect("it has leased"));
    primary.execute(&format!("SELECT lease_revoke('{POOL}')"));
    standby.stop(Stop::Fast);
    keeper.resume();
    Worker::wait_until(&server, "failures", |worker| worker.failures > held.failures + 5);
    standby.start_again();
    Worker::wait_until(&server, "another term", |worker| worker.state == "leased" && worker.from_us > held.from_us);
    draw(&mut server.client());
    assert_eq!(value::<i64>(&mut primary.client(), ROWS), 2, "the one that was revoked, and one for all the tries");
}

#[test]
fn warnings_that_are_not_about_the_grant_do_no_harm() {
    let coordinator = coordinator(builder(), 4, "1 s");
    coordinator.execute(
        "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE WARNING 'database must be vacuumed within 1000000 transactions'; RETURN NULL; END $$;
         CREATE TRIGGER warn AFTER INSERT OR UPDATE ON idgen.worker_number FOR EACH ROW EXECUTE FUNCTION warn()",
    );
    let server = pooled(&coordinator.connect_string("postgres", "postgres")).start_with_extension();
    let worker = Worker::wait_until(&server, "renewals", |worker| worker.renewals > 3);
    assert_eq!((worker.failures, worker.changes), (0, 1));
    draw(&mut server.client());
    assert_eq!(value::<i64>(&mut coordinator.client(), ROWS), 1);
}

/// Two processes with one token: a copy of the server's memory, which here is a session that renews as the copy would.
#[test]
fn of_two_holders_of_one_token_none_uses_what_the_other_renewed() {
    let coordinator = coordinator(builder(), 4, "3 s");
    let server = pooled(&coordinator.connect_string("postgres", "postgres")).start_with_extension();
    let mut client = server.client();
    draw(&mut client);
    let keeper = pause(Worker::of(&mut client).keeper.expect("it has leased"));
    let before = Worker::of(&mut client);
    let renew = format!(
        "SELECT (extract(epoch FROM r.not_after) * 1000000)::bigint
         FROM idgen.worker_number AS n, worker_renew('{POOL}', n.token, n.not_after) AS r"
    );
    let twins_us: i64 = value(&mut coordinator.client(), &renew);
    keeper.resume();
    let until_us = before.until_us.expect("it is leased");
    assert!(twins_us > until_us);
    let mut seen = Vec::new();
    server.wait_for(PATIENCE, "another term", || {
        seen.extend(client.query("SELECT snowflake_next()", &[]).iter().flatten().map(|row| row.get::<_, i64>(0)));
        Worker::of(&mut client).from_us > before.from_us
    });
    seen.push(draw(&mut client));
    let of_twin = |id: &&i64| (until_us..twins_us).contains(&time_us_of(**id));
    assert_eq!(seen.iter().filter(of_twin).count(), 0, "ids in what the twin has renewed");
    assert!(server.log().contains("was renewed by another holder of its token"), "{}", server.log());
    assert_ids_granted(&rectangles(&mut coordinator.client()), &[Seen { data_dir: server.data_dir(), ids: seen }]);
}

/// Each start gives back what the last one held. Its id times are to come, so another worker id goes first.
#[test]
fn a_server_that_crashes_again_and_again_does_not_use_up_its_pool() {
    let coordinator = coordinator(builder(), 2, "2 s");
    let server = pooled(&coordinator.connect_string("postgres", "postgres")).conf("idgen.clock_window", "100 ms");
    let server = server.conf("idgen.max_drift", "100 ms").start_with_extension();
    let mut seen = vec![draw(&mut server.client())];
    for _ in 0..10 {
        server.stop(Stop::Immediate);
        server.start_again();
        seen.push(draw(&mut server.client()));
    }
    idgen_testkit::ids::assert_increasing(&seen);
    let held = "SELECT count(*) FROM idgen.workers WHERE state = 'held'";
    assert_eq!(value::<i64>(&mut coordinator.client(), held), 1, "a crash leaves no worker id held");
    assert_ids_granted(&rectangles(&mut coordinator.client()), &[Seen { data_dir: server.data_dir(), ids: seen }]);
}

#[test]
fn a_pool_that_was_moved_goes_on_under_its_new_name_with_the_same_term() {
    let coordinator = coordinator(builder(), 4, "1 min");
    coordinator.execute("SELECT lease_define('others', 4, '1 min')");
    let server = pooled(&coordinator.connect_string("postgres", "postgres")).start_with_extension();
    let mut client = server.client();
    let mut seen = ids(&mut client, "SELECT snowflake_next_many(1000)");
    coordinator.execute(&format!("SELECT worker_move('{POOL}', 'others')"));
    server.set_conf("idgen.worker_pool", "others");
    server.reload();
    Worker::wait_until(&server, "a renewal under the new name", |worker| worker.renewals > 0);
    seen.extend(ids(&mut client, "SELECT snowflake_next_many(1000)"));
    let worker = Worker::of(&mut client);
    assert_eq!((worker.number, worker.changes), (Some(0), 1));
    let tokens = "SELECT count(DISTINCT token) FROM told";
    assert_eq!(value::<i64>(&mut coordinator.client(), tokens), 1);
    idgen_testkit::ids::assert_increasing(&seen);
    // It is given back under that name.
    server.stop(Stop::Fast);
    let held = "SELECT count(*) FROM idgen.workers WHERE state = 'held'";
    assert_eq!(value::<i64>(&mut coordinator.client(), held), 0);
}

/// A server that starts again under a worker id set by hand goes by the file: it says whether a pool is in charge.
#[test]
fn a_worker_id_that_cannot_be_remembered_is_not_used() {
    let coordinator = coordinator(builder(), 4, "3 s");
    let server = pooled(&coordinator.connect_string("postgres", "postgres")).start_with_extension();
    let before = Worker::wait_for_state(&server, "leased");
    let in_the_way = server.data_dir().join("idgen_worker.tmp");
    std::fs::create_dir(&in_the_way).expect("nothing is there");
    coordinator.execute(&format!("SELECT lease_revoke('{POOL}', {})", before.number.expect("leased")));
    let failing = Worker::wait_until(&server, "three tries", |worker| worker.failures >= before.failures + 3);
    assert_eq!(failing.from_us, before.from_us);
    std::fs::remove_dir(&in_the_way).expect("it is empty");
    Worker::wait_until(&server, "another lease", |worker| worker.from_us != before.from_us);
}
