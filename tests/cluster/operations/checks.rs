//! Every error that stops draws, acquisitions or settled reads has a check that fails, and says what to do.

use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, value, wait_for_event};
use idgen_testkit::{Builder, Cluster, Stop, high_water};
use postgres::Client;
use std::os::unix::fs::PermissionsExt;

fn builder() -> Builder {
    Cluster::builder().conf("fsync", "off").conf("idgen.worker_id", "0")
}

/// A check that fails: its severity, and its other columns as one text.
fn failing(client: &mut Client, name: &str) -> Option<(String, String)> {
    let sql = "SELECT severity, concat_ws(' | ', affects, message, action) FROM idgen.checks
               WHERE \"check\" = $1 AND NOT ok AND message <> '' AND action <> ''";
    client.query_opt(sql, &[&name]).expect("a query of the view").map(|row| (row.get(0), row.get(1)))
}

fn assert_fails(client: &mut Client, name: &str, severity: &str, texts: &[&str]) {
    let (is, says) = failing(client, name).unwrap_or_else(|| panic!("the check \"{name}\" does not fail"));
    assert!(is == severity && texts.iter().all(|text| says.contains(text)), "{is}: {says}");
}

fn assert_ok(client: &mut Client, name: &str) {
    assert_eq!(failing(client, name), None);
}

#[test]
fn segment_at_its_bound_fails_a_check() {
    let (_cluster, [mut client]) = builder().start_with_clients();
    execute(&mut client, "SELECT segment_create('t', upper_bound => 100, step => 10, min_step => 10)");
    assert_ok(&mut client, "segment bounds");
    execute(&mut client, "SELECT segment_next('t') FROM generate_series(1, 95)");
    assert_fails(&mut client, "segment bounds", "warning", &["t | segment \"t\" has 5 values left", "segment_alter"]);
    execute(&mut client, "SELECT segment_next('t') FROM generate_series(1, 5)");
    expect_error(&mut client, "SELECT segment_next('t')", "2200H");
    assert_fails(&mut client, "segment bounds", "error", &["t | segment \"t\" has reached its upper bound"]);
    // Another role does not see the tag.
    execute(&mut client, "CREATE ROLE stranger; SET ROLE stranger");
    assert_ok(&mut client, "segment bounds");
}

/// A coordinator with a history compares that with its own identity.
#[test]
fn coordinator_without_an_identity_fails_a_check() {
    let (cluster, [mut client]) = builder().start_with_clients();
    execute(&mut client, "SELECT segment_create('t')");
    execute(&mut client, "SELECT segment_request('t', 1, 'one', 0, 10)");
    execute(&mut client, "SELECT worker_pool_define('p', count => 1, ttl => '10 s')");
    execute(&mut client, "SELECT worker_acquire('p')");
    let place = cluster.data_dir().join("idgen_place");
    let hidden = cluster.data_dir().join("hidden");
    std::fs::rename(&place, &hidden).expect("the file is moved");
    let mut client = cluster.client();
    assert_fails(
        &mut client,
        "segment servers",
        "error",
        &["could not read file \"idgen_place\"", "restart the server"],
    );
    std::fs::rename(&hidden, &place).expect("the file is moved back");
    assert_ok(&mut cluster.client(), "segment servers");
    cluster.restart_with("shared_preload_libraries", "");
    let mut client = cluster.client();
    assert_fails(&mut client, "segment servers", "error", &["shared_preload_libraries"]);
}

