//! Users replace the library first and run ALTER EXTENSION idgen UPDATE later. Under the SQL of every release, the new library
//! draws, decodes and locks by name. Every other function works, or asks for the UPDATE.
//!
//! CREATE EXTENSION looks up the symbol of each C function, so to install a release proves that the library has its symbols.

use std::sync::{Arc, Mutex};

use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, column, execute, expect_error, hint, value};
use postgres::Client;
use postgres::fallible_iterator::FallibleIterator;

use super::{current, install, releases};

/// What the calls below need.
const SETUP: &str = "
    SELECT segment_create('t', step => 10), segment_create('attached'), segment_create('gone'), public_id_define('ord'),
           public_id_define('gone');
    INSERT INTO idgen.lease_definition (name, slots, ttl, lock_delay, owner)
    VALUES ('p', 4, '1 hour', '0', 'postgres'), ('q', 4, '1 hour', '1 s', 'postgres');
    DO $$ BEGIN
        UPDATE idgen.lease_definition SET first_slot = 100 WHERE name = 'q';
    EXCEPTION WHEN undefined_column THEN NULL; -- from 0.18.0 on
    END $$;
    CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_next(), version bigint NOT NULL DEFAULT 1);
    CREATE TRIGGER version BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION row_version('version');
    CREATE TABLE guarded (n int);
    CREATE TRIGGER guard BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION lease_guard('p');
    INSERT INTO orders DEFAULT VALUES";

/// Each in a transaction of its own, in this order, with the SQL of any release that has the functions.
const CALLS: &[&str] = &[
    "SELECT snowflake_next() < snowflake_next(), snowflake_next('snowflake')",
    "SELECT snowflake_next_many(3), snowflake_next_many(3, 'snowflake')",
    "SELECT uuidv7_next() < uuidv7_next(), uuidv7_next(true)",
    "SELECT uuidv7_next_many(3), uuidv7_next_many(3, true)",
    "SELECT segment_next('t') < segment_next('t')",
    "SELECT FROM segment_next_many('t', 30), segment_reserve('t', 30)",
    "UPDATE orders SET id = snowflake_next()",
    "COPY orders (version) FROM PROGRAM 'echo 1'",
    "SELECT snowflake_time(id), snowflake_time(id, 'snowflake'), snowflake_parts(id), snowflake_parts(id, 'snowflake'),
            snowflake_decode(snowflake_encode(id, 'base58'), 'base58') FROM orders",
    "SELECT snowflake_floor(now()), snowflake_floor(now(), 'snowflake'), snowflake_ceil(now()), snowflake_ceil(now(), 'snowflake'),
            snowflake_layout(), snowflake_layout('snowflake')",
    "SELECT snowflake_make(now(), 1, 0), snowflake_make(now(), 1, 0, 'snowflake'), snowflake_make(now(), 1, 0, 0, 'snowflake')",
    "SELECT uuidv7_time(uuidv7_floor(now())), uuidv7_ceil(now())",
    "SELECT public_id_decode('ord', public_id('ord', 42)), public_id_try_decode('ord', 'ord_'), id_unmask('ord', id_mask('ord', 42))",
    "SELECT lock_key('a'), lock_acquire('a'), lock_try_acquire('b'), lock_acquire_many('{c,d}'), lock_try_acquire_many('{e,f}')",
    "SELECT lock_acquire_xact('a'), lock_try_acquire_xact('b'), lock_acquire_many_xact('{c,d}'), lock_try_acquire_many_xact('{e,f}')",
    "SELECT 1 / count(*) FROM idgen.locks WHERE name = 'a'",
    "SELECT lock_release('a'), lock_release('b'), lock_release_many('{c,d,e,f}')",
    "SELECT snowflake_observe(id), snowflake_observe(id, 'snowflake') FROM orders",
    "SELECT snowflake_settled(), snowflake_settled('snowflake')",
    "SELECT uuidv7_settled(), segment_settled('t')",
    "CREATE TABLE changed (change bigint);
     CREATE TRIGGER c BEFORE INSERT ON changed FOR EACH ROW EXECUTE FUNCTION snowflake_change('change');
     INSERT INTO changed DEFAULT VALUES; DROP TABLE changed",
    "SELECT idgen.status(), idgen.reset_stats()",
    "SELECT segment_alter('t', step => 100), segment_grant('t', 'pg_monitor'), segment_revoke('t', 'pg_monitor'), segment_drop('gone')",
    "SELECT segment_attach('attached', '2 seconds')",
    "SELECT segment_next('attached')",
    "SELECT segment_detach('attached')",
    "SELECT segment_request('t', 1, 'elsewhere', 0, 10)",
    "SELECT segment_return('t', 1, 1, 10)",
    "SELECT segment_confirm(), segment_leave('t', 1, 0), segment_resume('t', 1000000)",
    "SELECT public_id_rotate('ord', 'long'), public_id_alter('ord', 'pg_monitor'), public_id_grant('ord', 'pg_monitor')",
    "SELECT public_id_revoke('ord', 'pg_monitor'), public_id_retire('ord', 1), public_id_drop('gone')",
    // Its slots begin at 0 now.
    "SELECT lease_acquire('q'), lease_revoke('q', 0)",
    "SELECT lease_drop('q')",
    "SELECT FROM lease_acquire('p'), lease_try_acquire('p', owner => 'app')",
    "WITH fenced AS MATERIALIZED (SELECT lease_fence(name, token) FROM idgen.leases WHERE name = 'p')
     INSERT INTO guarded SELECT 1 FROM fenced",
    "SELECT lease_release_many(array_agg(name), array_agg(token)) FROM lease_acquire_many('{p1,p2}')",
    "SELECT lease_fence_many('{}', '{}'), lease_try_acquire_many('{p3,p4}')",
    "SELECT lease_renew('p', token), lease_renew_many('{p}', ARRAY[token]) FROM idgen.leases WHERE name = 'p'",
    "SELECT lease_release('p', token) FROM idgen.leases WHERE name = 'p'",
];

