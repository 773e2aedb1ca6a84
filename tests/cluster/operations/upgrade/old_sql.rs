//! Users replace the library first and run ALTER EXTENSION idgen UPDATE later: the new library works under the SQL of every
//! release.

use std::sync::{Arc, Mutex};

use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, column, execute, expect_error, row, value};
use postgres::fallible_iterator::FallibleIterator;

use super::{current, install, releases};

#[test]
fn sql_of_the_first_release_works_with_this_library() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen VERSION '0.1.0'");
    let mut client = cluster.client();
    let row = row(
        &mut client,
        "SELECT snowflake_next() < snowflake_next(), (SELECT count(*) FROM idgen.stat_snowflake),
                    (idgen.status() #>> '{version,sql}'),
                    (SELECT (c ->> 'ok')::bool FROM jsonb_array_elements(idgen.status() -> 'checks') c
                     WHERE c ->> 'check' = 'versions')",
    );
    assert!(row.get::<_, bool>(0));
    assert_eq!(row.get::<_, i64>(1), 1);
    assert_eq!(row.get::<_, String>(2), "0.1.0");
    assert!(!row.get::<_, bool>(3), "status() asks for ALTER EXTENSION idgen UPDATE");
}

/// The library handles REASSIGN OWNED and DROP OWNED under the tables of every release, and without tables.
#[test]
fn ownership_commands_work_with_the_sql_of_every_release() {
    let cluster = Cluster::start();
    cluster.execute("CREATE ROLE boss SUPERUSER; CREATE ROLE heir");
    let commands = "REASSIGN OWNED BY boss TO heir; DROP OWNED BY heir";
    execute(&mut cluster.client(), commands);
    for release in [releases(&cluster), vec![current(&cluster)]].concat() {
        let (_, mut client) = install(&cluster, &release);
        execute(&mut client, commands);
        execute(&mut client, "DROP EXTENSION idgen; SET ROLE boss");
        execute(&mut client, &format!("CREATE EXTENSION idgen VERSION '{release}'"));
        // This also drops the extension.
        execute(&mut client, "DROP OWNED BY boss");
        assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM pg_extension WHERE extname = 'idgen'"), 0);
    }
}

/// The SQL of 0.12 has five arguments, and nothing to watch.
#[test]
fn lease_of_the_sql_of_0_12_is_watched_only_after_its_upgrade() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen VERSION '0.12.0'");
    let (mut listener, mut client) = (cluster.client(), cluster.client());
    execute(&mut listener, "LISTEN idgen_lease");
    execute(&mut client, "SELECT lease_define('p', 4, '1 hour', '1 s', 100)");
    let term = "SELECT slot FROM (SELECT slot, lease_release('p', token) FROM lease_acquire('p')) AS term";
    assert_eq!(value::<i32>(&mut client, term), 100);
    execute(&mut client, "SELECT lease_acquire('p'), lease_revoke('p', 101), lease_define('q'), lease_drop('q')");
    execute(&mut listener, "NOTIFY idgen_lease, 'update'");
    cluster.execute("ALTER EXTENSION idgen UPDATE");
    let kept = "SELECT concat_ws(' ', slots, ttl, lock_delay, first_slot, notify) FROM idgen.lease_definition";
    assert_eq!(value::<String>(&mut client, kept), "4 01:00:00 00:00:01 100 f");
    execute(&mut client, "SELECT lease_define('p', 4, '1 hour', '1 s', 100, notify => true)");
    assert_eq!(value::<i32>(&mut client, term), 102);
    execute(&mut listener, "NOTIFY idgen_lease, 'end'");

    let mut notifications = listener.notifications();
    let mut payloads = notifications.timeout_iter(PATIENCE);
    let mut next = || payloads.next().expect("a connection").expect("a notification").payload().to_owned();
    assert_eq!(next(), "update");
    assert_eq!(next(), r#"{"name": "p", "slot": 102, "event": "granted", "owner": null}"#);
    assert_eq!(next(), r#"{"name": "p", "slot": 102, "event": "released", "owner": null}"#);
    assert_eq!(next(), "end");
}

/// Holders continue, also within a session.
#[test]
fn leases_continue_under_the_sql_of_the_previous_release_and_over_its_upgrade() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen VERSION '0.7.1'");
    let mut client = cluster.client();
    execute(&mut client, "SELECT lease_define('p', slots => 4, ttl => '1 hour')");
    let acquire = "SELECT token FROM lease_acquire('p')";
    let [renewed, released]: [i64; 2] = [(); 2].map(|()| value(&mut client, acquire));
    let states = "SELECT slot || ' ' || state || ' of ' || slots FROM idgen.leases WHERE name = 'p' ORDER BY slot";
    let mut hold = |token: i64| {
        execute(&mut client, &format!("SELECT lease_renew('p', {token})"));
        execute(&mut client, &format!("SELECT lease_renew_many('{{p}}', ARRAY[{token}])"));
        execute(&mut client, &format!("BEGIN; SELECT lease_fence('p', {token}); COMMIT"));
        assert_eq!(value::<i32>(&mut client, "SELECT slot FROM lease_try_acquire('other', ttl => '1 s')"), 0);
        execute(&mut client, "SELECT lease_revoke('other')");
        column::<String>(&mut client, states)
    };
    assert_eq!(hold(renewed)[..2], ["0 held of 4", "1 held of 4"]);
    execute(&mut cluster.client(), &format!("SELECT lease_release('p', {released})"));
    cluster.execute("ALTER EXTENSION idgen UPDATE");
    assert_eq!(hold(renewed)[..2], ["0 held of 4", "1 free of 4"]);
    let first_slot = "SELECT first_slot FROM idgen.lease_definition WHERE name = 'p'";
    assert_eq!(value::<i32>(&mut client, first_slot), 0);
    execute(&mut client, "SELECT lease_alter('p', first_slot => 100, force => true)");
    assert_eq!(value::<i32>(&mut client, "SELECT slot FROM lease_acquire('p')"), 100);
}