#[test]
fn detached_segment_fails_a_check() {
    let (_cluster, [mut client]) = builder().conf("idgen.coordinator", "host=nowhere").start_with_clients();
    execute(&mut client, "SELECT segment_attach('t')");
    assert_ok(&mut client, "segment bounds");
    execute(&mut client, "SELECT segment_detach('t')");
    expect_error(&mut client, "SELECT segment_next('t')", "55000");
    assert_fails(&mut client, "segment bounds", "error", &["t | segment \"t\" was detached", "segment_attach"]);
    // With a bound of its own.
    execute(&mut client, "SELECT segment_alter('t', max_id => 9000, upper_bound => 9003)");
    assert_fails(&mut client, "segment bounds", "warning", &["t | segment \"t\" has 3 values left"]);
    execute(&mut client, "SELECT segment_next('t') FROM generate_series(1, 3)");
    expect_error(&mut client, "SELECT segment_next('t')", "55000");
    assert_fails(&mut client, "segment bounds", "error", &["t | segment \"t\" was detached"]);
    execute(&mut client, "SELECT segment_alter('t', max_id => 1000000, upper_bound => 1000000000)");
    assert_ok(&mut client, "segment bounds");
    execute(&mut client, "SELECT segment_create('s', start => 97, stride => 10, residue => 5, upper_bound => 105)");
    assert_fails(&mut client, "segment bounds", "warning", &["s | segment \"s\" has 1 values left"]);
}

#[test]
fn locked_row_of_a_segment_fails_a_check_until_it_is_drawn_from() {
    let (_cluster, [mut client, mut locker]) = builder().start_with_clients();
    execute(&mut client, "SELECT segment_create('t'); SET idgen.segment_timeout = '300ms'");
    execute(&mut locker, "BEGIN; SELECT FROM idgen.segment FOR UPDATE");
    expect_error(&mut client, "SELECT segment_next('t')", "55P03");
    assert_fails(&mut client, "segments", "error", &["t | ", "draws fail", "End the transaction"]);
    let since =
        "SELECT since BETWEEN now() - interval '1 min' AND now() FROM idgen.checks WHERE \"check\" = 'segments'";
    assert!(value::<bool>(&mut client, since));
    execute(&mut locker, "COMMIT");
    execute(&mut client, "RESET idgen.segment_timeout");
    assert_eq!(value::<i64>(&mut client, "SELECT segment_next('t')"), 1);
    assert_ok(&mut client, "segments");
}

/// A session that is cancelled before its wait fails leaves no error.
#[test]
fn segment_whose_waits_are_cancelled_fails_a_check() {
    let (cluster, [mut client]) = builder().fake_clock().start_with_clients();
    execute(&mut client, "SELECT segment_create('t')");
    execute(&mut client, "SET synchronous_commit = local; SET statement_timeout = '300ms'");
    cluster.reload_with("synchronous_standby_names", "nobody");
    cluster.wait_for(PATIENCE, "a draw that waits", || client.query("SELECT segment_next('t')", &[]).is_err());
    cluster.clock().set_offset_ms(6_000);
    assert_fails(&mut client, "segments", "error", &["t | ", "draws fail", "synchronous standby"]);
    cluster.reload_with("synchronous_standby_names", "");
    execute(&mut client, "RESET statement_timeout");
    execute(&mut client, "SELECT segment_next('t') FROM generate_series(1, 2000)");
    assert_ok(&mut client, "segments");
}

#[test]
fn coordinator_that_waits_for_reports_fails_a_check() {
    let (_cluster, [mut client]) = builder().start_with_clients();
    execute(&mut client, "SELECT segment_create('t')");
    execute(&mut client, "SELECT first_id FROM segment_request('t', 1, 'one', 0, 10)");
    assert_ok(&mut client, "segment servers");
    // As in a copy that was made after the grant.
    execute(&mut client, "UPDATE idgen.segment SET history = 'of another server'");
    execute(&mut client, "UPDATE idgen.segment_server SET history = 'of another server'");
    let texts = ["t | no values of segment \"t\" are granted", "missing: 1", "segment_resume"];
    assert_fails(&mut client, "segment servers", "error", &texts);
    execute(&mut client, "SELECT segment_resume('t', 5000)");
    assert_ok(&mut client, "segment servers");
}

