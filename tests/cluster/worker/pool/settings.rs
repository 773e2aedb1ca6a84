//! The settings of a pool and their changes, and what is said when something goes wrong.

use idgen_testkit::Stop;
use idgen_testkit::sql::{PATIENCE, check, execute, expect_error, hint, ids, row, value};

use super::{DRAW, WORKER, ask_keepers_for_a_password, coordinator, state, wait_for_state};
use crate::{builder, pooled, set_pool};

#[test]
fn a_pool_takes_the_place_of_the_setting_and_the_setting_that_of_the_pool() {
    let cluster = builder().conf("idgen.worker_id", "7").start_with_extension();
    cluster.execute("SELECT lease_define('servers', 4, '1 min'), lease_define('others', 4, '1 min')");
    let mut client = cluster.client();
    assert_eq!(value::<i32>(&mut client, WORKER), 7);
    assert_eq!(state(&mut client), "set");
    let mut seen = ids(&mut client, DRAW);

    set_pool(&cluster, "servers", &cluster.conninfo());
    // Nothing waits for the keeper: the worker id is the one that was set until another is leased.
    seen.extend(ids(&mut client, DRAW));
    wait_for_state(&cluster, "leased");
    assert_eq!(value::<i32>(&mut client, WORKER), 0);
    seen.extend(ids(&mut client, DRAW));
    let message = format!(
        "this server is worker 0 of datacenter 0, leased from pool \"servers\" of the coordinator at {}:5432",
        cluster.host()
    );
    assert_eq!(check(&mut client, "worker"), (true, message));
    let held = "SELECT string_agg(format('%s %s %s', pool, worker_id, state), ', ' ORDER BY pool) FROM idgen.workers";
    assert_eq!(value::<String>(&mut client, held), "servers 0 held");

    cluster.execute("SELECT worker_acquire('others', ttl => '1 min')");
    set_pool(&cluster, "others", &cluster.conninfo());
    cluster.wait_for(PATIENCE, "the other pool's number", || value::<i32>(&mut client, WORKER) == 1);
    seen.extend(ids(&mut client, DRAW));
    // The old one is given back when ids are under the new one.
    let is_given_back = || value::<String>(&mut client, held) == "others 0 held, others 1 held, servers 0 free";
    cluster.wait_for(PATIENCE, "the first pool's worker id to be given back", is_given_back);

    set_pool(&cluster, "", "");
    wait_for_state(&cluster, "set");
    assert_eq!(value::<i32>(&mut client, WORKER), 7);
    seen.extend(ids(&mut client, DRAW));
    assert_eq!(value::<String>(&mut client, held), "others 0 held, others 1 free, servers 0 free");
    assert!(seen.is_sorted_by(|a, b| a < b), "ids rise over changes of the number: {seen:?}");
    let keeper: Option<i32> = value(&mut client, "SELECT pid FROM idgen.stat_worker");
    assert_eq!(keeper, None, "nothing is to be kept any more");
}

/// What was given back says how far it was used: the next holder begins right there, and not where the lease would have ended.
#[test]
fn a_number_that_is_given_back_can_be_used_at_once() {
    let coordinator = coordinator(1, "1 hour");
    let cluster = builder().conf("idgen.worker_id", "9").start_with_extension();
    set_pool(&cluster, "servers", &coordinator.conninfo());
    let mut client = cluster.client();
    let last = ids(&mut client, DRAW)[0];
    set_pool(&cluster, "", "");
    wait_for_state(&cluster, "set");
    let mut there = coordinator.client();
    let sql = format!(
        "SELECT not_before > snowflake_time({last}), not_before < now() + interval '1 min' FROM worker_acquire('servers')"
    );
    let next = row(&mut there, &sql);
    assert_eq!((next.get::<_, bool>(0), next.get::<_, bool>(1)), (true, true));
}

