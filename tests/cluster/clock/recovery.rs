//! Promotion of a server whose clock is behind that of the old primary.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use idgen_testkit::ids::{assert_distinct, assert_increasing, count_repeated, last};
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, row, value};
use idgen_testkit::{Builder, Cluster, Stop, chown_to_server, high_water, private_dir, rounds, run};
use postgres::Client;

use crate::{builder, draw_one, ms, time_of};

pub const SECOND_MS: i64 = 1000;
pub const HOUR_MS: i64 = 3_600_000;

/// The lag of the new server's clock, which is the true one, behind the old primary's.
#[derive(Clone, Copy, Debug)]
pub enum Behind {
    /// A minute, more than a test takes. The new server has no mark, because the old primary had issued no id when it was
    /// copied.
    Minute,
    /// An hour. The mark copied from the old primary is an hour old.
    Hour,
}

/// A primary with a table of ids.
pub fn primary() -> Cluster {
    primary_of(builder())
}

pub fn primary_of(builder: Builder) -> Cluster {
    let primary = builder.conf("max_prepared_transactions", "10").conf("autovacuum", "off").start_with_extension();
    primary.execute("CREATE TABLE t (id bigint PRIMARY KEY DEFAULT snowflake_next())");
    primary
}

pub fn standby_of(primary: &Cluster, behind: Behind) -> Cluster {
    let has_mark = matches!(behind, Behind::Hour);
    if has_mark {
        primary.execute("INSERT INTO t DEFAULT VALUES");
    }
    let standby = primary.standby_builder().fake_clock().start();
    assert_eq!(standby.data_dir().join("idgen/clock").exists(), has_mark, "{behind:?}");
    match behind {
        Behind::Minute => primary.clock().set_offset_ms(60 * SECOND_MS),
        Behind::Hour => primary.clock().set_offset_ms(HOUR_MS),
    }
    standby
}

pub fn insert(client: &mut Client, count: i64) -> Vec<i64> {
    let sql = "WITH new AS (INSERT INTO t SELECT snowflake_next() FROM generate_series(1, $1::bigint) RETURNING id)
               SELECT array_agg(id ORDER BY id) FROM new";
    client.query_one(sql, &[&count]).unwrap_or_else(|error| panic!("{error:?}")).get(0)
}

/// The ids of the table, in order.
pub fn stored(client: &mut Client) -> Vec<i64> {
    value(client, "SELECT array_agg(id ORDER BY id) FROM t")
}

/// Kills the primary while several sessions insert, and returns the ids whose commit they saw.
fn kill_under_load(primary: &Cluster, standby: &Cluster) -> Vec<i64> {
    const SESSIONS: usize = 4;
    const ENOUGH: usize = 100;
    let counts: [AtomicUsize; SESSIONS] = Default::default();
    standby.wait_until_replayed(primary);
    std::thread::scope(|scope| {
        let insert = |count| {
            let mut client = primary.client();
            scope.spawn(move || {
                let mut seen = Vec::new();
                // Until the primary is killed.
                while let Ok(row) = client.query_one("INSERT INTO t DEFAULT VALUES RETURNING id", &[]) {
                    seen.push(row.get::<_, i64>(0));
                    AtomicUsize::fetch_add(count, 1, Ordering::Relaxed);
                }
                seen
            })
        };
        let sessions: Vec<_> = counts.iter().map(insert).collect();
        let mut observer = standby.client();
        primary.wait_for(PATIENCE, "rows on the standby", || {
            counts.iter().all(|count| count.load(Ordering::Relaxed) > ENOUGH)
                && value::<i64>(&mut observer, "SELECT count(*) FROM t") > (SESSIONS * ENOUGH / 2) as i64
        });
        primary.kill9_postmaster();
        let seen: Vec<Vec<i64>> = sessions.into_iter().map(|session| session.join().unwrap()).collect();
        seen.iter().for_each(|ids| assert_increasing(ids));
        assert_distinct(seen.concat())
    })
}

fn assert_refused_on_standby(standby: &Cluster) {
    let mut client = standby.client();
    for call in ["snowflake_next()", "snowflake_next('js53')", "snowflake_next_many(10)"] {
        let error = client.simple_query(&format!("SELECT {call}")).expect_err(call);
        assert_eq!(error.code().map(|code| code.code()), Some("25006"), "{call}: {error:?}");
    }
}