/// As [`CALLS`], with the SQL of a release that has the tables of pools.
const CALLS_OF_POOLS: &[&str] = &[
    "SELECT worker_pool_define('pool'), worker_pool_define('other pool', 0, 4), worker_pool_alter('pool', count => 8)",
    "SELECT worker_acquire('pool', 'app', '10 s', now(), 2)",
    "SELECT worker_renew('pool', token, last_not_after => not_after) FROM idgen.workers",
    "SELECT worker_confirm('pool', token) FROM idgen.workers",
    "SELECT worker_release('pool', token, now(), not_after) FROM idgen.workers",
    "SELECT worker_correct('pool', 2, now()), worker_begin_history()",
    "SELECT worker_move('pool', 'other pool')",
    "SELECT worker_pool_drop('other pool'), lease_define('r'), lease_alter('r', ttl => '2 hours')",
];

/// As [`CALLS`]. These functions need the tables of pools.
const ASKS_FOR_THE_UPDATE: &[&str] = &[
    "SELECT worker_acquire('pool', 'app', '1 hour', now(), 2)",
    "SELECT worker_renew('pool', 1, last_not_after => now())",
    "SELECT worker_confirm('pool', 1)",
    "SELECT worker_release('pool', 1, now(), now())",
    "SELECT worker_correct('pool', 2, now())",
    "SELECT worker_move('pool', 'other pool')",
    "SELECT worker_begin_history()",
];

/// Calls of functions that only the SQL of earlier releases declares.
const RETIRED: &str = "
    SELECT format('SELECT %s(%s)', proname, (SELECT string_agg('NULL::' || format_type(type, NULL), ', ') FROM unnest(proargtypes) AS type))
    FROM pg_proc WHERE probin = '$libdir/idgen'
     AND prosrc IN ('lease_define_watched_wrapper', 'lease_define_unless_harmful_wrapper', 'lease_alter_wrapper', 'worker_renew_wrapper', 'worker_correct_wrapper')";

