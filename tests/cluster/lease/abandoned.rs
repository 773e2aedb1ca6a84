//! Rows of undefined names and of shared terms whose holders vanished are deleted a day after their terms, by acquirers of
//! other names.

use idgen_testkit::Cluster;
use idgen_testkit::lease::acquire;
use idgen_testkit::sql::{column, execute, expect_error, value};
use postgres::Client;

use crate::{boot_us, builder, wait_for_state};

const HOUR_US: i64 = 3_600_000_000;
const DAY_US: i64 = 24 * HOUR_US;

/// Without preload, the first new name of each session sweeps.
fn unpreloaded() -> Cluster {
    builder().preload(false).conf("autovacuum", "off").start_with_extension()
}

/// Lets the term of a name have ended so long ago.
fn age(client: &mut Client, name: &str, us: i64) {
    let ends_us = boot_us() - us;
    execute(client, &format!("UPDATE idgen.lease SET ends_us = {ends_us} WHERE name = '{name}'"));
}

/// Lets a term be by another clock, of a server that began to write so long ago that the term ended two days ago.
fn age_by_another_clock(client: &mut Client, name: &str) {
    let ttl_us = -2 * DAY_US;
    let sql = format!(
        "UPDATE idgen.lease SET clock = 'another', ttl_us = {ttl_us}, ends_us = {} WHERE name = '{name}'",
        i64::MAX
    );
    execute(client, &sql);
}

fn names(client: &mut Client) -> Vec<String> {
    column(client, "SELECT name FROM idgen.lease WHERE name <> 'new' ORDER BY name COLLATE \"C\"")
}

#[test]
fn rows_of_vanished_holders_are_deleted_after_a_day() {
    let cluster = unpreloaded();
    let (mut holder, mut fencing, mut renewing) = (cluster.client(), cluster.client(), cluster.client());
    let mut token = |name: &str| acquire(&mut holder, &format!("'{name}', '1 min'")).token;
    let expired = token("expired");
    let [fenced, renewed] = ["kept: fenced", "kept: renewed"].map(&mut token);
    for name in ["released", "of another clock", "kept: of another clock", "kept: 23 hours", "kept: defined"] {
        token(name);
    }
    acquire(&mut holder, "'kept: bound', '1 min', bind_session => true");
    acquire(&mut holder, "'shared', '1 min', shared => true");
    let mut gone = cluster.client();
    acquire(&mut gone, "'bound', '1 min', bind_session => true");
    drop(gone);
    wait_for_state(&cluster, "bound", "0 expired");

    let mut observer = cluster.client();
    let aged = names(&mut observer);
    aged.iter().for_each(|name| age(&mut observer, name, DAY_US + 1));
    age(&mut observer, "kept: 23 hours", 23 * HOUR_US);
    age_by_another_clock(&mut observer, "of another clock");
    execute(
        &mut observer,
        "UPDATE idgen.lease SET depth = 0 WHERE name = 'released';
         UPDATE idgen.lease SET clock = 'another' WHERE name = 'kept: of another clock';
         SELECT lease_define('kept: defined'), lease_define('shared')",
    );
    execute(&mut fencing, &format!("BEGIN; SELECT lease_fence('kept: fenced', {fenced})"));
    execute(&mut renewing, &format!("BEGIN; SELECT lease_renew('kept: renewed', {renewed})"));

    let mut client = cluster.client();
    // A rollback brings them back.
    execute(&mut client, "SET client_min_messages = error; BEGIN; SELECT lease_acquire('new'); ROLLBACK");
    assert_eq!(names(&mut observer), aged);
    acquire(&mut cluster.client(), "'new'");
    let (kept, deleted): (Vec<String>, Vec<String>) = aged.into_iter().partition(|name| name.starts_with("kept"));
    assert_eq!(names(&mut observer), kept);
    assert_eq!(deleted, ["bound", "expired", "of another clock", "released", "shared"]);

    expect_error(&mut holder, &format!("SELECT lease_renew('expired', {expired})"), "55000");
    assert!(acquire(&mut holder, "'expired'").token > expired);
    for client in [&mut fencing, &mut renewing] {
        execute(client, "COMMIT");
    }
}

#[test]
fn sweep_deletes_a_hundred_rows_at_most_and_goes_on_at_the_next_new_name() {
    let cluster = unpreloaded();
    let mut client = cluster.client();
    acquire(&mut cluster.client(), "'vanished', '1 min'");
    age(&mut client, "vanished", DAY_US + 1);
    execute(
        &mut client,
        "INSERT INTO idgen.lease SELECT (l).* FROM (
             SELECT jsonb_populate_record(l, jsonb_build_object('name', 'vanished ' || n)) AS l
             FROM idgen.lease AS l, generate_series(1, 249) AS n WHERE name = 'vanished') AS copies",
    );
    let left = [(); 4].map(|()| {
        let name: String = value(&mut client, "SELECT 'new ' || clock_timestamp()");
        acquire(&mut client, &format!("'{name}'"));
        value::<i64>(&mut client, "SELECT count(*) FROM idgen.lease WHERE name LIKE 'vanished%'")
    });
    assert_eq!(left, [150, 50, 0, 0]);
}

/// The first new name after the start sweeps; later ones do not for an hour, in no session.
#[test]
fn server_sweeps_a_small_table_once_an_hour() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    acquire(&mut client, "'vanished', '1 min'");
    age(&mut client, "vanished", DAY_US + 1);
    acquire(&mut client, "'new'");
    acquire(&mut cluster.client(), "'newer'");
    assert!(names(&mut client).contains(&"vanished".to_owned()));
    drop(client);
    cluster.restart();
    let mut client = cluster.client();
    acquire(&mut client, "'newest'");
    assert_eq!(names(&mut client), ["newer", "newest"]);
}
