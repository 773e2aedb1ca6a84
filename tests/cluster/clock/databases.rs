//! The worker after recovery needs a database to look for prepared transactions.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, execute, value};

use crate::recovery::{insert, primary};

/// A promoted standby of a primary that ran these statements. The test's database is `other`.
fn promoted(changes: &[&str]) -> Cluster {
    let primary = primary();
    insert(&mut primary.client(), 1);
    primary.execute("CREATE DATABASE other");
    let mut client = primary.client_in("other");
    execute(&mut client, "CREATE EXTENSION idgen");
    let standby = primary.standby_builder().conf("max_worker_processes", "8").start();
    for change in changes {
        execute(&mut client, change);
    }
    let written: String = value(&mut client, "SELECT pg_current_wal_lsn()::text");
    let mut client = standby.client_in("other");
    let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'::pg_lsn");
    standby.wait_for(PATIENCE, "the changes to be replayed", || value(&mut client, &replayed));
    assert!(value::<bool>(&mut client, "SELECT pg_promote(true, 60)"));
    standby
}

const DROP_POSTGRES: &str = "DROP DATABASE postgres WITH (FORCE)";
const DROP_TEMPLATE1: [&str; 2] = ["ALTER DATABASE template1 IS_TEMPLATE false", "DROP DATABASE template1"];
const MAKE_TEMPLATE1: &str = "CREATE DATABASE template1 TEMPLATE template0 IS_TEMPLATE true";

fn wait_for_mark(standby: &Cluster) {
    let mut client = standby.client_in("other");
    let known = "SELECT mark IS NOT NULL FROM idgen.stat_clock";
    standby.wait_for(PATIENCE, "the mark after recovery", || value(&mut client, known));
}

fn wait_for_end_of_worker(standby: &Cluster) {
    let mut client = standby.client_in("other");
    let workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idgen mark in recovery'";
    standby.wait_for(PATIENCE, "the end of the worker", || value::<i64>(&mut client, workers) == 0);
}

#[test]
fn mark_is_known_after_recovery_if_template1_was_recreated() {
    let [change, drop] = DROP_TEMPLATE1;
    wait_for_mark(&promoted(&[change, drop, MAKE_TEMPLATE1]));
}

#[test]
fn mark_is_known_after_recovery_if_only_a_recreated_template1_is_left() {
    let [change, drop] = DROP_TEMPLATE1;
    wait_for_mark(&promoted(&[change, drop, MAKE_TEMPLATE1, DROP_POSTGRES]));
}

/// The first draw looks for prepared transactions itself.
#[test]
fn worker_after_recovery_exits_if_it_finds_no_database() {
    let [change, drop] = DROP_TEMPLATE1;
    let standby = promoted(&[change, drop, DROP_POSTGRES]);
    standby.wait_for(PATIENCE, "the worker to give up", || standby.log().contains("the first id after recovery"));
    wait_for_end_of_worker(&standby);
    let log = standby.log();
    let failures = log.lines().filter(|line| line.contains("FATAL") && line.contains("does not exist"));
    assert_eq!(failures.count(), 2, "each database is tried once");
    assert!(value::<i64>(&mut standby.client_in("other"), "SELECT snowflake_next()") > 0);
    wait_for_mark(&standby);
}
