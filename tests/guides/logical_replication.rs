//! Logical replication: a switch-over by the script of the guide, and a publication that has the tables of idgen.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use idgen_testkit::ids::{assert_distinct, last};
use idgen_testkit::sql::{PATIENCE, column, execute, ids, in_new_database, value};
use idgen_testkit::{Cluster, chown_to_server, run};
use postgres::{Client, NoTls};

/// The tables of the application, and where their ids come from.
const TABLES: [(&str, &str); 4] = [
    ("orders", "DEFAULT snowflake_next()"),
    ("carts", "DEFAULT snowflake_next('js53')"),
    ("invoices", "DEFAULT segment_next('invoice')"),
    ("visits", "GENERATED ALWAYS AS IDENTITY"),
];

const HOUR_MS: i64 = 3_600_000;

/// The old server. Its clock is an hour ahead: the ids of the new one begin above all the same.
fn old_server() -> Cluster {
    let old = Cluster::builder().conf("wal_level", "logical").conf("idgen.worker_id", "1").new_system_identifier();
    let old = old.fake_clock().start();
    old.clock().set_offset_ms(HOUR_MS);
    old.execute("CREATE ROLE app LOGIN; ALTER ROLE postgres SET log_statement = 'all'");
    let mut shop = in_new_database(&old, "shop");
    execute(
        &mut shop,
        "SELECT segment_create('invoice', step => 20); SELECT segment_grant('invoice', 'app');
         SELECT lease_define('job', slots => 3); SELECT public_id_define('ord')",
    );
    for (table, ids) in TABLES {
        let columns = format!("id bigint {ids} PRIMARY KEY, at timestamptz DEFAULT now()");
        execute(&mut shop, &format!("CREATE TABLE {table} ({columns}); GRANT SELECT, INSERT ON {table} TO app"));
    }
    old
}

fn new_server() -> Cluster {
    let new = Cluster::builder().conf("idgen.worker_id", "2").new_system_identifier().start();
    new.execute("CREATE ROLE app LOGIN");
    new.execute("CREATE DATABASE shop");
    new
}

/// Runs the script of the guide on the old and the new server.
fn switch_over(command: &str, old: &Cluster, new: &Cluster, roles: &[&str]) {
    // The server's user may not be able to read this directory.
    let script = new.data_dir().with_file_name("switch-over.sh");
    std::fs::copy(crate::repository("examples/logical-replication/switch-over.sh"), &script)
        .expect("a directory of ours");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("a file of ours");
    chown_to_server(&script);
    let bin_dir = new.program("psql").get_program().to_string_lossy().replace("/psql", "");
    let mut script = new.program(&script.to_string_lossy());
    script.env("PATH", format!("{bin_dir}:/usr/bin:/bin")).arg(command);
    script.args([old, new].map(|server| server.connect_string("shop", "postgres"))).args(roles);
    run(&mut script);
}

/// The rows of all tables of the application.
fn rows(client: &mut Client) -> BTreeMap<&'static str, Vec<String>> {
    let rows = |(table, _)| (table, column(client, &format!("SELECT t::text FROM {table} AS t ORDER BY id")));
    TABLES.map(rows).into()
}

/// Inserts rows into one table, on the server that `target` is the index of, until `target` is beyond. Returns the ids that
/// were seen on each. A refused connection is tried again.
fn insert_all_the_time(
    servers: [&str; 2],
    table: &str,
    target: &AtomicUsize,
    counts: &[AtomicUsize; 2],
) -> [Vec<i64>; 2] {
    let mut seen = [const { Vec::new() }; 2];
    let sql = format!("INSERT INTO {table} SELECT FROM generate_series(1, 3) RETURNING id");
    while let Some(&server) = servers.get(target.load(Ordering::Relaxed)) {
        let index = target.load(Ordering::Relaxed).min(1);
        let Ok(mut client) = Client::connect(server, NoTls) else {
            std::thread::yield_now();
            continue;
        };
        while target.load(Ordering::Relaxed) == index {
            let Ok(rows) = client.query(&sql, &[]) else { break };
            seen[index].extend(rows.iter().map(|row| row.get::<_, i64>(0)));
            counts[index].fetch_add(1, Ordering::Relaxed);
        }
    }
    seen
}

