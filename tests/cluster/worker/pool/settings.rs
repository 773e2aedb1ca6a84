//! The settings of a pool, their changes, and the errors. Holders outside of a changed range renew no more, so that another
//! pool may have the freed worker ids.

use idgen_testkit::sql::{PATIENCE, check, execute, expect_error, hint, ids, row, value};
use idgen_testkit::{Cluster, Stop};

use super::{DRAW, WORKER, coordinator, require_keeper_password, state, wait_for_state};
use crate::{POOL, builder, pooled, set_pool, try_acquire};

#[test]
fn pool_overrides_idgen_worker_id_until_it_is_removed() {
    let cluster = builder().conf("idgen.worker_id", "7").start_with_extension();
    cluster.execute("SELECT worker_pool_define('servers', count => 4, ttl => '1 min'), worker_pool_define('others', count => 4, ttl => '1 min')");
    let mut client = cluster.client();
    assert_eq!(value::<i32>(&mut client, WORKER), 7);
    assert_eq!(state(&mut client), "set");
    let mut seen = ids(&mut client, DRAW);

    set_pool(&cluster, "servers", &cluster.conninfo());
    // The worker id that was set is used until another is leased.
    seen.extend(ids(&mut client, DRAW));
    wait_for_state(&cluster, "leased");
    assert_eq!(value::<i32>(&mut client, WORKER), 0);
    seen.extend(ids(&mut client, DRAW));
    let message = format!(
        "this server has worker id 0 and datacenter id 0, leased from pool \"servers\" of the coordinator at {}:5432",
        cluster.host()
    );
    assert_eq!(check(&mut client, "worker"), (true, message));
    let held = "SELECT string_agg(format('%s %s %s', pool, worker_id, state), ', ' ORDER BY pool) FROM idgen.workers";
    assert_eq!(value::<String>(&mut client, held), "servers 0 held");

    cluster.execute("SELECT worker_acquire('others', ttl => '1 min')");
    set_pool(&cluster, "others", &cluster.conninfo());
    cluster.wait_for(PATIENCE, "the other pool's worker id", || value::<i32>(&mut client, WORKER) == 1);
    seen.extend(ids(&mut client, DRAW));
    // The old one is released once ids use the new one.
    let is_given_back = || value::<String>(&mut client, held) == "others 0 held, others 1 held, servers 0 free";
    cluster.wait_for(PATIENCE, "the release of the first pool's worker id", is_given_back);

    set_pool(&cluster, "", "");
    wait_for_state(&cluster, "set");
    assert_eq!(value::<i32>(&mut client, WORKER), 7);
    seen.extend(ids(&mut client, DRAW));
    assert_eq!(value::<String>(&mut client, held), "others 0 held, others 1 free, servers 0 free");
    assert!(seen.is_sorted_by(|a, b| a < b), "ids increase over changes of the worker id: {seen:?}");
    let keeper: Option<i32> = value(&mut client, "SELECT pid FROM idgen.stat_worker");
    assert_eq!(keeper, None, "no keeper without a pool");
}

