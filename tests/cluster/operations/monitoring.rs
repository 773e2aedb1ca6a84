//! What monitoring reads: since when counters count, and the names of waits on servers that know those of extensions. And
//! functions that read the statistics of the server for their own ends, where ordinary roles may not read them.

use idgen_testkit::Cluster;
use idgen_testkit::lease::acquire;
use idgen_testkit::script::play;
use idgen_testkit::sql::{backend_pid, execute, expect_error, value};

#[test]
fn a_wait_for_the_clock_has_a_name_smoke() {
    let (cluster, [mut client]) = Cluster::builder().start_with_clients();
    let version: i32 = value(&mut client, "SELECT current_setting('server_version_num')::int");
    // Two ids a second.
    let script = "drawing waits for EVENT: SELECT count(*)
            FROM snowflake_next_many(1000, 'time:40 sequence:1 unit:1s epoch:2020-01-01')
        client: SELECT wait_event_type FROM pg_stat_activity WHERE pid = $drawing_pid -> Extension
        client: SELECT pg_terminate_backend($drawing_pid) -> t
        drawing ends -> error";
    play(&cluster, &script.replace("EVENT", if version >= 170_000 { "IdgenClock" } else { "Extension" }));
}

#[test]
fn counters_and_the_time_of_their_reset_begin_again_after_a_crash() {
    let (cluster, [mut client]) = Cluster::builder().start_with_clients();
    cluster.execute("SELECT count(snowflake_next()) FROM generate_series(1, 100)");
    let crashed: String = value(&mut client, "SELECT clock_timestamp()::text");
    assert_eq!(value::<i64>(&mut client, "SELECT sum(issued)::bigint FROM idgen.stat_snowflake"), 100);
    cluster.kill9(backend_pid(&mut client));
    cluster.wait_until_ready();
    let mut client = cluster.client();
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.stat_snowflake"), 0);
    let reset = format!("SELECT stats_reset > '{crashed}' FROM idgen.stat_clock");
    assert!(value::<bool>(&mut client, &reset));
}

#[test]
fn ordinary_role_needs_no_privilege_on_statistics_smoke() {
    let (cluster, [mut dba]) = Cluster::builder().conf("max_prepared_transactions", "5").start_with_clients();
    execute(&mut dba, "CREATE ROLE app LOGIN CREATEDB");
    execute(&mut dba, "REVOKE SELECT ON pg_prepared_xacts, pg_locks, pg_stat_activity FROM PUBLIC");
    execute(
        &mut dba,
        "REVOKE EXECUTE ON FUNCTION pg_prepared_xact(), pg_lock_status(), pg_stat_get_activity(int) FROM PUBLIC",
    );
    // The first draw looks for prepared transactions.
    execute(&mut cluster.client_as("postgres", "app"), "SELECT snowflake_next()");
    execute(&mut dba, "BEGIN");
    let prepared: i64 = value(&mut dba, "SELECT snowflake_next()");
    execute(&mut dba, "PREPARE TRANSACTION 'p'");
    // Whether a lease bound to a session of before the restart is free depends on when the server began to write.
    acquire(&mut dba, "'bound', '1 day', bind_session => true");
    drop(dba);
    cluster.restart();

    let mut app = cluster.client_as("postgres", "app");
    for read in
        ["SELECT FROM pg_prepared_xacts", "SELECT FROM pg_lock_status()", "SELECT FROM pg_stat_get_activity(NULL)"]
    {
        expect_error(&mut app, read, "42501");
    }
    assert!(value::<i64>(&mut app, "SELECT snowflake_settled()") < prepared);
    assert_eq!(value::<i64>(&mut app, "SELECT count(*) FROM lease_try_acquire('bound')"), 0);
    // The caller is the same as before, and has no more privileges.
    assert_eq!(value::<String>(&mut app, "SELECT current_user::text"), "app");
    expect_error(&mut app, "SELECT FROM pg_prepared_xacts", "42501");
    execute(&mut app, "CREATE DATABASE shop");
    execute(&mut app, "DROP DATABASE shop");
}