/// The C functions that users call.
const FUNCTIONS: &str = "SELECT DISTINCT proname::text FROM pg_proc
                         WHERE probin = '$libdir/idgen' AND pronamespace = 'public'::regnamespace";

const VIEWS: &str =
    "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'v' AND relnamespace = 'idgen'::regnamespace";

fn call_all(client: &mut Client, release: &str) {
    let functions: Vec<String> = column(client, FUNCTIONS);
    let calls = |sql: &str, function: &String| sql.contains(&format!("{function}("));
    let retired: Vec<String> = column(client, RETIRED);
    for function in &functions {
        let known = [SETUP].iter().chain(CALLS).chain(CALLS_OF_POOLS).chain(ASKS_FOR_THE_UPDATE).copied();
        let is_called = known.chain(retired.iter().map(String::as_str)).any(|sql| calls(sql, function));
        assert!(is_called, "no call of {function}");
    }
    let has_function = |sql: &str| functions.iter().any(|function| calls(sql, function));
    let has_pools: bool = value(client, "SELECT to_regclass('idgen.worker_pool') IS NOT NULL");
    let (of_pools, asking) = if has_pools { (CALLS_OF_POOLS, &[][..]) } else { (&[][..], ASKS_FOR_THE_UPDATE) };
    for sql in CALLS.iter().chain(of_pools) {
        if has_function(sql) || sql.contains("idgen.") {
            client.simple_query(sql).unwrap_or_else(|error| panic!("SQL of {release}: {sql}: {error:?}"));
        }
    }
    for view in column::<String>(client, VIEWS) {
        execute(client, &format!("SELECT * FROM {view}"));
    }
    let asking = asking.iter().copied().filter(|sql| has_function(sql));
    for sql in asking.chain(retired.iter().map(String::as_str)) {
        assert_eq!(hint(&expect_error(client, sql, "55000")), "Run ALTER EXTENSION idgen UPDATE.", "{release}: {sql}");
    }
    let is_current = "SELECT (c ->> 'ok')::bool FROM jsonb_array_elements(idgen.status() -> 'checks') c
                      WHERE c ->> 'check' = 'versions'";
    assert!(!value::<bool>(client, is_current), "status() asks for ALTER EXTENSION idgen UPDATE");
}

#[test]
fn functions_work_or_ask_for_the_update_under_the_sql_of_every_release_also_after_a_promotion_smoke() {
    let builder = Cluster::builder().conf("idgen.worker_id", "0").conf("max_worker_processes", "64");
    let primary = builder.start();
    let mut other = idgen_testkit::sql::in_new_database(&primary, "coordinator");
    execute(&mut other, "SELECT segment_create('attached')");
    primary.reload_with("idgen.coordinator", &primary.connect_string("coordinator", "postgres"));
    let releases = releases(&primary);
    let after = |release: &str| format!("promoted_{}", release.replace('.', "_"));
    for release in &releases {
        let (database, mut client) = install(&primary, release);
        execute(&mut client, SETUP);
        drop(client);
        primary.execute(&format!("CREATE DATABASE {} TEMPLATE {database}", after(release)));
    }
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    standby.promote();
    for release in &releases {
        call_all(&mut primary.client_in(&super::database(release)), release);
        call_all(&mut standby.client_in(&after(release)), &format!("{release} after a promotion"));
    }
}