#[test]
fn switch_over_under_load_loses_no_row_and_repeats_no_id() {
    let (old, new) = (old_server(), new_server());
    let (on_old_as_app, on_new_as_app) = (old.connect_string("shop", "app"), new.connect_string("shop", "app"));
    let target = AtomicUsize::new(0);
    let counts: [[AtomicUsize; 2]; 4] = Default::default();
    let wait_for_inserts = |index: usize| {
        let before = counts.each_ref().map(|count| count[index].load(Ordering::Relaxed));
        new.wait_for(PATIENCE, "inserts into each table", || {
            counts.iter().zip(before).all(|(count, before)| count[index].load(Ordering::Relaxed) > before + 50)
        });
    };
    let mut on_old = old.client_in("shop");
    std::thread::scope(|scope| {
        let clients: Vec<_> = TABLES
            .iter()
            .zip(&counts)
            .map(|((table, _), counts)| {
                let servers = [on_old_as_app.as_str(), on_new_as_app.as_str()];
                let target = &target;
                scope.spawn(move || insert_all_the_time(servers, table, target, counts))
            })
            .collect();
        // Ends the clients if an assertion fails.
        let _end = End(&target);
        wait_for_inserts(0);
        switch_over("prepare", &old, &new, &[]);
        let mut on_new = new.client_in("shop");
        // Leases of the two servers are independent.
        for client in [&mut on_old, &mut on_new] {
            execute(client, "SELECT lease_acquire('importer', ttl => '1 hour')");
        }
        // Keeps the new server behind until the script waits for it.
        let mut behind = on_new.transaction().expect("a transaction");
        behind.batch_execute("LOCK TABLE orders IN SHARE MODE").expect("a lock");
        wait_for_inserts(0);
        let switched = scope.spawn(|| switch_over("switch", &old, &new, &["app"]));
        old.wait_for(PATIENCE, "the script to wait for the new server", || {
            switched.is_finished() || old.log().matches("SELECT confirmed_flush_lsn").count() > 1
        });
        behind.rollback().expect("the server runs");
        switched.join().expect("the script succeeds");

        // The clients still try to connect to the old server.
        let refused = Client::connect(&on_old_as_app, NoTls).err().expect("the role cannot log in");
        assert_eq!(refused.code().map(|code| code.code()), Some("28000"));
        let before = rows(&mut on_old);
        assert!(before == rows(&mut on_new), "the new server does not have the rows of the old one");
        for kept in
            ["SELECT concat_ws(' ', name, slots, ttl) FROM idgen.lease_definition", "SELECT public_id('ord', 7)"]
        {
            assert_eq!(column::<String>(&mut on_new, kept), column::<String>(&mut on_old, kept));
        }
        let highest = TABLES.map(|(table, _)| last(&ids(&mut on_old, &format!("SELECT id FROM {table} ORDER BY id"))));

        target.store(1, Ordering::Relaxed);
        wait_for_inserts(1);
        target.store(2, Ordering::Relaxed);
        for (((table, _), highest), client) in TABLES.into_iter().zip(highest).zip(clients) {
            let [seen_on_old, seen_on_new] = client.join().expect("a client does not panic");
            assert!(seen_on_new.iter().all(|&id| id > highest), "{table}: ids below {highest} after the switch");
            let stored = ids(&mut on_new, &format!("SELECT id FROM {table}"));
            let all = assert_distinct([seen_on_old, seen_on_new].concat());
            let lost = all.iter().filter(|id| !stored.contains(id)).count();
            assert_eq!(lost, 0, "{table}: lost of {} rows", all.len());
        }
        // The segment continues at the first value that the old server has not reserved.
        let reserved: i64 = value(&mut on_old, "SELECT max_id FROM idgen.segment WHERE tag = 'invoice'");
        let first = format!("SELECT min(id) FROM invoices WHERE id > {}", highest[2]);
        assert_eq!(value::<i64>(&mut on_new, &first), reserved + 1);
    });
}

/// Ends the clients when dropped.
struct End<'a>(&'a AtomicUsize);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(2, Ordering::Relaxed);
    }
}

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
