//! A switchover by logical replication, and back to the first server.

use std::collections::BTreeSet;

use idgen_testkit::Cluster;
use idgen_testkit::segment::create;
use idgen_testkit::sql::{PATIENCE, column, execute, ids, value};

const TABLES: &str = "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_next());
    CREATE TABLE tickets (id bigint PRIMARY KEY DEFAULT segment_next('ticket'))";

fn server(worker_id: &str) -> Cluster {
    let builder = Cluster::builder().conf("wal_level", "logical").conf("idgen.worker_id", worker_id);
    let server = builder.fake_clock().new_system_identifier().start_with_extension();
    server.execute(TABLES);
    server
}

/// Inserts rows into both tables. No id may be one of those seen before.
fn insert(server: &Cluster, seen: &mut BTreeSet<(&'static str, i64)>) {
    let mut client = server.client();
    for table in ["orders", "tickets"] {
        for id in ids(&mut client, &format!("INSERT INTO {table} SELECT FROM generate_series(1, 500) RETURNING id")) {
            assert!(seen.insert((table, id)), "{table}: {id} twice");
        }
    }
}

/// `target` gets the rows of `origin` from now on.
fn subscribe(target: &Cluster, origin: &Cluster, name: &str) {
    origin.execute(&format!("CREATE PUBLICATION {name} FOR TABLES IN SCHEMA public"));
    let conninfo = origin.conninfo().replace('\'', "''");
    // Both have the same rows already.
    let subscription = format!("CREATE SUBSCRIPTION {name} CONNECTION '{conninfo}' PUBLICATION {name}");
    target.execute(&format!("{subscription} WITH (copy_data = false)"));
}

/// Waits for the last rows of `origin`, and ends the subscription of `target`.
fn switch(target: &Cluster, origin: &Cluster, name: &str) {
    let mut on_origin = origin.client();
    let end: String = value(&mut on_origin, "SELECT pg_current_wal_lsn()::text");
    let caught_up =
        format!("SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = '{name}'");
    target.wait_for(PATIENCE, "the last rows", || value(&mut on_origin, &caught_up));
    target.execute(&format!("DROP SUBSCRIPTION {name}"));
    let mut on_target = target.client();
    for table in ["orders", "tickets"] {
        let rows = format!("SELECT id FROM {table} ORDER BY id");
        assert_eq!(column::<i64>(&mut on_target, &rows), column::<i64>(&mut on_origin, &rows), "{table}");
    }
    let reserved: i64 = value(&mut on_origin, "SELECT max_id FROM idgen.segment WHERE tag = 'ticket'");
    execute(&mut on_target, &format!("SELECT segment_alter('ticket', max_id => {reserved})"));
    execute(&mut on_target, "SELECT snowflake_observe(max(id)) FROM orders");
}

/// Above every id of the orders before, whatever the clocks say.
fn assert_continues(server: &Cluster, seen: &mut BTreeSet<(&'static str, i64)>) {
    let highest = seen.iter().filter(|(table, _)| *table == "orders").map(|(_, id)| *id).max();
    insert(server, seen);
    let first = "SELECT min(id) FROM (SELECT id FROM orders ORDER BY id DESC LIMIT 500) AS new";
    let first: i64 = value(&mut server.client(), first);
    assert!(Some(first) > highest, "{first} after {highest:?}");
}

/// Each server takes over from one whose clock was ahead.
#[test]
fn switchover_and_back_repeats_no_id() {
    const HOUR_MS: i64 = 3_600_000;
    let (old, new) = (server("1"), server("2"));
    [&old, &new].into_iter().for_each(|server| create(&mut server.client(), "ticket", ", step => 20"));
    let mut seen = BTreeSet::new();
    subscribe(&new, &old, "there");
    old.clock().set_offset_ms(HOUR_MS);
    insert(&old, &mut seen);

    switch(&new, &old, "there");
    // Before the first row of the new server: none is missing on the way back.
    subscribe(&old, &new, "back");
    assert_continues(&new, &mut seen);
    new.clock().set_offset_ms(3 * HOUR_MS);
    insert(&new, &mut seen);

    switch(&old, &new, "back");
    old.clock().set_offset_ms(0);
    assert_continues(&old, &mut seen);
    assert_eq!(seen.len(), 4000);
}