#[test]
fn standby_that_is_away_fails_a_check_of_segments() {
    let (cluster, [mut client]) = builder().start_with_clients();
    execute(&mut client, "SELECT segment_create('t', step => 1, min_step => 1, max_step => 1)");
    execute(&mut client, "SET synchronous_commit = local; SET idgen.segment_timeout = '300ms'");
    cluster.reload_with("synchronous_standby_names", "nobody");
    // Once the server has read the setting.
    cluster.wait_for(PATIENCE, "a draw that fails", || client.query("SELECT segment_next('t')", &[]).is_err());
    assert_fails(&mut client, "segments", "error", &["draws fail", "synchronous standby"]);
    cluster.reload_with("synchronous_standby_names", "");
}

/// Nothing tries again without a draw, so an old failure says little about the next one.
#[test]
fn missing_worker_slots_fail_a_check_of_segments() {
    let (cluster, [mut client]) = builder().fake_clock().conf("max_worker_processes", "0").start_with_clients();
    execute(&mut client, "CREATE ROLE stranger; SELECT segment_create('t')");
    expect_error(&mut client, "SELECT segment_next('t')", "53400");
    assert_fails(&mut client, "segments", "error", &["draws fail: All slots", "Raise max_worker_processes"]);
    cluster.clock().set_offset_ms(600_000);
    assert_fails(&mut client, "segments", "warning", &["the last draw failed at 2", "a value ends this check"]);
    // Another role learns that a segment gets no values, and neither its name nor why.
    execute(&mut client, "SET ROLE stranger");
    let shown = failing(&mut client, "segments").expect("a check that fails").1;
    assert!(!shown.contains("All slots") && !shown.starts_with("t |"), "{shown}");
}

/// Before the first draw, which says the same.
#[test]
fn missing_or_unwritable_high_water_file_fails_a_check() {
    for (is_missing, text, code) in [(true, "is missing", "58P01"), (false, "Permission denied", "58030")] {
        let cluster = builder().start_with_extension();
        execute(&mut cluster.client(), "SELECT snowflake_next()");
        cluster.stop(Stop::Fast);
        let file = high_water::file(&cluster);
        let permit = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("the file");
        if is_missing {
            std::fs::remove_file(&file).expect("the file")
        } else {
            permit(0o400)
        }
        cluster.start_again();
        let mut client = cluster.client();
        assert_fails(&mut client, "mark", "error", &[text]);
        expect_error(&mut client, "SELECT snowflake_next()", code);
        if !is_missing {
            permit(0o600);
            execute(&mut client, "SELECT snowflake_next()");
            assert_ok(&mut client, "mark");
        }
    }
}

#[test]
fn server_without_a_worker_id_fails_a_check() {
    let coordinator = "host=/nonexistent dbname=ids";
    let pool = Cluster::builder().conf("idgen.worker_pool", "servers").conf("idgen.coordinator", coordinator);
    for (builder, code, text) in [
        (pool.conf("fsync", "off"), "55000", "this server has no worker id yet from pool "),
        (builder().conf("idgen.worker_id", "5000"), "22003", "does not fit layout "),
    ] {
        let (_cluster, [mut client]) = builder.start_with_clients();
        expect_error(&mut client, "SELECT snowflake_next()", code);
        assert_fails(&mut client, "worker", "error", &[text]);
    }
}

#[test]
fn clock_before_the_epoch_fails_a_check() {
    let layout = "time:41 worker:10 sequence:12 unit:1ms epoch:2090-01-01";
    let (_cluster, [mut client]) = builder().conf("idgen.layout", layout).start_with_clients();
    expect_error(&mut client, "SELECT snowflake_next()", "22003");
    assert_fails(&mut client, "layouts", "error", &["the clock is before the epoch"]);
}

