//! Programs of PostgreSQL 17 and later: pg_createsubscriber, which turns a standby into a subscriber, and pg_combinebackup.
//! `make smoke` runs these tests on these versions.

use std::sync::atomic::{AtomicBool, Ordering};

use idgen_core::clock::record::Record;
use idgen_testkit::ids::last;
use idgen_testkit::segment::{create, next};
use idgen_testkit::sql::{PATIENCE, execute, expect_error, ids, value};
use idgen_testkit::{Cluster, Stop, high_water, private_dir, run};

const INSERT: &str = "INSERT INTO orders SELECT FROM generate_series(1, 1000) RETURNING id";

#[test]
#[ignore = "needs pg_createsubscriber, of PostgreSQL 17 and later: make smoke PG=18"]
fn created_subscriber_begins_after_replicated_ids_once_its_mark_is_removed() {
    let builder = Cluster::builder().conf("wal_level", "logical").conf("idgen.worker_id", "1");
    let (publisher, [mut on_publisher]) = builder.start_with_clients();
    execute(&mut on_publisher, "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_next())");
    create(&mut on_publisher, "ticket", ", step => 10");
    // Ids that the clock of the subscriber has not reached.
    execute(&mut on_publisher, "SELECT snowflake_observe(snowflake_ceil(now() + interval '1 hour'))");
    let seen = ids(&mut on_publisher, INSERT);
    let ticket = next(&mut on_publisher, "ticket");
    let subscriber = publisher.standby_builder().conf("idgen.worker_id", "2").start();
    subscriber.wait_until_replayed(&publisher);
    subscriber.stop(Stop::Fast);

    let mut command = subscriber.program("pg_createsubscriber");
    command.arg("-D").arg(subscriber.data_dir()).args(["-P", &publisher.conninfo(), "-d", "postgres"]);
    run(command.arg("-s").arg(subscriber.host()).args(["--publication", "app", "--subscription", "app"]));
    subscriber.start_again();

    // pg_createsubscriber has changed the system identifier.
    let error = expect_error(&mut subscriber.client(), "SELECT snowflake_next()", "XX001");
    assert!(error.message().contains("was written by another server"), "{error:?}");
    subscriber.stop(Stop::Fast);
    std::fs::remove_dir_all(high_water::directory(&subscriber)).expect("a directory of the server");
    subscriber.start_again();

    // The replicated label tells how far ids have gone.
    let mut on_subscriber = subscriber.client();
    let first: i64 = value(&mut on_subscriber, "SELECT snowflake_next()");
    assert!(first > last(&seen), "{first} after {}", last(&seen));

    execute(&mut on_publisher, INSERT);
    let rows = "SELECT count(*) = 2000 FROM orders";
    subscriber.wait_for(PATIENCE, "the rows of the publisher", || value(&mut on_subscriber, rows));
    // The primary key rejects a repeated id.
    execute(&mut on_subscriber, INSERT);
    // The segment came along, and both servers draw the values that the publisher had not reserved.
    assert_eq!(next(&mut on_subscriber, "ticket"), ticket + 10);
}

/// Takes ids a minute further ahead.
const ADVANCE: &str =
    "SELECT snowflake_observe(snowflake_ceil(snowflake_time(max(id)) + interval '1 min')) FROM orders";
/// The combined backup has the file of the last one, which is older than the rows that its WAL brings.
#[test]
#[ignore = "needs pg_combinebackup, of PostgreSQL 17 and later: make smoke PG=18"]
fn combined_incremental_backup_begins_after_the_ids_that_it_has() {
    let (primary, [mut client]) =
        Cluster::builder().conf("summarize_wal", "on").conf("idgen.worker_id", "1").start_with_clients();
    execute(&mut client, "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_next())");
    ids(&mut client, INSERT);
    let dir = private_dir();
    let [full, incremental, combined] = ["full", "incremental", "combined"].map(|name| dir.path().join(name));
    let conninfo = primary.conninfo();
    let backup = |target: &std::path::Path, options: &[&str]| {
        let mut command = primary.program("pg_basebackup");
        command.arg("-D").arg(target).args(["-d", &conninfo, "--checkpoint=fast", "--no-sync"]).args(options);
        run(&mut command);
    };
    backup(&full, &[]);
    let manifest = full.join("backup_manifest");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let drawing = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                execute(&mut client, ADVANCE);
                ids(&mut client, INSERT);
            }
        });
        backup(&incremental, &["--incremental", &manifest.to_string_lossy()]);
        is_over.store(true, Ordering::Relaxed);
        drawing.join().expect("a session");
    });
    run(primary.program("pg_combinebackup").arg(&full).arg(&incremental).arg("-o").arg(&combined).arg("--no-sync"));

    let restored = primary.restored(&combined);
    restored.start_again();
    let mut client = restored.client();
    let seen = ids(&mut client, "SELECT id FROM orders ORDER BY id");
    let copied = std::fs::read(combined.join("idgen/clock")).expect("the file in the backup");
    let mark_ms = Record::newest(&copied).expect("a record").record.mark_ms;
    let last_ms: i64 = value(
        &mut client,
        &format!("SELECT floor(extract(epoch FROM snowflake_time({})) * 1000)::bigint", last(&seen)),
    );
    assert!(last_ms > mark_ms, "the copied mark covers all ids: nothing to test");
    let first: i64 = value(&mut client, "SELECT snowflake_next()");
    assert!(first > last(&seen), "{first} after {}", last(&seen));
}