/// Where no number is set, 0 is not taken for it: the pool may have given that to another.
#[test]
fn a_server_without_its_pool_and_without_a_setting_has_no_number() {
    let coordinator = coordinator(4, "1 min");
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    assert_eq!(value::<i32>(&mut client, WORKER), 0);
    set_pool(&cluster, "no such pool", &coordinator.conninfo());
    cluster.wait_for(PATIENCE, "a failure", || value(&mut client, "SELECT failures > 0 FROM idgen.stat_worker"));
    expect_error(&mut client, DRAW, "55000");
    let no_pool = "pool \"no such pool\": ";
    assert!(check(&mut client, "worker").1.contains(no_pool), "{:?}", check(&mut client, "worker"));

    set_pool(&cluster, "servers", &coordinator.conninfo());
    wait_for_state(&cluster, "leased");
    execute(&mut client, DRAW);
    set_pool(&cluster, "", "");
    wait_for_state(&cluster, "waiting");
    let message = "this server has no worker id: it had a pool, idgen.worker_pool names none any more, and idgen.worker_id is not set";
    assert_eq!(check(&mut client, "worker"), (false, message.to_owned()));
    // There is nothing to wait for: less than the patience with a keeper's first try.
    execute(&mut client, "SET statement_timeout = '4s'");
    let error = expect_error(&mut client, DRAW, "55000");
    assert_eq!(error.message(), "this server has no worker id any more");
    assert!(hint(&error).starts_with("Set idgen.worker_id and restart"), "{error:?}");
    cluster.set_conf("idgen.worker_id", "9");
    cluster.restart();
    assert_eq!(value::<i32>(&mut cluster.client(), WORKER), 9);
}

/// Each has its own message; none of them names a password; and ids go on as soon as it is mended.
#[test]
fn what_goes_wrong_is_said_with_since_when_and_why() {
    let coordinator = coordinator(1, "1 min");
    coordinator.execute("CREATE DATABASE empty");
    ask_keepers_for_a_password(&coordinator);
    let cluster = builder().start_with_extension();
    let good = coordinator.conninfo();
    let of = |database: &str, user: &str| coordinator.connect_string(database, user);
    for (pool, conninfo, why) in [
        ("servers", String::new(), "idgen.coordinator is not set"),
        ("servers", "host=/nowhere password=secret-1".to_owned(), "/nowhere"),
        (
            "servers",
            "host=/nowhere password=secret-2 secret-3".to_owned(),
            "no connection string that libpq understands",
        ),
        ("servers", "postgresql://a:secret-4@[::1".to_owned(), "no connection string that libpq understands"),
        ("servers", format!("{good} passfile=/nowhere sslmode=wrong"), "invalid sslmode"),
        ("servers", of("postgres", "keeper") + " password=secret-6", "password authentication failed"),
        ("servers", of("nowhere", "postgres"), "database \"nowhere\" does not exist"),
        ("servers", of("empty", "postgres"), "the database has no extension idgen"),
        ("nothing", good.clone(), "worker pool \"nothing\" does not exist"),
    ] {
        let size = cluster.log().len();
        // As at a start: without a number, and not with that of the setting.
        cluster.set_conf("idgen.worker_pool", pool);
        cluster.set_conf("idgen.coordinator", &conninfo);
        cluster.restart();
        let mut client = cluster.client();
        let error = expect_error(&mut client, DRAW, "55000");
        assert_eq!(error.message(), format!("this server has no worker id yet from pool \"{pool}\""));
        let detail = error.detail().expect("why");
        assert!(
            detail.starts_with("To ask the coordinator has failed since 2") && detail.contains(why),
            "{conninfo}: {detail}"
        );
        assert!(hint(&error).contains("idgen.stat_worker"), "{error:?}");
        let shown = "SELECT state, failing_since <= now(), last_error FROM idgen.stat_worker";
        let shown = row(&mut client, shown);
        assert_eq!((shown.get::<_, String>(0), shown.get::<_, bool>(1)), ("waiting".to_owned(), true));
        assert!(shown.get::<_, String>(2).contains(why));
        let (is_well, message) = check(&mut client, "worker");
        assert!(!is_well, "{message}");
        let told = format!("{error:?} {} {message}", shown.get::<_, String>(2));
        assert!(!told.contains("secret"), "{told}");
        // The server's own settings are PostgreSQL's to log, when they change.
        let logged =
            cluster.log()[size..].lines().filter(|line| !line.contains("parameter \"")).collect::<Vec<_>>().join("\n");
        assert!(logged.contains("could not lease a worker id") && !logged.contains("secret"), "{logged}");
    }
    set_pool(&cluster, "servers", &good);
    let mut client = cluster.client();
    cluster.wait_for(PATIENCE, "ids", || client.query_one(DRAW, &[]).is_ok());
    assert_eq!(state(&mut client), "leased");
}