/// The release tells the last id time, so the next holder begins there and not at the end of the lease.
#[test]
fn released_worker_id_can_be_used_at_once() {
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

/// Without a setting the server does not use 0: the pool may have granted 0 to another server.
#[test]
fn server_without_its_pool_and_without_a_setting_has_no_worker_id() {
    let coordinator = coordinator(4, "1 min");
    let (cluster, [mut client]) = builder().start_with_clients();
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
    let (is_well, message) = check(&mut client, "worker");
    let removed = "this server no longer has a worker id: The server had a pool, and idgen.worker_pool is now empty. ";
    assert!(!is_well && message.starts_with(removed), "{message}");
    // The error comes at once: 4 s are less than the wait for a keeper's first attempt.
    execute(&mut client, "SET statement_timeout = '4s'");
    let error = expect_error(&mut client, DRAW, "55000");
    assert_eq!(error.message(), "this server no longer has a worker id");
    assert!(hint(&error).starts_with("Set idgen.worker_id and restart"), "{error:?}");
    cluster.restart_with("idgen.worker_id", "9");
    assert_eq!(value::<i32>(&mut cluster.client(), WORKER), 9);
}

/// Each cause has its own message, none shows a password, and ids continue once the cause is removed.
#[test]
fn lease_failure_is_reported_with_time_and_cause_and_without_passwords() {
    let coordinator = coordinator(1, "1 min");
    coordinator.execute("CREATE DATABASE empty");
    require_keeper_password(&coordinator);
    let cluster = builder().start_with_extension();
    let good = coordinator.conninfo();
    let of = |database: &str, user: &str| coordinator.connect_string(database, user);
    for (pool, conninfo, why) in [
        ("servers", String::new(), "idgen.coordinator is not set"),
        ("servers", "host=/nowhere password=secret-1".to_owned(), "/nowhere"),
        ("servers", "host=/nowhere password=secret-2 secret-3".to_owned(), "the connection string is invalid"),
        ("servers", "postgresql://a:secret-4@[::1".to_owned(), "the connection string is invalid"),
        ("servers", format!("{good} passfile=/nowhere sslmode=wrong"), "invalid sslmode"),
        ("servers", of("postgres", "keeper") + " password=secret-6", "password authentication failed"),
        ("servers", of("nowhere", "postgres"), "database \"nowhere\" does not exist"),
        ("servers", of("empty", "postgres"), "the database does not have the extension idgen"),
        ("nothing", good.clone(), "worker pool \"nothing\" does not exist"),
    ] {
        let size = cluster.log().len();
        // A restart, so that the server has no worker id from before.
        cluster.set_conf("idgen.worker_pool", pool);
        cluster.restart_with("idgen.coordinator", &conninfo);
        let mut client = cluster.client();
        let error = expect_error(&mut client, DRAW, "55000");
        assert_eq!(error.message(), format!("this server has no worker id yet from pool \"{pool}\""));
        let detail = error.detail().expect("a DETAIL with the cause");
        assert!(
            detail.starts_with("Requests to the coordinator have failed since 2") && detail.contains(why),
            "{conninfo}: {detail}"
        );
        assert!(hint(&error).contains("idgen.stat_worker"), "{error:?}");
        let shown = "SELECT state, failing_since <= now(), last_error FROM idgen.stat_worker";
        let shown = row(&mut client, shown);
        assert_eq!((shown.get::<_, String>(0), shown.get::<_, bool>(1)), ("waiting".to_owned(), true));
        assert!(shown.get::<_, String>(2).contains(why));
        let (is_well, message) = check(&mut client, "worker");
        assert!(!is_well, "{message}");
        let texts = format!("{error:?} {} {message}", shown.get::<_, String>(2));
        assert!(!texts.contains("secret"), "{texts}");
        // PostgreSQL itself logs changed settings.
        let logged =
            cluster.log()[size..].lines().filter(|line| !line.contains("parameter \"")).collect::<Vec<_>>().join("\n");
        assert!(logged.contains("could not lease a worker id") && !logged.contains("secret"), "{logged}");
    }
    set_pool(&cluster, "servers", &good);
    let mut client = cluster.client();
    cluster.wait_for(PATIENCE, "ids", || client.query_one(DRAW, &[]).is_ok());
    assert_eq!(state(&mut client), "leased");
}

/// A worker id too large for one layout works in another.
#[test]
fn worker_id_too_large_for_a_layout_is_an_error_only_there() {
    let coordinator = coordinator(9, "1 min");
    // Takes 0 to 7, which js53 has room for.
    coordinator.execute("SELECT worker_acquire('servers', ttl => '1 min') FROM generate_series(1, 8)");
    let (_cluster, [mut client]) = pooled(&coordinator.conninfo()).start_with_clients();
    let error = expect_error(&mut client, "SELECT snowflake_next('js53')", "22003");
    assert_eq!(
        hint(&error),
        "Use a layout with more worker bits, or lower first or count of the pool with worker_pool_alter()."
    );
    assert_eq!(value::<i32>(&mut client, WORKER), 8);
}

/// One pool fills both fields of the layout. A worker id for which there is no pair issues nothing.
#[test]
fn worker_ids_of_a_pool_number_pairs_of_datacenter_and_worker() {
    let coordinator = builder().start_with_extension();
    coordinator.execute(
        "SELECT worker_pool_define('servers', first => 62, count => 2), worker_pool_define('beyond', first => 1024, count => 1)",
    );
    let numbered = || pooled(&coordinator.conninfo()).conf("idgen.layout", "twitter").conf("idgen.datacenter_id", "-1");
    let mut servers = [62, 63].map(|worker_id| {
        let server = numbered().start_with_clients();
        wait_for_state(&server.0, "leased");
        let subject =
            format!("this server has worker id {worker_id}, which numbers a pair of datacenter and worker, leased");
        (server, worker_id, subject)
    });
    let mut seen = Vec::new();
    for ((_, [client]), worker_id, subject) in &mut servers {
        seen.extend(ids(client, "SELECT snowflake_next_many(10000)"));
        let parts = format!("SELECT datacenter, worker FROM snowflake_parts({})", seen[seen.len() - 1]);
        let parts = row(client, &parts);
        assert_eq!((parts.get::<_, i32>(0), parts.get::<_, i32>(1)), (1, *worker_id % 32));
        let shown = row(client, "SELECT worker_id, datacenter_id FROM idgen.stat_worker");
        assert_eq!((shown.get(0), shown.get::<_, Option<i32>>(1)), (*worker_id, None));
        let (is_well, message) = check(client, "worker");
        assert!(is_well && message.starts_with(&*subject), "{message}");
    }
    let count = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), count, "no id of the one is an id of the other");

    let (cluster, [mut client]) = numbered().conf("idgen.worker_pool", "beyond").start_with_clients();
    wait_for_state(&cluster, "leased");
    let error = expect_error(&mut client, DRAW, "22003");
    assert!(error.message().starts_with("worker id \"1024\" of this server does not fit layout "), "{error:?}");
    assert_eq!(error.detail(), Some("Valid values are 0 to 1023."));
    assert_eq!(
        hint(&error),
        "Use a layout with more worker bits, or lower first or count of the pool with worker_pool_alter()."
    );
    assert!(!check(&mut client, "worker").0);
}