/// Every new id is above all replicated ones, though the clock has not reached their times: by the clock alone ids would
/// repeat.
pub fn assert_ids_continue(server: &Cluster, replicated: &[i64]) {
    let mut client = server.client();
    let highest = last(replicated);
    let until_ms = time_of(&mut client, highest, "snowflake");
    let first = draw_one(&mut client, "snowflake");
    assert!(first.clock_ms < until_ms as f64, "the clock is at {}, past the ids at {until_ms}", first.clock_ms);
    assert!(first.id > highest, "{} after {highest}", first.id);
    // The primary key rejects repeats of stored ids.
    let new = insert(&mut client, replicated.len() as i64 + 10_000);
    assert!(new[0] > highest, "{} after {highest}", new[0]);
    assert_eq!(count_repeated(replicated, &new), 0);
    // The same for another layout, which has issued nothing here.
    let other = draw_one(&mut client, "js53");
    assert!(other.time_ms > until_ms, "js53 begins at {}, not after {until_ms}", other.time_ms);
}

/// How the new primary ends before its first id.
#[derive(Clone, Copy, Debug)]
enum End {
    Not,
    Backend,
    Fast,
}

#[test]
fn promoted_standby_continues_after_the_replicated_ids() {
    for _ in 0..rounds(1, 10) {
        for (behind, end) in [(Behind::Minute, End::Not), (Behind::Hour, End::Backend), (Behind::Hour, End::Fast)] {
            let primary = primary();
            let standby = standby_of(&primary, behind);
            assert_refused_on_standby(&standby);
            let seen = kill_under_load(&primary, &standby);
            assert_refused_on_standby(&standby);
            standby.promote();
            match end {
                End::Not => {}
                End::Backend => {
                    standby.kill9(backend_pid(&mut standby.client()));
                    standby.wait_until_ready();
                }
                End::Fast => standby.restart(),
            }
            let replicated = stored(&mut standby.client());
            assert!(count_repeated(&seen, &replicated) > 100, "too few ids were replicated, {behind:?}, {end:?}");
            assert_ids_continue(&standby, &replicated);
        }
    }
}

/// The prepared transaction is later than every commit by more than the margin, and there is no label, so that recovery must
/// check it.
#[test]
fn promoted_standby_repeats_no_id_of_a_prepared_transaction() {
    const LATER_MS: i64 = 120 * SECOND_MS;
    for _ in 0..rounds(1, 10) {
        let primary = primary();
        let standby = standby_of(&primary, Behind::Minute);
        let mut holder = primary.client();
        execute(&mut holder, "BEGIN; LOCK TABLE pg_shseclabel IN SHARE MODE");
        primary.execute("INSERT INTO t DEFAULT VALUES");
        primary.clock().set_offset_ms(60 * SECOND_MS + LATER_MS);
        let mut client = primary.client();
        execute(&mut client, "BEGIN");
        let prepared = insert(&mut client, 5000);
        execute(&mut client, "PREPARE TRANSACTION 'p'");
        standby.wait_until_replayed(&primary);
        let committed_ms = ms(&mut standby.client(), "pg_last_xact_replay_timestamp()");
        let prepared_ms = time_of(&mut standby.client(), prepared[0], "snowflake");
        assert!(prepared_ms >= committed_ms + LATER_MS, "prepared at {prepared_ms}, last commit at {committed_ms}");
        primary.kill9_postmaster();
        standby.promote();

        // Before it is committed, when its rows are invisible, and after.
        assert_ids_continue(&standby, &prepared);
        let mut client = standby.client();
        execute(&mut client, "COMMIT PREPARED 'p'");
        let new = insert(&mut client, 10_000);
        assert!(new[0] > last(&prepared), "{} after {}", new[0], last(&prepared));
        assert_eq!(count_repeated(&prepared, &stored(&mut client)), prepared.len(), "the transaction is committed");
    }
}

