//! The label, which tells replicas the limit of ids, and the background worker that writes it.

use idgen_core::clock::label::MarkLabel;
use idgen_testkit::ids::last;
use idgen_testkit::sql::{PATIENCE, check, execute, value, wait_for_one};
use idgen_testkit::{Cluster, high_water, rounds};
use postgres::Client;

use crate::replica::{AHEAD_MS, take_ahead};
use crate::{builder, wait_for_end_of_worker};

/// The text of the label, and the number of times it was written.
fn label(client: &mut Client) -> (String, i64) {
    let text = value(client, "SELECT label FROM pg_shseclabel WHERE provider = 'idgen'");
    let writes = "SELECT n_tup_ins + n_tup_upd FROM pg_stat_all_tables WHERE relname = 'pg_shseclabel'";
    (text, value(client, writes))
}

/// True if the check "mark" of `idgen.status()` fails, and the number of log lines that standbys do not know the mark.
fn unknown_to_standbys(server: &Cluster) -> (bool, usize) {
    let (ok, message) = check(&mut server.client(), "mark");
    assert!(ok || message.contains("raise max_worker_processes"), "{message}");
    (!ok, server.log().matches("a standby that is promoted now may issue ids again").count())
}

#[test]
fn label_is_written_at_most_as_often_as_the_mark() {
    let server = builder().conf("idgen.clock_window", "1s").start_with_extension();
    let mut client = server.client();
    let mark_writes = "SELECT mark_writes FROM idgen.stat_clock";
    server.wait_for(PATIENCE, "the mark to be moved", || {
        execute(&mut client, "SELECT count(*) FROM snowflake_next_many(10000)");
        value::<i64>(&mut client, mark_writes) >= 6
    });
    // Not only the end of a worker: the last one may not have started yet.
    server.wait_for(PATIENCE, "a label that covers the next move of the mark", || {
        let label = MarkLabel::parse(&label(&mut client).0).expect("a label");
        !MarkLabel::is_due(label.until_ms, high_water::mark_ms(&server), i64::MAX, 1000, 1000)
    });
    wait_for_end_of_worker(&server, &mut client);
    let marks: i64 = value(&mut client, mark_writes);
    let (text, writes) = label(&mut client);
    // One more, because the first label is needed before the first mark.
    assert!((marks / 2..=marks + 1).contains(&writes), "the label was written {writes} times, the mark {marks} times");
    assert!(text.starts_with("1 timeline 1 until "), "{text}");
    let until_ms: i64 = text.rsplit(' ').next().and_then(|until| until.parse().ok()).expect("a time");
    assert!(until_ms >= high_water::mark_ms(&server), "{text}");
    assert!(check(&mut client, "mark").0);

    // A server that draws no ids writes no label.
    server.restart();
    let mut client = server.client();
    assert_eq!(label(&mut client).0, text);
}

/// A read-only transaction that rolls back draws as any other.
#[test]
fn label_is_written_for_a_transaction_that_rolls_back() {
    let server = builder().start_with_extension();
    let mut client = server.client();
    execute(&mut client, "BEGIN READ ONLY; SELECT snowflake_next(); ROLLBACK");
    let (text, _) = label(&mut client);
    assert!(text.starts_with("1 timeline 1 until "), "{text}");
    // The label is not in the session's database, and no dump has it.
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM pg_seclabels"), 0);
}

#[test]
fn ids_continue_without_a_free_background_worker() {
    let server = builder()
        .conf("idgen.clock_window", "100ms")
        .conf("max_worker_processes", "0")
        .conf("max_logical_replication_workers", "0")
        .start_with_extension();
    let mut client = server.client();
    let mut highest = i64::MIN;
    server.wait_for(PATIENCE, "the mark to be moved", || {
        let drawn: Vec<i64> = value(&mut client, "SELECT array_agg(id) FROM snowflake_next_many(1000) AS id");
        assert!(drawn[0] > highest);
        highest = last(&drawn);
        value::<i64>(&mut client, "SELECT mark_writes FROM idgen.stat_clock") >= 5
    });
    assert_eq!(unknown_to_standbys(&server), (true, 1));
}

#[test]
fn label_worker_does_not_wait_for_a_synchronous_standby() {
    let server = builder().start_with_extension();
    server.set_conf("synchronous_standby_names", "absent");
    server.set_conf("default_transaction_isolation", "serializable");
    server.set_conf("default_transaction_deferrable", "on");
    server.set_conf("default_transaction_read_only", "on");
    server.reload();
    let mut client = server.client();
    execute(&mut client, "SELECT snowflake_next()");
    assert_eq!(unknown_to_standbys(&server), (false, 0));
    assert!(!label(&mut client).0.is_empty());
}

