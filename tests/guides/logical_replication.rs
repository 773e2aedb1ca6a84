//! Logical replication with a publication that has the tables of idgen. tests/cluster/examples has the switch-over.

use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, execute, in_new_database, value};
use postgres::Client;

/// Two servers with one publication of this kind, and the extension in a database of this name on both.
fn published(old: &Cluster, new: &Cluster, name: &str, tables: &str) -> [Client; 2] {
    let [mut on_old, mut on_new] = [old, new].map(|server| in_new_database(server, name));
    let table = "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_next())";
    [&mut on_old, &mut on_new].into_iter().for_each(|client| execute(client, table));
    execute(&mut on_old, "SELECT segment_create('invoice', step => 20)");
    execute(&mut on_old, &format!("CREATE PUBLICATION {name} FOR {tables}"));
    let origin = old.connect_string(name, "postgres").replace('\'', "''");
    execute(&mut on_new, &format!("CREATE SUBSCRIPTION {name} CONNECTION '{origin}' PUBLICATION {name}"));
    let copied = "SELECT count(*) = 0 FROM pg_subscription_rel WHERE srsubstate <> 'r'";
    new.wait_for(PATIENCE, "the initial copy", || value(&mut on_new, copied));
    [on_old, on_new]
}

/// Inserts a row on the old server and waits until the subscription `name` has failed with `message`.
fn assert_replication_stopped(new: &Cluster, name: &str, [on_old, on_new]: [&mut Client; 2], message: &str) {
    execute(on_old, "INSERT INTO orders DEFAULT VALUES");
    let failed = format!("SELECT apply_error_count > 1 FROM pg_stat_subscription_stats WHERE subname = '{name}'");
    new.wait_for(PATIENCE, "errors of the subscription", || value(on_new, &failed));
    assert!(new.log().contains(message), "{message}");
    assert_eq!(value::<i64>(on_new, "SELECT count(*) FROM orders"), 1, "a row after the error has arrived");
}

#[test]
fn publication_for_all_tables_stops_at_a_lease_or_segment_of_the_subscriber() {
    let old =
        Cluster::builder().conf("wal_level", "logical").conf("idgen.worker_id", "1").new_system_identifier().start();
    let new = Cluster::builder().conf("wal_retrieve_retry_interval", "100ms").new_system_identifier().start();
    let acquire = "SELECT lease_acquire('importer', ttl => '1 hour')";
    let draw = "SELECT segment_next('invoice') FROM generate_series(1, 100)";
    for (name, tables, sql, message) in [
        ("leases", "ALL TABLES", acquire, "duplicate key value violates unique constraint \"lease_pkey\""),
        ("segments", "ALL TABLES", draw, "max_id of segment \"invoice\" cannot be lowered"),
        ("control", "TABLES IN SCHEMA public", acquire, ""),
    ] {
        let [mut on_old, mut on_new] = published(&old, &new, name, tables);
        execute(&mut on_old, "INSERT INTO orders DEFAULT VALUES");
        new.wait_for(PATIENCE, "the row", || value(&mut on_new, "SELECT count(*) = 1 FROM orders"));
        execute(&mut on_new, sql);
        if name == "segments" {
            // The subscriber reserves more than the publisher.
            execute(&mut on_new, draw);
            execute(&mut on_old, "SELECT segment_next('invoice')");
        } else {
            execute(&mut on_old, sql);
        }
        if message.is_empty() {
            execute(&mut on_old, "INSERT INTO orders DEFAULT VALUES");
            new.wait_for(PATIENCE, "the next row", || value(&mut on_new, "SELECT count(*) = 2 FROM orders"));
        } else {
            assert_replication_stopped(&new, name, [&mut on_old, &mut on_new], message);
        }
        // Its worker would start and fail again and again.
        execute(&mut on_new, &format!("ALTER SUBSCRIPTION {name} DISABLE"));
    }
}