#[test]
fn failover_right_after_borrowing_repeats_no_id() {
    for _ in 0..rounds(1, 10) {
        let primary = primary();
        primary.execute("CREATE TABLE other (id bigint PRIMARY KEY)");
        let standby = standby_of(&primary, Behind::Minute);
        let mut client = primary.client();
        // Uses the whole drift of each layout and stores the last id.
        execute(&mut client, "INSERT INTO other SELECT max(id) FROM snowflake_next_many(512000, 'js53') AS id");
        execute(&mut client, "INSERT INTO t SELECT max(id) FROM snowflake_next_many(4096000) AS id");
        let borrowed: i64 = value(&mut client, "SELECT min(borrowed * 100 / issued)::bigint FROM idgen.stat_snowflake");
        assert!(borrowed >= 50, "{borrowed} % borrowed");
        standby.wait_until_replayed(&primary);
        primary.kill9_postmaster();
        standby.promote();
        let mut client = standby.client();
        let (replicated, other): (Vec<i64>, i64) = (stored(&mut client), value(&mut client, "SELECT id FROM other"));
        assert_ids_continue(&standby, &replicated);
        let first = draw_one(&mut client, "js53");
        assert!(first.id > other, "{} after {other}", first.id);
    }
}

/// The ids are past the mark in the copied file, and within the label that it allows. Recovery removes what shows that the
/// data are a backup's, so the first start has to note that elsewhere than in this file.
#[test]
fn backup_whose_first_start_cannot_write_the_file_repeats_no_id() {
    let primary = primary();
    primary.clock().set_offset_ms(HOUR_MS);
    let set_clock_ms = |time_ms: i64| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
        primary.clock().set_offset_ms(time_ms - now.as_millis() as i64);
    };
    insert(&mut primary.client(), 10);
    let copied_ms = high_water::mark_ms(&primary);
    let (dir, mut client) = (private_dir(), primary.client());
    let backup = dir.path().join("backup");
    execute(&mut client, "SELECT pg_backup_start('backup', true)");
    run(primary.program("/bin/cp").arg("-a").arg(primary.data_dir()).arg(&backup));
    std::fs::remove_file(backup.join("postmaster.pid")).expect("the file of a running server");

    // The next label is not written.
    let mut holder = primary.client();
    execute(&mut holder, "BEGIN; LOCK TABLE pg_shseclabel IN SHARE MODE");
    set_clock_ms(copied_ms - 3 * SECOND_MS / 2);
    insert(&mut primary.client(), 10);
    assert!(high_water::mark_ms(&primary) > copied_ms + SECOND_MS, "the mark has moved");
    set_clock_ms(copied_ms + SECOND_MS / 2);
    let replicated = insert(&mut primary.client(), 10);
    assert!(time_of(&mut client, replicated[0], "snowflake") >= copied_ms);
    let label: String = row(&mut client, "SELECT labelfile FROM pg_backup_stop()").get(0);
    let label_file = backup.join("backup_label");
    std::fs::write(&label_file, label).expect("a directory of the test");
    chown_to_server(&label_file);
    primary.kill9_postmaster();
    let copy_wal = "cp $0/pg_wal/0* $1/pg_wal";
    run(primary.program("/bin/sh").arg("-c").arg(copy_wal).arg(primary.data_dir()).arg(&backup));

    let server = primary.restored(&backup);
    let file = high_water::file(&server);
    let set_mode = |mode| std::fs::set_permissions(&file, Permissions::from_mode(mode)).expect("a file of the server");
    set_mode(0o400);
    server.start_again();
    server.kill9_postmaster();
    set_mode(0o600);
    server.start_again();
    assert_ids_continue(&server, &replicated);
}

/// A start that follows other WAL draws a number first. With the earlier one, or as a new server, it could repeat ids.
#[test]
fn standby_that_cannot_write_its_number_does_not_start() {
    let primary = primary();
    let standby = standby_of(&primary, Behind::Hour);
    standby.stop(Stop::Fast);
    let number = standby.data_dir().join("idgen_place");
    std::fs::remove_file(&number).expect("a server has a number");
    std::fs::create_dir(&number).expect("the data directory is writable");
    standby.spawn();
    standby.wait_until_exited();
    let log = standby.log();
    assert!(log.contains("could not write file \"idgen_place\""), "{log}");
    std::fs::remove_dir(&number).expect("an empty directory");
    let replicated = insert(&mut primary.client(), 10);
    standby.start_again();
    standby.wait_until_replayed(&primary);
    primary.kill9_postmaster();
    standby.promote();
    assert_ids_continue(&standby, &replicated);
}