/// A number that the layout has no room for is an error with a way out, and another layout works.
#[test]
fn a_number_too_large_for_a_layout_is_an_error_there_and_nowhere_else() {
    let coordinator = coordinator(9, "1 min");
    // 0 to 7 are taken: js53 has room for those.
    coordinator.execute("SELECT worker_acquire('servers', ttl => '1 min') FROM generate_series(1, 8)");
    let cluster = pooled(&coordinator.conninfo()).start_with_extension();
    let mut client = cluster.client();
    let error = expect_error(&mut client, "SELECT snowflake_next('js53')", "22003");
    assert_eq!(hint(&error), "Use a layout with more bits for it, or a pool with fewer slots.");
    assert_eq!(value::<i32>(&mut client, WORKER), 8);
}

/// Ids and clocks can be ahead of the coordinator's clock by more than a lease lasts: after a crash, after ids of others were
/// observed, and where this server's clock is wrong. The lease is asked for from there on, and no id waits for its time to come.
#[test]
fn a_server_that_is_ahead_of_the_coordinator_goes_on() {
    let coordinator = coordinator(4, "2 s");
    coordinator.set_conf("idgen.worker_max_lead", "1d");
    coordinator.reload();
    let cluster = pooled(&coordinator.conninfo()).fake_clock().start_with_extension();
    let mut client = cluster.client();
    let mut seen = ids(&mut client, DRAW);
    // After a crash, ids begin up to 5.5 s ahead of the clock.
    cluster.stop(Stop::Immediate);
    cluster.start_again();
    client = cluster.client();
    seen.extend(ids(&mut client, DRAW));
    let lead: f64 = value(&mut client, "SELECT extract(epoch FROM lead)::float8 FROM idgen.stat_clock");
    assert!(lead > 2.0, "{lead} s is no more than the lease lasts");

    let far = "SELECT snowflake_observe(snowflake_make(clock_timestamp() + interval '12 h', 0, 0))";
    client.query(far, &[]).unwrap();
    seen.extend(ids(&mut client, DRAW));

    // By the wall clock, and further ahead than what was observed.
    cluster.clock().set_offset_ms(20 * 3_600_000);
    seen.extend(ids(&mut client, "SELECT snowflake_next_many(10000)"));
    assert!(seen.is_sorted_by(|a, b| a < b));
    let last = seen[seen.len() - 1];
    let interval = "SELECT snowflake_time($1) >= not_before AND snowflake_time($1) < not_after FROM idgen.stat_worker";
    assert!(client.query_one(interval, &[&last]).unwrap().get::<_, bool>(0), "the id is inside of the lease");
    assert_eq!(state(&mut client), "leased");

    // No rectangle reaches further ahead than the coordinator lets it.
    cluster.clock().set_offset_ms(72 * 3_600_000);
    let error = expect_error(&mut client, DRAW, "55000");
    assert!(error.detail().is_some_and(|detail| detail.contains("idgen.worker_max_lead")), "{error:?}");
    cluster.clock().set_offset_ms(0);
    seen.extend(ids(&mut client, DRAW));
    assert!(seen.is_sorted_by(|a, b| a < b));

    // Nor for ids that were observed, though the clock is right and the lease lasts.
    let too_far = "SELECT snowflake_observe(snowflake_make(clock_timestamp() + interval '48 h', 0, 0), true)";
    client.query(too_far, &[]).unwrap();
    let error = expect_error(&mut client, DRAW, "55000");
    assert!(error.message().contains(" ends before the next id, at "), "{error:?}");
    assert!(!check(&mut client, "worker").0);
}