#[test]
fn transaction_that_holds_settled_ids_back_fails_a_check() {
    let (cluster, [mut client, mut open]) =
        builder().fake_clock().conf("max_prepared_transactions", "1").start_with_clients();
    // Ids that are ahead of the clock do not hide the transaction.
    execute(&mut open, "CREATE TABLE t (id bigint); SELECT snowflake_observe(snowflake_floor(now() + '2 h'))");
    execute(&mut open, "BEGIN; INSERT INTO t VALUES (snowflake_next())");
    assert_ok(&mut client, "settled");
    cluster.clock().set_offset_ms(600_000);
    let process = format!("process {}", backend_pid(&mut open));
    assert_fails(&mut client, "settled", "warning", &[&process, "settled ids wait for"]);
    execute(&mut open, "PREPARE TRANSACTION 'p'");
    assert_ok(&mut client, "settled");
    cluster.clock().set_offset_ms(1_200_000);
    assert_fails(&mut client, "settled", "warning", &["prepared transaction", "ROLLBACK PREPARED"]);
    execute(&mut open, "COMMIT PREPARED 'p'");
    assert_ok(&mut client, "settled");
}

#[test]
fn session_that_waits_for_a_fence_fails_a_check() {
    let (cluster, [mut client, mut holder, mut waiter]) =
        builder().fake_clock().conf("deadlock_timeout", "1ms").start_with_clients();
    let token: i64 = value(&mut holder, "SELECT token FROM lease_acquire('x', '200ms')");
    execute(&mut holder, &format!("BEGIN; SELECT lease_fence('x', {token})"));
    let (blocking, pid) = (backend_pid(&mut holder), backend_pid(&mut waiter));
    std::thread::scope(|scope| {
        scope.spawn(|| execute(&mut waiter, "SELECT lease_acquire('x')"));
        wait_for_event(&cluster, pid, "transactionid");
        let shown = format!("SELECT waiting_pids = '{{{pid}}}' AND blocked_by = '{{{blocking}}}' FROM idgen.leases");
        assert!(value::<bool>(&mut client, &shown));
        assert_ok(&mut client, "leases");
        cluster.clock().set_offset_ms(20_000);
        let texts = [format!("process {pid}"), format!("the transaction of process {blocking} ")];
        // The head of the queue gives up after about a second, and waits again.
        let again = format!(
            "SELECT waitstart > clock_timestamp() - interval '5 s' FROM pg_locks WHERE NOT granted AND pid = {pid}"
        );
        cluster.wait_for(PATIENCE, "another wait", || {
            client.query_opt(&again, &[]).unwrap().is_some_and(|row| row.get::<_, Option<bool>>(0) == Some(true))
        });
        assert_fails(&mut client, "leases", "warning", &texts.each_ref().map(String::as_str));
        execute(&mut holder, "COMMIT");
    });
    assert_ok(&mut client, "leases");
}

/// A renewal waits for a release, and an acquisition for a lock on the whole table.
#[test]
fn session_that_waits_for_a_row_or_the_table_of_leases_fails_a_check() {
    let (cluster, [mut client, mut holder, mut waiter]) = builder().fake_clock().start_with_clients();
    let token: i64 = value(&mut holder, "SELECT token FROM lease_acquire('x', '1 h')");
    let (blocking, pid) = (backend_pid(&mut holder), backend_pid(&mut waiter));
    let release = format!("SELECT lease_release('x', {token})");
    let mut offset_ms = 0;
    for (block, wait, event) in [
        (release.as_str(), format!("SELECT lease_renew('x', {token})"), "transactionid"),
        ("LOCK TABLE idgen.lease IN EXCLUSIVE MODE", "SELECT lease_acquire('y')".to_owned(), "relation"),
    ] {
        execute(&mut holder, &format!("BEGIN; {block}"));
        std::thread::scope(|scope| {
            scope.spawn(|| execute(&mut waiter, &wait));
            wait_for_event(&cluster, pid, event);
            assert_ok(&mut client, "leases");
            offset_ms += 20_000;
            cluster.clock().set_offset_ms(offset_ms);
            let texts = [format!("process {pid}"), format!("the transaction of process {blocking} ")];
            assert_fails(&mut client, "leases", "warning", &texts.each_ref().map(String::as_str));
            execute(&mut holder, "ROLLBACK");
        });
        assert_ok(&mut client, "leases");
    }
}