/// The basic rule: no id goes past the label before WAL has the next label.
#[test]
fn mark_waits_for_the_label_smoke() {
    let server = builder().start_with_extension();
    let mut client = server.client();
    execute(&mut client, "SELECT snowflake_next()");
    wait_for_end_of_worker(&server, &mut client);
    let (text, _) = label(&mut client);
    let mark_ms = high_water::mark_ms(&server);
    let mut holder = server.client();
    execute(&mut holder, "BEGIN; LOCK TABLE pg_shseclabel IN SHARE MODE");
    let mut observer = server.client();
    std::thread::scope(|scope| {
        let observing = scope.spawn(|| take_ahead(&mut observer));
        let waiting = "pg_stat_activity WHERE backend_type = 'idgen label' AND wait_event_type = 'Lock'";
        wait_for_one(&server, "the worker to wait for the lock", waiting);
        assert!(!observing.is_finished());
        assert_eq!(high_water::mark_ms(&server), mark_ms);
        assert_eq!(label(&mut client).0, text);
        execute(&mut holder, "COMMIT");
        observing.join().expect("the observed id");
    });
    assert!(high_water::mark_ms(&server) > mark_ms + AHEAD_MS / 2);
    assert!(label(&mut client).0 > text);
    assert_eq!(unknown_to_standbys(&server), (false, 0));
}

/// VACUUM waits for a reader of the catalog, which any role can be.
#[test]
fn label_is_written_beside_a_vacuum_that_waits() {
    let server = builder().start_with_extension();
    let [mut client, mut reader, mut vacuum] = [server.client(), server.client(), server.client()];
    execute(&mut client, "SELECT snowflake_next()");
    wait_for_end_of_worker(&server, &mut client);
    execute(&mut reader, "BEGIN; DECLARE c CURSOR FOR TABLE pg_shseclabel; FETCH c");
    std::thread::scope(|scope| {
        scope.spawn(|| execute(&mut vacuum, "VACUUM (FREEZE) pg_shseclabel"));
        wait_for_one(&server, "VACUUM to wait for the reader", "pg_stat_activity WHERE wait_event = 'BufferPin'");
        take_ahead(&mut client);
        execute(&mut reader, "COMMIT");
    });
    assert_eq!(unknown_to_standbys(&server), (false, 0));
}

/// The worker waits for a lock or is terminated. Once it can write the label, the check is ok again.
#[test]
fn ids_continue_while_the_label_worker_is_blocked_or_terminated() {
    let server = builder().conf("idgen.clock_window", "100ms").start_with_extension();
    let mut client = server.client();
    execute(&mut client, "SELECT snowflake_next()");
    assert_eq!(unknown_to_standbys(&server), (false, 0));
    let mut holder = server.client();
    execute(&mut holder, "BEGIN; LOCK TABLE pg_shseclabel IN SHARE MODE");
    let draw_until = |client: &mut Client, what: &str, behind: bool| {
        server.wait_for(PATIENCE, what, || {
            execute(client, "SELECT count(*) FROM snowflake_next_many(1000)");
            unknown_to_standbys(&server).0 == behind
        });
    };
    draw_until(&mut client, "the mark to pass the label", true);
    let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'idgen label'";
    server.wait_for(PATIENCE, "the end of workers", || {
        execute(&mut client, "SELECT count(*) FROM snowflake_next_many(1000)");
        value::<i64>(&mut client, ended) > 0
    });
    assert_eq!(unknown_to_standbys(&server), (true, 1), "logged once");
    execute(&mut holder, "COMMIT");
    draw_until(&mut client, "the new label", false);
    // The worker says so after its commit.
    server.wait_for(PATIENCE, "the message", || {
        execute(&mut client, "SELECT count(*) FROM snowflake_next_many(1000)");
        server.log().contains("wrote the high-water mark to WAL again")
    });
}

/// The worker connects to the session's database only while it writes.
#[test]
fn label_worker_does_not_block_drop_database() {
    let server = builder().conf("idgen.clock_window", "100ms").start_with_extension();
    for _ in 0..rounds(3, 30) {
        server.execute("CREATE DATABASE other");
        let mut client = server.client_in("other");
        execute(&mut client, "CREATE EXTENSION idgen");
        for _ in 0..20 {
            execute(&mut client, "SELECT count(*) FROM snowflake_next_many(200000)");
        }
        drop(client);
        server.execute("CREATE DATABASE copy TEMPLATE other");
        server.execute("DROP DATABASE copy");
        server.execute("DROP DATABASE other");
    }
    assert_eq!(unknown_to_standbys(&server), (false, 0));
}
