//! Functions that read the statistics of the server for their own ends, where ordinary roles may not read them.

use idgen_testkit::Cluster;
use idgen_testkit::lease::acquire;
use idgen_testkit::sql::{execute, expect_error, value};

#[test]
fn ordinary_role_needs_no_privilege_on_statistics_smoke() {
    let cluster = Cluster::builder().conf("max_prepared_transactions", "5").start_with_extension();
    let mut dba = cluster.client();
    execute(&mut dba, "CREATE ROLE app LOGIN CREATEDB");
    execute(&mut dba, "REVOKE SELECT ON pg_prepared_xacts, pg_locks, pg_stat_activity FROM PUBLIC");
    execute(
        &mut dba,
        "REVOKE EXECUTE ON FUNCTION pg_prepared_xact(), pg_lock_status(), pg_stat_get_activity(int) FROM PUBLIC",
    );
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
    execute(&mut app, "CREATE DATABASE shop");
    execute(&mut app, "DROP DATABASE shop");
}
