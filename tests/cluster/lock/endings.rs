//! Waits that end without the lock: the session holds exactly what it held before.

use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, row, value};
use postgres::Client;

use crate::{builder, locks, locks_of, wait_until_queued};

/// Every form of call that waits for 'taken', alone or among several names. 'mine' is held already.
const WAITS: [&str; 8] = [
    "SELECT lock_acquire('taken')",
    "SELECT lock_acquire_xact('taken')",
    "SELECT lock_try_acquire('taken', '1 hour')",
    "SELECT lock_try_acquire_xact('taken', '1 hour')",
    "SELECT lock_acquire_many('{free,mine,taken,too}')",
    "SELECT lock_acquire_many_xact('{free,mine,taken,too}')",
    "SELECT lock_try_acquire_many('{free,mine,taken,too}', '1 hour')",
    "SELECT lock_try_acquire_many_xact('{free,mine,taken,too}', '1 hour')",
];

/// The session holds 'mine' twice and nothing else.
fn assert_unchanged(client: &mut Client, observer: &mut Client, pid: i32, what: &str) {
    assert_eq!(locks_of(observer, pid), 1, "{what}");
    let shown = "SELECT string_agg(name || ' ' || depth || ' ' || scope, ', ') FROM idgen.locks WHERE pid = ";
    assert_eq!(value::<String>(observer, &format!("{shown}{pid}")), "mine 2 session", "{what}");
    assert_eq!(value::<String>(client, "SHOW lock_timeout"), "0", "{what}");
}

#[test]
fn cancelled_wait_changes_no_lock() {
    let cluster = builder().start_with_extension();
    let (mut holder, mut client, mut observer) = (cluster.client(), cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    execute(&mut holder, "SELECT lock_acquire('taken')");
    execute(&mut client, "SELECT lock_acquire('mine'), lock_acquire('mine')");
    for wait in WAITS {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| expect_error(&mut client, wait, "57014"));
            wait_until_queued(&cluster, pid);
            execute(&mut observer, &format!("SELECT pg_cancel_backend({pid})"));
            waiter.join().unwrap();
        });
        assert_unchanged(&mut client, &mut observer, pid, wait);

        execute(&mut client, "BEGIN; SAVEPOINT s; SET LOCAL statement_timeout = '50ms'");
        expect_error(&mut client, wait, "57014");
        execute(&mut client, "ROLLBACK TO s");
        assert_unchanged(&mut client, &mut observer, pid, wait);
        execute(&mut client, "COMMIT");
    }
    let released = "SELECT lock_release('mine')";
    assert!(value::<bool>(&mut client, released) && value::<bool>(&mut client, released));
    assert!(!value::<bool>(&mut client, released));
    assert_eq!(locks(&mut observer), 1);
}

#[test]
fn timed_out_wait_changes_no_lock() {
    let cluster = builder().start_with_extension();
    let (mut holder, mut client, mut observer) = (cluster.client(), cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    execute(&mut holder, "SELECT lock_acquire('taken')");
    execute(&mut client, "SELECT lock_acquire('mine'), lock_acquire('mine')");
    for wait in WAITS {
        for limit in ["1 us", "999 us", "1 ms", "30 ms"] {
            execute(&mut client, "BEGIN");
            if wait.contains("try") {
                assert!(!value::<bool>(&mut client, &wait.replace("1 hour", limit)), "{wait}");
            } else {
                // Forms without a timeout follow lock_timeout, whose error aborts the transaction.
                execute(&mut client, "SAVEPOINT s; SET LOCAL lock_timeout = '30ms'");
                expect_error(&mut client, wait, "55P03");
                execute(&mut client, "ROLLBACK TO s");
            }
            assert_unchanged(&mut client, &mut observer, pid, wait);
            execute(&mut client, "COMMIT");
        }
    }
    // Forms with a timeout neither use nor change lock_timeout.
    execute(&mut client, "SET lock_timeout = '10ms'");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let answer: bool = value(&mut client, "SELECT lock_try_acquire('taken', '1 hour')");
            (answer, client)
        });
        wait_until_queued(&cluster, pid);
        let over = format!(
            "SELECT clock_timestamp() > waitstart + interval '1 s' FROM pg_locks WHERE pid = {pid} AND NOT granted"
        );
        cluster.wait_for(PATIENCE, "lock_timeout to pass during the wait", || value(&mut observer, &over));
        execute(&mut holder, "SELECT lock_release('taken')");
        let (answer, mut client) = waiter.join().unwrap();
        assert!(answer);
        assert_eq!(value::<String>(&mut client, "SHOW lock_timeout"), "10ms");
        execute(&mut holder, "SELECT pg_advisory_lock(7)");
        expect_error(&mut client, "SELECT pg_advisory_lock(7)", "55P03");
    });
}