/// A role that may not act for the one that has leased the number takes another.
#[test]
fn a_keeper_under_another_role_leases_anew() {
    let coordinator = coordinator(4, "1 min");
    coordinator.execute("CREATE ROLE other LOGIN");
    let cluster = pooled(&coordinator.conninfo()).start_with_extension();
    let mut client = cluster.client();
    assert_eq!(value::<i32>(&mut client, WORKER), 0);
    set_pool(&cluster, "servers", &coordinator.connect_string("postgres", "other"));
    cluster.wait_for(PATIENCE, "another number", || value::<i32>(&mut client, WORKER) == 1);
    assert_eq!(row(&mut client, "SELECT failures, changes FROM idgen.stat_worker").get::<_, i64>(1), 2);
}

/// What a pool lays down anew holds from the next renewal on.
#[test]
fn a_changed_ttl_of_the_pool_is_taken_over() {
    let coordinator = coordinator(4, "2 s");
    let cluster = pooled(&coordinator.conninfo()).start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, DRAW);
    coordinator.execute("SELECT lease_define('servers', 4, '1 hour')");
    let is_longer = "SELECT not_after > now() + interval '50 min' FROM idgen.stat_worker";
    cluster.wait_for(PATIENCE, "the longer lease", || value(&mut client, is_longer));
}

/// The limit of what is asked for is no limit of what was defined before: the servers of a pool do not stop by it.
#[test]
fn a_least_ttl_above_that_of_the_pool_stops_no_renewals() {
    let coordinator = coordinator(4, "2 s");
    let cluster = pooled(&coordinator.conninfo()).start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, DRAW);
    coordinator.set_conf("idgen.lease_min_ttl", "1h");
    coordinator.reload();
    let renewals = "SELECT renewals FROM idgen.stat_worker";
    let before: i64 = value(&mut client, renewals);
    cluster.wait_for(PATIENCE, "renewals", || value::<i64>(&mut client, renewals) > before + 2);
    assert_eq!(value::<i64>(&mut client, "SELECT failures FROM idgen.stat_worker"), 0);
    cluster.restart();
    assert_eq!(value::<i32>(&mut cluster.client(), WORKER), 0);
}

/// A worker id that is no lease is compared with the pools of the database that is asked.
#[test]
fn the_check_compares_a_worker_id_that_is_no_lease_with_the_pools_here() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    cluster.execute("SELECT lease_define('servers', 4, '1 min')");
    let (is_well, message) = check(&mut client, "worker");
    assert!(!is_well && message.starts_with("idgen.worker_id is not set and acts as 0: set it"), "{message}");
    cluster.execute("SELECT worker_acquire('servers', ttl => '1 min')");
    let grants = "pool \"servers\" in this database grants the same worker id to other servers: lease it from there with idgen.worker_pool, or set one that no pool has";
    let (is_well, message) = check(&mut client, "worker");
    let unset = "this server is worker 0 of datacenter 0, as idgen.worker_id is not set and acts as 0; ";
    assert_eq!((is_well, message), (false, format!("{unset}{grants}")));
    for (worker, is_granted) in [("3", true), ("4", false)] {
        cluster.set_conf("idgen.worker_id", worker);
        cluster.restart();
        let (is_well, message) = check(&mut cluster.client(), "worker");
        let set = format!("this server is worker {worker} of datacenter 0, as idgen.worker_id is set; ");
        let rest = if is_granted { grants } else { "no pool in this database grants it" };
        assert_eq!((is_well, message), (!is_granted, format!("{set}{rest}")));
    }
}