/// Sessions and the refill worker have read the columns of 0.13.
#[test]
fn segment_of_the_sql_of_0_13_is_attached_after_its_upgrade() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen VERSION '0.13.0'");
    let mut client = cluster.client();
    execute(&mut client, "SELECT segment_create('t', step => 10), segment_alter('t', max_step => 100)");
    let many = "SELECT count(segment_next('t')) FROM generate_series(1, 500)";
    execute(&mut client, many);
    // The coordinator is another database of this server.
    cluster.execute("CREATE DATABASE other");
    let mut other = cluster.client_in("other");
    execute(&mut other, "CREATE EXTENSION idgen; SELECT segment_create('t')");
    cluster.set_conf("idgen.coordinator", &cluster.connect_string("other", "postgres"));
    cluster.reload();
    cluster.execute("ALTER EXTENSION idgen UPDATE");
    execute(&mut client, many);
    let max_id = "SELECT max_id FROM idgen.segment";
    // A refill that was still running has raised it before.
    cluster.execute("SELECT segment_attach('t')");
    let before: i64 = value(&mut client, max_id);
    assert_eq!(value::<i64>(&mut client, "SELECT segment_next('t')"), before + 1);
    assert!(value::<i64>(&mut other, max_id) > before);
}

/// The UPDATE replaces these functions, which one superuser has created and another one updates.
#[test]
fn privileges_on_replaced_functions_survive_the_upgrade_smoke() {
    let cluster = Cluster::start();
    cluster.execute("CREATE ROLE boss SUPERUSER LOGIN; CREATE ROLE definer; CREATE ROLE fellow; CREATE ROLE stranger");
    let mut boss = cluster.client_as("postgres", "boss");
    execute(&mut boss, "CREATE EXTENSION idgen VERSION '0.14.1'");
    execute(
        &mut boss,
        "REVOKE EXECUTE ON FUNCTION segment_grant FROM PUBLIC; GRANT EXECUTE ON FUNCTION segment_grant TO fellow;
         GRANT EXECUTE ON FUNCTION lease_define TO definer WITH GRANT OPTION;
         SET ROLE definer; GRANT EXECUTE ON FUNCTION lease_define TO fellow",
    );
    let mut client = cluster.client();
    let privileges =
        "SELECT string_agg(concat_ws(' ', proname, proowner::regrole, proacl, initprivs), ', ' ORDER BY proname)
                      FROM pg_proc LEFT JOIN pg_init_privs ON objoid = pg_proc.oid AND classoid = 'pg_proc'::regclass
                      WHERE proname IN ('lease_define', 'segment_grant', 'segment_revoke')";
    let before: String = value(&mut client, privileges);
    execute(&mut client, "ALTER EXTENSION idgen UPDATE");
    assert_eq!(value::<String>(&mut client, privileges), before);
    for role in ["definer", "fellow"] {
        execute(&mut client, &format!("SET ROLE {role}; SELECT lease_define('{role}', force => true); RESET ROLE"));
        expect_error(&mut client, &format!("DROP ROLE {role}"), "2BP01");
    }
    execute(&mut client, "SET ROLE stranger");
    expect_error(&mut client, "SELECT lease_define('p')", "42501");
    execute(&mut client, "RESET ROLE; DROP OWNED BY definer, fellow CASCADE; DROP ROLE definer, fellow");
}

/// Under the SQL of 0.14.1, a role that may draw is a server. The update keeps that where servers are attached.
#[test]
fn fleet_of_the_sql_of_0_14_goes_on_over_its_upgrade() {
    let coordinator = Cluster::start();
    coordinator.execute("CREATE ROLE fleet LOGIN; CREATE ROLE app LOGIN; CREATE EXTENSION idgen VERSION '0.14.1'");
    coordinator.execute("SELECT segment_create(tag), segment_grant(tag, 'app') FROM unnest('{t,own}'::text[]) AS tag");
    coordinator.execute("SELECT segment_grant('t', 'fleet')");
    let conninfo = coordinator.connect_string("postgres", "fleet");
    let server = Cluster::builder().conf("idgen.coordinator", &conninfo).start_with_extension();
    server.execute("SELECT segment_attach('t', '2 seconds')");
    let many = "SELECT count(segment_next('t')) FROM generate_series(1, 3000)";
    server.execute(many);
    // What a server of that release calls when it stops.
    let mut fleet = coordinator.client_as("postgres", "fleet");
    assert!(!value::<bool>(&mut fleet, "SELECT segment_return('t', 1, 1, 3000)"));

    let notices = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&notices);
    let mut config: postgres::Config = coordinator.connect_string("postgres", "postgres").parse().expect("a string");
    config.notice_callback(move |notice| seen.lock().expect("no panic").push(notice.message().to_owned()));
    let mut client = config.connect(postgres::NoTls).expect("a session");
    execute(&mut client, "ALTER EXTENSION idgen UPDATE");
    let expected = "roles that may act as servers of segment \"t\": app, fleet";
    assert_eq!(*notices.lock().expect("no panic"), [expected]);
    let servers = "SELECT array_agg(servers::text ORDER BY tag) FROM idgen.segment";
    assert_eq!(value::<Vec<String>>(&mut client, servers), ["{}", "{app,fleet}"]);
    execute(&mut client, "SELECT segment_revoke('t', 'app', server => true)");
    expect_error(&mut coordinator.client_as("postgres", "app"), "SELECT segment_leave('t', 1, 0)", "42501");
    server.execute(many);
}
