//! Incremental backups, of PostgreSQL 17 and later, and `pg_combinebackup`. `make smoke` runs this test on these versions.

use std::sync::atomic::{AtomicBool, Ordering};

use idgen_core::clock::record::Record;
use idgen_testkit::ids::last;
use idgen_testkit::sql::{execute, ids, value};
use idgen_testkit::{Cluster, private_dir, run};

/// Takes ids a minute further ahead.
const ADVANCE: &str =
    "SELECT snowflake_observe(snowflake_ceil(snowflake_time(max(id)) + interval '1 min')) FROM orders";
const INSERT: &str = "INSERT INTO orders SELECT FROM generate_series(1, 1000) RETURNING id";

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