/// The SQL of a release declares the columns of rows that the library forms.
#[test]
fn row_with_a_column_of_another_type_than_declared_is_an_error() {
    let (_cluster, [mut client]) = Cluster::builder().start_with_clients();
    let columns = ["layout text, OUT bits int", "layout text, OUT bits bigint", "layout bigint"];
    for (n, columns) in columns.iter().enumerate() {
        let symbol = "'$libdir/idgen', 'snowflake_layout_wrapper'";
        execute(&mut client, &format!("CREATE FUNCTION f{n}(OUT {columns}, OUT unit interval) LANGUAGE c AS {symbol}"));
    }
    assert_eq!(value::<i32>(&mut client, "SELECT bits FROM f0()"), 63);
    for (n, column) in [(1, 2), (2, 1)] {
        let error = expect_error(&mut client, &format!("SELECT f{n}()"), "XX000");
        assert_eq!(error.message(), format!("column {column} has another type"));
    }
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

/// Sessions and observers continue.
#[test]
fn lease_of_the_sql_of_0_14_1_continues_over_its_upgrade() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen VERSION '0.14.1'");
    let (mut listener, mut client) = (cluster.client(), cluster.client());
    execute(&mut listener, "LISTEN idgen_lease");
    execute(
        &mut client,
        "INSERT INTO idgen.lease_definition (name, slots, ttl, lock_delay, owner, notify)
         VALUES ('p', 4, '1 hour', '1 s', 'postgres', true)",
    );
    let acquire = "SELECT token FROM lease_acquire('p')";
    let [released, renewed]: [i64; 2] = [(); 2].map(|()| value(&mut client, acquire));
    let states = "SELECT slot || ' ' || state || ' of ' || slots FROM idgen.leases WHERE name = 'p' ORDER BY slot";
    let mut hold = |token: i64| {
        execute(&mut client, &format!("SELECT lease_renew('p', {token})"));
        execute(&mut client, &format!("BEGIN; SELECT lease_fence('p', {token}); COMMIT"));
        column::<String>(&mut client, states)
    };
    assert_eq!(hold(renewed), ["0 held of 4", "1 held of 4"]);
    execute(&mut listener, "NOTIFY idgen_lease, 'update'");
    cluster.execute("ALTER EXTENSION idgen UPDATE");
    execute(&mut cluster.client(), &format!("SELECT lease_release('p', {released})"));
    assert_eq!(hold(renewed), ["0 free of 4", "1 held of 4"]);
    let kept = "SELECT concat_ws(' ', slots, ttl, lock_delay, notify) FROM idgen.lease_definition";
    assert_eq!(value::<String>(&mut client, kept), "4 01:00:00 00:00:01 t");
    expect_error(&mut client, "SELECT lease_define('p', 1, '1 hour', '1 s', notify => true)", "55006");

    let mut notifications = listener.notifications();
    let mut payloads = notifications.timeout_iter(PATIENCE);
    let mut next = || payloads.next().expect("a connection").expect("a notification").payload().to_owned();
    let event =
        |slot: i32, event: &str| format!(r#"{{"name": "p", "slot": {slot}, "event": "{event}", "owner": null}}"#);
    assert_eq!(next(), event(0, "granted"));
    assert_eq!(next(), event(1, "granted"));
    assert_eq!(next(), "update");
    assert_eq!(next(), event(0, "released"));
}

/// Sessions and the refill worker have read the columns of 0.14.1.
#[test]
fn segment_of_the_sql_of_0_14_1_is_attached_after_its_upgrade() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen VERSION '0.14.1'");
    let mut client = cluster.client();
    execute(&mut client, "SELECT segment_create('t', step => 10), segment_alter('t', max_step => 100)");
    let many = "SELECT count(segment_next('t')) FROM generate_series(1, 500)";
    execute(&mut client, many);
    // The coordinator is another database of this server.
    cluster.execute("CREATE DATABASE other");
    let mut other = cluster.client_in("other");
    execute(&mut other, "CREATE EXTENSION idgen; SELECT segment_create('t')");
    cluster.reload_with("idgen.coordinator", &cluster.connect_string("other", "postgres"));
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
         REVOKE EXECUTE ON FUNCTION worker_correct FROM PUBLIC; GRANT EXECUTE ON FUNCTION worker_correct TO fellow;
         SET ROLE definer; GRANT EXECUTE ON FUNCTION lease_define TO fellow",
    );
    let mut client = cluster.client();
    let privileges =
        "SELECT string_agg(concat_ws(' ', proname, proowner::regrole, proacl, initprivs), ', ' ORDER BY proname)
                      FROM pg_proc LEFT JOIN pg_init_privs ON objoid = pg_proc.oid AND classoid = 'pg_proc'::regclass
                      WHERE proname IN ('lease_define', 'segment_grant', 'segment_revoke', 'worker_correct')";
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