/// It holds the lock of the queue until it ends.
#[test]
fn session_with_a_new_lease_that_waits_for_something_else_fails_no_check() {
    let (cluster, [mut client, mut holder, mut waiter]) = builder().fake_clock().start_with_clients();
    execute(&mut holder, "CREATE TABLE t (n int); INSERT INTO t VALUES (1)");
    execute(&mut holder, "BEGIN; UPDATE t SET n = 2");
    let pid = backend_pid(&mut waiter);
    std::thread::scope(|scope| {
        scope.spawn(|| execute(&mut waiter, "BEGIN; SELECT lease_acquire('x'); UPDATE t SET n = 3; COMMIT"));
        wait_for_event(&cluster, pid, "transactionid");
        cluster.clock().set_offset_ms(20_000);
        assert_ok(&mut client, "leases");
        execute(&mut holder, "COMMIT");
    });
}

#[test]
fn locked_table_fails_a_check_and_holds_none_up() {
    let (_cluster, [mut client, mut locker]) = builder().start_with_clients();
    execute(&mut client, "SET statement_timeout = '5s'");
    for table in ["segment", "worker_id"] {
        assert_ok(&mut client, "tables");
        execute(&mut locker, &format!("BEGIN; LOCK TABLE idgen.{table}"));
        assert_fails(&mut client, "tables", "error", &[&format!("the table idgen.{table}"), "End the transaction"]);
        execute(&mut locker, "COMMIT");
    }
}

#[test]
fn full_pool_fails_a_check() {
    let (cluster, [mut client]) = builder().start_with_clients();
    execute(&mut client, "SELECT worker_pool_define('pods', 5, 2, '1 min')");
    execute(&mut client, "SELECT worker_acquire('pods', ttl => '1 min')");
    assert_ok(&mut client, "pool slots");
    execute(&mut client, "SELECT worker_acquire('pods', ttl => '200 ms')");
    assert_fails(&mut client, "pool slots", "warning", &["pods | all worker ids of pool \"pods\" are taken"]);
    // A worker id whose id times are over can be granted.
    cluster.wait_for(PATIENCE, "the end of the id times", || failing(&mut client, "pool slots").is_none());
}

#[test]
fn segments_that_take_each_others_places_fail_a_check() {
    let (cluster, [mut client]) = builder().conf("idgen.max_segments", "2").start_with_clients();
    for tag in 0..4 {
        execute(&mut client, &format!("SELECT segment_create('{tag}')"));
    }
    let mut draw = |tag: i32| execute(&mut cluster.client(), &format!("SELECT segment_next('{tag}')"));
    (0..4).for_each(&mut draw);
    assert_ok(&mut client, "segment places");
    (0..2).for_each(&mut draw);
    assert_fails(&mut client, "segment places", "warning", &["idgen.max_segments = 2"]);
    execute(&mut client, "SELECT idgen.reset_stats()");
    assert_ok(&mut client, "segment places");
}

/// Dead versions of a row cannot be removed while a snapshot shows them, and each change reads through them.
#[test]
fn forgotten_snapshot_beside_changes_of_leases_fails_a_check() {
    let cluster =
        builder().conf("autovacuum", "off").conf("max_prepared_transactions", "1").fake_clock().start_with_extension();
    let [mut forgotten, mut client] = [cluster.client(), cluster.client()];
    execute(&mut forgotten, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1");
    execute(&mut client, "SELECT lease_define('a')");
    execute(
        &mut client,
        "DO $$ BEGIN FOR i IN 1..5100 LOOP
             PERFORM lease_release('a', token) FROM lease_acquire('a'); COMMIT;
         END LOOP; END $$",
    );
    execute(&mut client, "SELECT pg_stat_force_next_flush()");
    assert_ok(&mut client, "old snapshots");
    cluster.clock().set_offset_ms(600_000);
    let pid = backend_pid(&mut forgotten).to_string();
    assert_fails(&mut client, "old snapshots", "warning", &["the snapshot of process", &pid, "pg_terminate_backend"]);
    execute(&mut forgotten, "COMMIT");
    assert_ok(&mut client, "old snapshots");
}