/// Ids can be ahead of the coordinator's clock by more than a lease: after a crash, after observed ids, and if this server's
/// clock is wrong. The keeper asks for a lease from there on, and no id waits for its time.
#[test]
fn server_ahead_of_the_coordinator_continues() {
    let coordinator = coordinator(4, "2 s");
    coordinator.reload_with("idgen.worker_max_lead", "1d");
    let (cluster, [mut client]) = pooled(&coordinator.conninfo()).fake_clock().start_with_clients();
    let mut seen = ids(&mut client, DRAW);
    // After a crash, ids begin up to 5.5 s ahead of the clock.
    cluster.restart_by(Stop::Immediate);
    client = cluster.client();
    seen.extend(ids(&mut client, DRAW));
    let lead: f64 = value(&mut client, "SELECT extract(epoch FROM lead)::float8 FROM idgen.stat_clock");
    assert!(lead > 2.0, "a lead of {lead} s is within the lease");

    let far = "SELECT snowflake_observe(snowflake_make(clock_timestamp() + interval '12 h', 0, 0))";
    client.query(far, &[]).unwrap();
    seen.extend(ids(&mut client, DRAW));

    // The wall clock, further ahead than the observed id.
    cluster.clock().set_offset_ms(20 * 3_600_000);
    seen.extend(ids(&mut client, "SELECT snowflake_next_many(10000)"));
    assert!(seen.is_sorted_by(|a, b| a < b));
    let last = seen[seen.len() - 1];
    let interval = "SELECT snowflake_time($1) >= not_before AND snowflake_time($1) < not_after FROM idgen.stat_worker";
    assert!(client.query_one(interval, &[&last]).unwrap().get::<_, bool>(0), "the id is inside the lease");
    assert_eq!(state(&mut client), "leased");

    // The coordinator limits how far ahead a rectangle reaches.
    cluster.clock().set_offset_ms(72 * 3_600_000);
    let error = expect_error(&mut client, DRAW, "55000");
    assert!(error.detail().is_some_and(|detail| detail.contains("idgen.worker_max_lead")), "{error:?}");
    cluster.clock().set_offset_ms(0);
    seen.extend(ids(&mut client, DRAW));
    assert!(seen.is_sorted_by(|a, b| a < b));

    // The same for observed ids, though the clock is right and the lease has not ended.
    let too_far = "SELECT snowflake_observe(snowflake_make(clock_timestamp() + interval '48 h', 0, 0), true)";
    client.query(too_far, &[]).unwrap();
    let error = expect_error(&mut client, DRAW, "55000");
    assert!(error.message().contains(" ends before the next id, at "), "{error:?}");
    assert!(!check(&mut client, "worker").0);
}

/// A role without the rights of the holder's role leases another worker id.
#[test]
fn keeper_under_another_role_leases_another_worker_id() {
    let coordinator = coordinator(4, "1 min");
    coordinator.execute("CREATE ROLE other LOGIN");
    let (cluster, [mut client]) = pooled(&coordinator.conninfo()).start_with_clients();
    assert_eq!(value::<i32>(&mut client, WORKER), 0);
    set_pool(&cluster, "servers", &coordinator.connect_string("postgres", "other"));
    cluster.wait_for(PATIENCE, "another worker id", || value::<i32>(&mut client, WORKER) == 1);
    assert_eq!(row(&mut client, "SELECT failures, changes FROM idgen.stat_worker").get::<_, i64>(1), 2);
}

