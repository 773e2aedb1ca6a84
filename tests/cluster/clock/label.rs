//! The label, which tells replicas how far ids may go, and the background worker that writes it.

use idgen_testkit::ids::last;
use idgen_testkit::sql::{PATIENCE, check, execute, value};
use idgen_testkit::{Cluster, high_water, rounds};
use postgres::Client;

use crate::builder;
use crate::replica::{AHEAD_MS, take_ahead};

const WORKER: &str = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idgen label'";

/// The text of the label, and how often it was written since the server's statistics began.
fn label(client: &mut Client) -> (String, i64) {
    let text = value(client, "SELECT label FROM pg_shseclabel WHERE provider = 'idgen'");
    let writes = "SELECT n_tup_ins + n_tup_upd FROM pg_stat_all_tables WHERE relname = 'pg_shseclabel'";
    (text, value(client, writes))
}

/// The check "mark" of `idgen.status()`, and how often the log says that standbys do not know the mark.
fn unknown_to_standbys(server: &Cluster) -> (bool, usize) {
    let (ok, message) = check(&mut server.client(), "mark");
    assert!(ok || message.contains("raise max_worker_processes"), "{message}");
    (!ok, server.log().matches("a standby that is promoted now may issue ids again").count())
}

#[test]
fn the_label_is_written_at_most_as_often_as_the_mark() {
    let server = builder().conf("idgen.clock_window", "1s").start_with_extension();
    let mut client = server.client();
    let mark_writes = "SELECT mark_writes FROM idgen.stat_clock";
    server.wait_for(PATIENCE, "the mark to be moved", || {
        execute(&mut client, "SELECT count(*) FROM snowflake_next_many(10000)");
        value::<i64>(&mut client, mark_writes) >= 6
    });
    server.wait_for(PATIENCE, "the worker to be gone", || value::<i64>(&mut client, WORKER) == 0);
    let marks: i64 = value(&mut client, mark_writes);
    let (text, writes) = label(&mut client);
    // One more: the first is needed before the first mark.
    assert!((marks / 2..=marks + 1).contains(&writes), "the label was written {writes} times, the mark {marks} times");
    assert!(text.starts_with("1 timeline 1 until "), "{text}");
    let until_ms: i64 = text.rsplit(' ').next().and_then(|until| until.parse().ok()).expect("a time");
    assert!(until_ms >= high_water::mark_ms(&server), "{text}");
    assert!(check(&mut client, "mark").0);

    // A server that draws no ids writes none.
    server.restart();
    let mut client = server.client();
    assert_eq!(label(&mut client).0, text);
}

/// A transaction that rolls back and may not write draws as any other.
#[test]
fn the_label_is_written_whatever_the_transaction_becomes() {
    let server = builder().start_with_extension();
    let mut client = server.client();
    execute(&mut client, "BEGIN READ ONLY; SELECT snowflake_next(); ROLLBACK");
    let (text, _) = label(&mut client);
    assert!(text.starts_with("1 timeline 1 until "), "{text}");
    // Not of the session's database, and no dump has it.
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM pg_seclabels"), 0);
}

#[test]
fn ids_go_on_where_there_is_no_background_worker() {
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
fn the_worker_waits_for_no_synchronous_standby() {
    let server = builder().start_with_extension();
    server.set_conf("synchronous_standby_names", "nobody");
    server.set_conf("default_transaction_isolation", "serializable");
    server.set_conf("default_transaction_deferrable", "on");
    server.set_conf("default_transaction_read_only", "on");
    server.reload();
    let mut client = server.client();
    execute(&mut client, "SELECT snowflake_next()");
    assert_eq!(unknown_to_standbys(&server), (false, 0));
    assert!(!label(&mut client).0.is_empty());
}

/// The order that all rests on: no id past the label before WAL has the next.
#[test]
fn the_mark_waits_for_the_label_smoke() {
    let server = builder().start_with_extension();
    let mut client = server.client();
    execute(&mut client, "SELECT snowflake_next()");
    server.wait_for(PATIENCE, "the worker to be gone", || value::<i64>(&mut client, WORKER) == 0);
    let (text, _) = label(&mut client);
    let mark_ms = high_water::mark_ms(&server);
    let mut holder = server.client();
    execute(&mut holder, "BEGIN; LOCK TABLE pg_shseclabel IN SHARE UPDATE EXCLUSIVE MODE");
    let mut observer = server.client();
    std::thread::scope(|scope| {
        let observing = scope.spawn(|| take_ahead(&mut observer));
        let waiting = format!("{WORKER} AND wait_event_type = 'Lock'");
        server.wait_for(PATIENCE, "the worker to wait for the lock", || value::<i64>(&mut client, &waiting) == 1);
        assert!(!observing.is_finished());
        assert_eq!(high_water::mark_ms(&server), mark_ms);
        assert_eq!(label(&mut client).0, text);
        execute(&mut holder, "COMMIT");
        observing.join().expect("an id that can be observed");
    });
    assert!(high_water::mark_ms(&server) > mark_ms + AHEAD_MS / 2);
    assert!(label(&mut client).0 > text);
    assert_eq!(unknown_to_standbys(&server), (false, 0));
}

/// The worker waits for a lock that somebody holds, or is ended. When it gets its work done, all is well again.
#[test]
fn ids_go_on_while_the_worker_gets_nowhere() {
    let server = builder().conf("idgen.clock_window", "100ms").start_with_extension();
    let mut client = server.client();
    execute(&mut client, "SELECT snowflake_next()");
    assert_eq!(unknown_to_standbys(&server), (false, 0));
    let mut holder = server.client();
    execute(&mut holder, "BEGIN; LOCK TABLE pg_shseclabel IN SHARE UPDATE EXCLUSIVE MODE");
    let draw_until = |client: &mut Client, what: &str, behind: bool| {
        server.wait_for(PATIENCE, what, || {
            execute(client, "SELECT count(*) FROM snowflake_next_many(1000)");
            unknown_to_standbys(&server).0 == behind
        });
    };
    draw_until(&mut client, "the mark to pass the label", true);
    let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'idgen label'";
    server.wait_for(PATIENCE, "workers to be ended", || {
        execute(&mut client, "SELECT count(*) FROM snowflake_next_many(1000)");
        value::<i64>(&mut client, ended) > 0
    });
    assert_eq!(unknown_to_standbys(&server), (true, 1), "said once");
    execute(&mut holder, "COMMIT");
    draw_until(&mut client, "the worker to have written the label", false);
    assert!(server.log().contains("standbys know again"));
}

/// The worker is in the database that was drawn in, for no longer than it writes.
#[test]
fn the_worker_keeps_no_database_from_being_dropped() {
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
