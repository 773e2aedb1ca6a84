//! A switch-over by logical replication: what the script of the guide moves, refuses and continues.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use idgen_testkit::ids::{assert_distinct, last};
use idgen_testkit::sql::{PATIENCE, column, execute, expect_error, ids, in_new_database, row, value, wait_for_one};
use idgen_testkit::{Cluster, Example, run};
use nix::sys::signal::Signal;
use postgres::{Client, NoTls};

/// The tables of the application, and where their ids come from.
const TABLES: [(&str, &str); 4] = [
    ("orders", "DEFAULT snowflake_next()"),
    ("carts", "DEFAULT snowflake_next('js53')"),
    ("invoices", "DEFAULT segment_next('invoice')"),
    ("visits", "GENERATED ALWAYS AS IDENTITY"),
];

const HOUR_MS: i64 = 3_600_000;

fn old_server() -> Cluster {
    let old = Cluster::builder()
        .conf("wal_level", "logical")
        .conf("max_prepared_transactions", "2")
        .conf("idgen.worker_id", "1")
        .new_system_identifier();
    let old = old.fake_clock().start();
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

/// The script of the guide on the old and the new server.
fn script(command: &str, [old, new]: [&Cluster; 2], roles: &[&str]) -> Command {
    // The server's user may not be able to read this directory.
    let file = Example::copy(new, "logical-replication/switch-over.sh");
    let bin_dir = new.program("psql").get_program().to_string_lossy().replace("/psql", "");
    let mut script = new.program("/bin/bash");
    script.env("PATH", format!("{bin_dir}:/usr/bin:/bin")).arg(file).arg(command);
    script.args([old, new].map(|server| server.connect_string("shop", "postgres"))).args(roles);
    script
}

/// Runs the script, which waits for two seconds at most. It fails, and says this.
fn assert_fails(command: &str, servers: [&Cluster; 2], roles: &[&str], expected: &[&str]) {
    let output = script(command, servers, roles).env("PATIENCE", "2").output().expect("bash runs");
    assert!(!output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stdout));
    let message = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(expected.iter().all(|text| message.contains(text)), "{message}");
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
    // The ids of the new server begin above those of a clock that is ahead.
    old.clock().set_offset_ms(HOUR_MS);
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
        run(&mut script("prepare", [&old, &new], &[]));
        let mut on_new = new.client_in("shop");
        // Leases of the two servers are independent.
        for client in [&mut on_old, &mut on_new] {
            execute(client, "SELECT lease_acquire('importer', ttl => '1 hour')");
        }
        // Keeps the new server behind until the script waits for it.
        let mut behind = on_new.transaction().expect("a transaction");
        behind.batch_execute("LOCK TABLE orders IN SHARE MODE").expect("a lock");
        wait_for_inserts(0);
        let switched = scope.spawn(|| run(&mut script("switch", [&old, &new], &["app"])));
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

/// After `prepare`, with a session of the superuser on each server.
fn prepared() -> ([Cluster; 2], [Client; 2]) {
    let (old, new) = (old_server(), new_server());
    run(&mut script("prepare", [&old, &new], &[]));
    let clients = [&old, &new].map(|server| server.client_in("shop"));
    ([old, new], clients)
}

/// The worker id, its not_before and not_after in microseconds, of the first grant that is not released.
fn acquire(client: &mut Client) -> (i32, i64, i64) {
    let us = |time: &str| format!("(extract(epoch FROM {time}) * 1000000)::bigint");
    let sql = format!(
        "SELECT worker_id, {}, {} FROM worker_acquire('pods', ttl => '30 s')",
        us("not_before"),
        us("not_after")
    );
    let row = row(client, &sql);
    (row.get(0), row.get(1), row.get(2))
}

#[test]
fn switch_over_grants_no_worker_id_for_the_same_time() {
    let (old, new) = (old_server(), new_server());
    let mut on_old = old.client_in("shop");
    // A coordinator may have no other tables.
    execute(&mut on_old, "DROP TABLE orders, carts, invoices, visits");
    run(&mut script("prepare", [&old, &new], &[]));
    let mut on_new = new.client_in("shop");
    execute(&mut on_old, "SELECT worker_pool_define('pods', 0, 1)");
    let (worker_id, _, until_us) = acquire(&mut on_old);
    run(&mut script("switch", [&old, &new], &["app"]));
    // Its client is the only one that knows it: the new server has no leases.
    let (again, from_us, _) = acquire(&mut on_new);
    assert_eq!(again, worker_id);
    assert!(from_us >= until_us, "{from_us} is before {until_us}");
}

/// A definition alone, copied by hand.
#[test]
fn copied_definition_of_a_pool_grants_no_worker_id_for_the_same_time() {
    let ([old, new], [mut on_old, mut on_new]) = prepared();
    execute(&mut on_old, "SELECT worker_pool_define('pods', 0, 1)");
    let (_, _, until_us) = acquire(&mut on_old);
    let mut dump = old.program("pg_dump");
    let origin = old.connect_string("shop", "postgres");
    let rows = run(dump.args(["--data-only", "--table=idgen.worker_pool", "-d"]).arg(origin));
    let file = new.data_dir().with_file_name("rows.sql");
    std::fs::write(&file, rows).expect("a writable directory");
    run(new.program("psql").args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", "shop", "-f"]).arg(&file));
    // It has no rows of worker ids until it is altered.
    expect_error(&mut on_new, "SELECT worker_acquire('pods')", "53400");
    execute(&mut on_new, "SELECT worker_pool_alter('pods')");
    let (_, from_us, _) = acquire(&mut on_new);
    assert!(from_us >= until_us, "{from_us} is before {until_us}");
}

#[test]
fn switch_over_keeps_rows_of_asynchronous_commits() {
    let (old, new) = (old_server(), new_server());
    for setting in ["wal_writer_delay = '10s'", "synchronous_commit = off"] {
        old.execute(&format!("ALTER SYSTEM SET {setting}"));
    }
    old.reload();
    run(&mut script("prepare", [&old, &new], &[]));
    let written = "SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'all before is written', '')";
    execute(&mut old.client_in("shop"), written);
    execute(&mut old.client_as("shop", "app"), "INSERT INTO visits DEFAULT VALUES");
    run(&mut script("switch", [&old, &new], &["app"]));
    assert!(rows(&mut old.client_in("shop")) == rows(&mut new.client_in("shop")));
}

/// Nothing has changed: the role can log in, and the new server has no segment.
fn assert_unchanged(old: &Cluster, on_new: &mut Client) {
    drop(old.client_as("shop", "app"));
    assert_eq!(value::<i64>(on_new, "SELECT count(*) FROM idgen.segment"), 0);
}

#[test]
fn switch_over_refuses_another_layout() {
    let (old, new) = (old_server(), new_server());
    run(&mut script("prepare", [&old, &new], &[]));
    new.restart_with("idgen.layout", "js53");
    assert_fails("switch", [&old, &new], &["app"], &["NEW has another idgen.layout:\njs53"]);
}

#[test]
fn switch_over_refuses_what_would_lose_rows_before_it_changes_anything() {
    let (old, new) = (old_server(), new_server());
    assert_fails("switch", [&old, &new], &["app"], &["NEW has no subscription"]);
    assert_fails("prepare", [&new, &old], &[], &["OLD has no idgen in the database:\nshop"]);
    run(&mut script("prepare", [&old, &new], &[]));
    let [mut on_old, mut on_new] = [&old, &new].map(|server| server.client_in("shop"));
    assert_fails("switch", [&new, &old], &["app"], &["NEW has no subscription"]);
    assert_fails("switch", [&old, &new], &["app", "nobody"], &["no such role of an application:\nnobody"]);
    assert_fails("switch", [&old, &new], &["postgres", "app"], &["no such role of an application:\npostgres"]);
    execute(&mut on_old, "CREATE TABLE newer (id bigint PRIMARY KEY); CREATE SCHEMA other; CREATE TABLE other.t ()");
    assert_fails("switch", [&old, &new], &["app"], &["NEW lacks tables", "public.newer", "other.t"]);
    execute(&mut on_old, "DROP TABLE newer, other.t");
    execute(&mut on_old, "BEGIN; INSERT INTO visits DEFAULT VALUES; PREPARE TRANSACTION 'p'");
    assert_fails("switch", [&old, &new], &["app"], &["OLD has prepared transactions", "\np"]);
    execute(&mut on_old, "COMMIT PREPARED 'p'");
    execute(&mut on_old, "ALTER PUBLICATION app SET (publish = 'insert')");
    assert_fails("switch", [&old, &new], &["app"], &["omits changes, rows or columns of:\napp"]);
    execute(&mut on_old, "ALTER PUBLICATION app SET (publish = 'insert, update, delete, truncate')");
    execute(&mut on_old, "CREATE UNLOGGED TABLE cache (); SELECT lo_create(0)");
    execute(&mut on_new, "SELECT public_id_define('own')");
    assert_fails(
        "switch",
        [&old, &new],
        &["app"],
        &["not moved: unlogged table cache", "not moved: 1 large objects", "It has rows in:\nidgen.public_key"],
    );
    assert_unchanged(&old, &mut on_new);
    execute(&mut on_new, "SELECT public_id_drop('own')");
    run(&mut script("switch", [&old, &new], &["app"]));
    assert_eq!(value::<i64>(&mut on_new, "SELECT count(*) FROM visits"), 1);
}

#[test]
fn switch_over_that_cannot_go_on_says_how_to_go_back_and_continues_later() {
    let ([old, new], [mut on_old, mut on_new]) = prepared();
    // The new server stays behind.
    let mut behind = on_new.transaction().expect("a transaction");
    behind.batch_execute("LOCK TABLE visits IN SHARE MODE").expect("a lock");
    execute(&mut on_old, "INSERT INTO visits DEFAULT VALUES");
    let undo = "OLD has all rows. To go back, run there:\n  ALTER ROLE app LOGIN;\n";
    assert_fails("switch", [&old, &new], &["app"], &["waited 2 s in vain for NEW to confirm the last rows", undo]);
    behind.rollback().expect("the server runs");
    run(&mut script("switch", [&old, &new], &["app"]));
    assert_eq!(value::<i64>(&mut on_new, "SELECT count(*) FROM visits"), 1);
    assert_fails("switch", [&old, &new], &["app"], &["unless NEW has taken over already"]);
}

/// Its statement goes on, and may commit.
#[test]
fn switch_over_that_is_killed_in_the_move_does_not_say_how_to_go_back() {
    let ([old, new], [_, mut on_new]) = prepared();
    let mut locked = on_new.transaction().expect("a transaction");
    locked.batch_execute("LOCK TABLE idgen.segment IN SHARE MODE").expect("a lock");
    let mut command = script("switch", [&old, &new], &["app"]);
    let mut switch = Example::start(&new, command.env("PATIENCE", "30"));
    wait_for_one(&new, "the move to wait", "pg_locks WHERE NOT granted AND mode = 'RowExclusiveLock'");
    switch.signal(Signal::SIGTERM);
    wait_for_one(&new, "the script to wait for the move", "pg_locks WHERE NOT granted AND locktype = 'advisory'");
    locked.rollback().expect("the server runs");
    let (_, errors) = switch.wait(&new);
    assert!(errors.contains("NEW has taken over") && !errors.contains("ALTER ROLE"), "{errors}");
    run(&mut script("switch", [&old, &new], &["app"]));
    assert_eq!(value::<i64>(&mut on_new, "SELECT count(*) FROM idgen.segment"), 1);
}

#[test]
fn switch_over_moves_sequences_that_were_set_and_not_used_since() {
    let ([old, new], [mut on_old, mut on_new]) = prepared();
    execute(&mut on_old, "SELECT setval('visits_id_seq', 6, false)");
    run(&mut script("switch", [&old, &new], &["app"]));
    assert_eq!(ids(&mut on_new, "INSERT INTO visits DEFAULT VALUES RETURNING id"), [6]);
}

#[test]
fn switch_over_that_was_cut_off_after_the_move_only_cleans_up() {
    let ([old, new], [mut on_old, mut on_new]) = prepared();
    execute(
        &mut on_new,
        "BEGIN; ALTER SUBSCRIPTION app DISABLE; ALTER SUBSCRIPTION app SET (slot_name = NONE); COMMIT",
    );
    run(&mut script("switch", [&old, &new], &["app"]));
    assert_eq!(value::<i64>(&mut on_old, "SELECT count(*) FROM pg_replication_slots"), 0);
    assert_eq!(value::<i64>(&mut on_new, "SELECT count(*) FROM pg_subscription"), 0);
    assert_unchanged(&old, &mut on_new);
}

#[test]
fn prepare_does_not_take_a_failed_query_for_a_new_server_without_subscription() {
    let ([old, new], [_, mut on_new]) = prepared();
    let mut locked = on_new.transaction().expect("a transaction");
    locked.batch_execute("LOCK TABLE pg_subscription").expect("a lock");
    let output = script("prepare", [&old, &new], &[]).env("PATIENCE", "2").output().expect("bash runs");
    let message = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(!output.status.success() && message.contains("statement timeout"), "{message}");
    assert!(!message.contains("create its database again"), "{message}");
}

#[test]
fn switch_over_moves_ids_in_columns_that_are_not_bigint() {
    let (old, new) = (old_server(), new_server());
    let mut on_old = old.client_in("shop");
    execute(
        &mut on_old,
        "CREATE TABLE parcels (id text PRIMARY KEY DEFAULT 'P-' || snowflake_next());
         CREATE TABLE amounts (id numeric PRIMARY KEY DEFAULT snowflake_next());
         CREATE TABLE discounts (id bigint PRIMARY KEY DEFAULT (snowflake_next() % 1000) * -1);
         CREATE DOMAIN id AS bigint; CREATE DOMAIN ticket_id AS id;
         CREATE TABLE tickets (id ticket_id PRIMARY KEY DEFAULT snowflake_next());
         INSERT INTO parcels DEFAULT VALUES; INSERT INTO amounts DEFAULT VALUES; INSERT INTO discounts DEFAULT VALUES;
         INSERT INTO tickets VALUES (snowflake_ceil(now() + interval '100 s'))",
    );
    run(&mut script("prepare", [&old, &new], &[]));
    run(&mut script("switch", [&old, &new], &["app"]));
    let mut on_new = new.client_in("shop");
    assert!(value::<bool>(&mut on_new, "SELECT snowflake_next() > max(id) FROM tickets"), "the domain is not observed");
    for table in ["parcels", "amounts", "discounts"] {
        assert_eq!(value::<i64>(&mut on_new, &format!("SELECT count(*) FROM {table}")), 1, "{table}");
    }
}

/// PostGIS has a table with rows in the schema public.
#[test]
fn switch_over_refuses_to_publish_tables_of_extensions_and_lists_what_it_does_not_move() {
    let (old, new) = (old_server(), new_server());
    let mut on_old = old.client_in("shop");
    execute(
        &mut on_old,
        "CREATE TABLE systems AS SELECT 1; CREATE TABLE unused ();
         CREATE SCHEMA cron; CREATE TABLE cron.job AS SELECT 1;
         ALTER EXTENSION plpgsql ADD TABLE systems; ALTER EXTENSION plpgsql ADD TABLE unused;
         ALTER EXTENSION plpgsql ADD TABLE cron.job;
         CREATE MATERIALIZED VIEW totals AS SELECT 1; CREATE MATERIALIZED VIEW later AS SELECT 1 WITH NO DATA",
    );
    assert_fails(
        "prepare",
        [&old, &new],
        &[],
        &["Create the publication app without them:\ntable systems of the extension plpgsql\n"],
    );
    assert_eq!(value::<i64>(&mut on_old, "SELECT count(*) FROM pg_publication"), 0);
    execute(&mut on_old, "CREATE PUBLICATION app FOR TABLE orders, carts, invoices, visits");
    run(&mut script("prepare", [&old, &new], &[]));
    let output = script("switch", [&old, &new], &["app"]).output().expect("bash runs");
    let message = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.success(), "{message}");
    let listed = [
        "rows of materialized view totals",
        "table systems of the extension plpgsql",
        "table cron.job of the extension plpgsql",
    ];
    for listed in listed {
        assert!(message.contains(&format!("switch-over: not moved: {listed}\n")), "{message}");
    }
    assert_eq!(message.matches("not moved").count(), listed.len(), "{message}");
}