/// A changed definition applies from the next renewal on.
#[test]
fn changed_ttl_of_the_pool_applies_at_the_next_renewal() {
    let coordinator = coordinator(4, "2 s");
    let (cluster, [mut client]) = pooled(&coordinator.conninfo()).start_with_clients();
    execute(&mut client, DRAW);
    coordinator.execute("SELECT worker_pool_alter('servers', ttl => '1 hour')");
    let is_longer = "SELECT not_after > now() + interval '50 min' FROM idgen.stat_worker";
    cluster.wait_for(PATIENCE, "the longer lease", || value(&mut client, is_longer));
}

/// The limit applies to requests, not to existing definitions: the servers of a pool continue.
#[test]
fn lease_min_ttl_above_that_of_the_pool_does_not_stop_renewals() {
    let coordinator = coordinator(4, "2 s");
    let (cluster, [mut client]) = pooled(&coordinator.conninfo()).start_with_clients();
    execute(&mut client, DRAW);
    coordinator.reload_with("idgen.lease_min_ttl", "1h");
    let renewals = "SELECT renewals FROM idgen.stat_worker";
    let before: i64 = value(&mut client, renewals);
    cluster.wait_for(PATIENCE, "renewals", || value::<i64>(&mut client, renewals) > before + 2);
    assert_eq!(value::<i64>(&mut client, "SELECT failures FROM idgen.stat_worker"), 0);
    cluster.restart();
    assert_eq!(value::<i32>(&mut cluster.client(), WORKER), 0);
}

/// The status check compares a worker id set by hand with the pools of its database.
#[test]
fn status_check_compares_a_worker_id_set_by_hand_with_local_pools() {
    let (cluster, [mut client]) = builder().start_with_clients();
    let (is_well, message) = check(&mut client, "worker");
    assert!(
        !is_well && message.starts_with("idgen.worker_id is not set and acts as 0. Set a different one"),
        "{message}"
    );
    cluster.execute("SELECT worker_pool_define('servers', count => 4, ttl => '1 min')");
    let grants = "but pool \"servers\" in this database grants the same worker id to other servers. Lease a worker id with idgen.worker_pool, or set idgen.worker_id to one outside of all pools.";
    let (is_well, message) = check(&mut client, "worker");
    let unset = "this server has worker id 0 and datacenter id 0 by the default of idgen.worker_id, ";
    assert_eq!((is_well, message), (false, format!("{unset}{grants}")));
    for (worker, is_granted) in [("3", true), ("4", false)] {
        cluster.restart_with("idgen.worker_id", worker);
        let (is_well, message) = check(&mut cluster.client(), "worker");
        let set = format!("this server has worker id {worker} and datacenter id 0 by idgen.worker_id, ");
        let rest = if is_granted { grants } else { "and no pool in this database grants it" };
        assert_eq!((is_well, message), (!is_granted, format!("{set}{rest}")));
    }
}

fn move_range(coordinator: &Cluster) {
    coordinator.execute(&format!("SELECT worker_pool_alter('{POOL}', first => 100, force => true)"));
}

#[test]
fn holder_outside_of_the_new_range_renews_no_more_and_the_check_names_it() {
    let coordinator = coordinator(2, "2 s");
    let mut client = coordinator.client();
    let grant = try_acquire(&mut client, &format!("'{POOL}', ttl => '2 s'")).expect("a grant");
    assert!(check(&mut client, "pools").0);
    move_range(&coordinator);
    let (is_fine, message) = check(&mut client, "pools");
    assert!(!is_fine && message.contains("worker id 0 is outside of the range of its pool \"servers\""), "{message}");
    let renewal =
        format!("SELECT worker_renew('{POOL}', {}, not_after) FROM idgen.worker_id WHERE worker_id = 0", grant.token);
    let error = expect_error(&mut client, &renewal, "55000");
    let stale = format!("no worker id of pool \"servers\" is held under token {}", grant.token);
    assert_eq!(error.message(), stale);
    coordinator.wait_for(PATIENCE, "the id times to end", || check(&mut client, "pools").0);
}

#[test]
fn server_outside_of_the_new_range_leases_another_worker_id() {
    let coordinator = coordinator(2, "3 s");
    let server = pooled(&coordinator.conninfo()).start_with_extension();
    wait_for_state(&server, "leased");
    let mut client = server.client();
    assert_eq!(value::<i32>(&mut client, WORKER), 0);
    move_range(&coordinator);
    server.wait_for(PATIENCE, "another worker id", || value::<i32>(&mut client, WORKER) == 100);
}