#[test]
fn terminated_waiter_leaves_nothing() {
    let cluster = builder().start_with_extension();
    let (mut holder, mut observer) = (cluster.client(), cluster.client());
    execute(&mut holder, "SELECT lock_acquire('taken')");
    for wait in WAITS {
        let mut client = cluster.client();
        let pid = backend_pid(&mut client);
        execute(&mut client, "SELECT lock_acquire('mine')");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| client.simple_query(wait).is_err());
            wait_until_queued(&cluster, pid);
            assert!(value::<bool>(&mut observer, &format!("SELECT pg_terminate_backend({pid}, 60000)")));
            assert!(waiter.join().unwrap());
        });
        assert_eq!(locks(&mut observer), 1, "{wait}");
        assert_eq!(value::<i64>(&mut observer, "SELECT count(*) FROM idgen.lock_get_holds()"), 1, "{wait}");
    }
}

/// The server reinitializes its shared memory: no lock and no name is left.
#[test]
fn crash_of_a_waiting_process_leaves_nothing() {
    let cluster = builder().start_with_extension();
    let (mut holder, mut client) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    execute(&mut holder, "SELECT lock_acquire('taken')");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.simple_query(WAITS[0]).is_err());
        wait_until_queued(&cluster, pid);
        let noted =
            "SELECT (SELECT count(*) FROM idgen.lock_get_holds()), (SELECT count(*) FROM idgen.lock_get_names())";
        let noted = row(&mut holder, noted);
        assert_eq!((noted.get(0), noted.get(1)), (2i64, 1i64), "one holder and one waiter");
        cluster.kill9(pid);
        assert!(waiter.join().unwrap());
    });
    cluster.wait_until_ready();
    let mut client = cluster.client();
    assert_eq!(locks(&mut client), 0);
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.lock_get_names()"), 0);
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.lock_get_holds()"), 0);
    assert!(value::<bool>(&mut client, "SELECT lock_try_acquire('taken')"));
    assert_eq!(value::<String>(&mut client, "SELECT name || ' ' || scope FROM idgen.locks"), "taken session");
}

/// Nothing waits, so the call ends long after the timeout, and no wait serves it.
#[test]
fn several_locks_whose_call_is_cancelled_without_a_wait_are_released() {
    let cluster = builder().start_with_extension();
    let mut observer = cluster.client();
    let names = "SELECT array_agg('name ' || n) AS names FROM generate_series(1, 5000) AS n";
    execute(&mut observer, &format!("CREATE TABLE names AS {names}"));
    for call in ["lock_acquire_many(names)", "lock_try_acquire_many(names)", "lock_acquire_many_xact(names)"] {
        let mut client = cluster.client();
        let pid = backend_pid(&mut client);
        execute(&mut client, "SET statement_timeout = '2 ms'");
        expect_error(&mut client, &format!("SELECT {call} FROM names"), "57014");
        assert_eq!(locks_of(&mut observer, pid), 0, "{call}");
        assert_eq!(value::<i64>(&mut observer, "SELECT count(*) FROM idgen.locks"), 0, "{call}");
    }
}
