//! A lock that is granted in the instant when its wait ends. Pausing the waiter makes this happen.

use std::time::Duration;

use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, value};
use idgen_testkit::{Cluster, Debugger, pause};
use postgres::{Client, SimpleQueryMessage};

use crate::{builder, locks_of, wait_until_queued};

/// Long enough to find the waiter in the queue and pause it.
const TIMEOUT_MS: u64 = 5000;

/// The end of the wait that coincides with the grant.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Timeout,
    Cancel,
}

struct Case {
    hold: &'static str,
    let_go: &'static str,
    wait: &'static str,
    end: End,
    /// The answer of the call, or its SQLSTATE.
    answer: &'static str,
    /// The number of locks of the session afterwards.
    holds: i64,
}

fn run(cluster: &Cluster, case: &Case) {
    let (mut holder, mut client, mut observer) = (cluster.client(), cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    execute(&mut holder, case.hold);
    let timeout_ms = if case.wait.contains("try") { 0 } else { TIMEOUT_MS };
    execute(&mut client, &format!("SET lock_timeout = {timeout_ms}; BEGIN; SAVEPOINT s"));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let answer = client.simple_query(&case.wait.replace("$ms", &TIMEOUT_MS.to_string()));
            let answer = match answer {
                Ok(messages) => answer_of(&messages),
                Err(error) => error.code().expect("an error of the server").code().to_owned(),
            };
            if answer != "t" {
                // The answer must be true inside the transaction, which continues.
                execute(&mut client, "ROLLBACK TO s");
            }
            (answer, value::<String>(&mut client, "SHOW lock_timeout"))
        });
        wait_until_queued(cluster, pid);
        let paused = pause(pid);
        match case.end {
            End::Timeout => wait_until_waited(cluster, &mut observer, pid, TIMEOUT_MS + 10),
            End::Cancel => execute(&mut observer, &format!("SELECT pg_cancel_backend({pid})")),
        }
        execute(&mut holder, case.let_go);
        // The waiter has the lock but has not noticed yet.
        let waits = format!("SELECT count(*) FROM pg_locks WHERE pid = {pid} AND NOT granted");
        assert_eq!(value::<i64>(&mut observer, &waits), 0, "{}", case.wait);
        assert!(locks_of(&mut observer, pid) > 0, "{}", case.wait);
        paused.resume();
        let (answer, lock_timeout) = waiter.join().unwrap();
        assert_eq!(answer, case.answer, "{}", case.wait);
        let shown =
            if timeout_ms == 0 { "0".to_owned() } else { format!("{}s", Duration::from_millis(timeout_ms).as_secs()) };
        assert_eq!(lock_timeout, shown, "{}", case.wait);
    });
    assert_eq!(locks_of(&mut observer, pid), case.holds, "{}", case.wait);
    execute(&mut client, "COMMIT");
    let is_transactions = case.wait.contains("xact");
    assert_eq!(locks_of(&mut observer, pid), if is_transactions { 0 } else { case.holds }, "{}", case.wait);
}

/// Waits until a process has been in the queue for this long.
fn wait_until_waited(cluster: &Cluster, observer: &mut Client, pid: i32, ms: u64) {
    let over = format!(
        "SELECT clock_timestamp() > waitstart + interval '{ms} ms' FROM pg_locks WHERE pid = {pid} AND NOT granted"
    );
    cluster.wait_for(PATIENCE, "the timeout to pass", || value(observer, &over));
}

/// The value of the only row. An empty value of type void counts as "t".
fn answer_of(messages: &[SimpleQueryMessage]) -> String {
    let found = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    found.filter(|text| !text.is_empty()).unwrap_or_else(|| "t".to_owned())
}

fn run_all(cases: &[Case]) {
    let cluster = builder().start_with_extension();
    // In parallel, because each case waits for its timeout.
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| run(&cluster, case));
        }
    });
    assert_eq!(value::<i64>(&mut cluster.client(), "SELECT count(*) FROM idgen.lock_get_holds()"), 0);
}

#[test]
fn lock_granted_as_the_timeout_ends_is_a_success_smoke() {
    let yes = |n: &'static str, wait, holds| Case {
        hold: leak(format!("SELECT lock_acquire('{n}')")),
        let_go: leak(format!("SELECT lock_release('{n}')")),
        wait,
        end: End::Timeout,
        answer: "t",
        holds,
    };
    run_all(&[
        yes("a", "SELECT lock_try_acquire('a', '$ms ms')", 1),
        yes("b", "SELECT lock_try_acquire_xact('b', '$ms ms')", 1),
        yes("c", "SELECT lock_try_acquire_many('{c}', '$ms ms')", 1),
        yes("d", "SELECT lock_try_acquire_many_xact('{d}', '$ms ms')", 1),
        yes("e", "SELECT lock_try_acquire_many('{e,e1,e2,e3}', '$ms ms')", 4),
        yes("f", "SELECT lock_try_acquire_many_xact('{f,f1,f2,f3}', '$ms ms')", 4),
        yes("g", "SELECT lock_acquire('g')", 1),
        yes("h", "SELECT lock_acquire_many('{h,h1,h2,h3}')", 4),
        yes("i", "SELECT lock_acquire_many_xact('{i,i1,i2,i3}')", 4),
        // The failed subtransaction releases its lock.
        Case { answer: "55P03", ..yes("j", "SELECT lock_acquire_xact('j')", 0) },
        // The control without idgen: the call fails and the session holds the lock.
        Case {
            hold: "SELECT pg_advisory_lock(1)",
            let_go: "SELECT pg_advisory_unlock(1)",
            wait: "SELECT pg_advisory_lock(1)",
            end: End::Timeout,
            answer: "55P03",
            holds: 1,
        },
    ]);
}

#[test]
fn lock_granted_as_the_wait_is_cancelled_is_released() {
    let no = |n: &'static str, wait| Case {
        hold: leak(format!("SELECT lock_acquire('{n}')")),
        let_go: leak(format!("SELECT lock_release('{n}')")),
        wait,
        end: End::Cancel,
        answer: "57014",
        holds: 0,
    };
    run_all(&[
        no("a", "SELECT lock_try_acquire('a', '1 min')"),
        no("b", "SELECT lock_try_acquire_xact('b', '1 min')"),
        no("c", "SELECT lock_try_acquire_many('{c,c1,c2,c3}', '1 min')"),
        no("d", "SELECT lock_try_acquire_many_xact('{d,d1,d2,d3}', '1 min')"),
        no("e", "SELECT lock_acquire('e')"),
        no("f", "SELECT lock_acquire_xact('f')"),
        no("g", "SELECT lock_acquire_many('{g,g1,g2,g3}')"),
        no("h", "SELECT lock_acquire_many_xact('{h,h1,h2,h3}')"),
        Case {
            hold: "SELECT pg_advisory_lock(1)",
            let_go: "SELECT pg_advisory_unlock(1)",
            wait: "SELECT pg_advisory_lock(1)",
            holds: 1,
            ..no("i", "")
        },
    ]);
}

/// A signal between the last check for interrupts and the end of the timeout is processed only after the grant.
#[test]
fn timeout_or_cancel_right_after_the_grant_counts_as_part_of_the_wait() {
    let cluster = builder().start_with_extension();
    let (mut holder, mut client, mut observer) = (cluster.client(), cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    let ms = TIMEOUT_MS.to_string();
    for (wait, end, answer, holds) in [
        ("SELECT lock_try_acquire('n', '$ms ms')", End::Timeout, "t", 1),
        ("SELECT lock_try_acquire_xact('n', '$ms ms')", End::Timeout, "t", 1),
        ("SELECT lock_try_acquire_many('{m,n}', '$ms ms')", End::Timeout, "t", 2),
        ("SELECT lock_acquire('n')", End::Timeout, "t", 1),
        ("SELECT lock_acquire_many_xact('{m,n}')", End::Timeout, "t", 2),
        ("SELECT lock_try_acquire('n', '1 min')", End::Cancel, "57014", 0),
        ("SELECT lock_try_acquire_xact('n', '1 min')", End::Cancel, "57014", 0),
        ("SELECT lock_try_acquire_many('{m,n}', '1 min')", End::Cancel, "57014", 0),
        ("SELECT lock_acquire('n')", End::Cancel, "57014", 0),
        ("SELECT lock_acquire_many('{m,n}')", End::Cancel, "57014", 0),
        ("SELECT name FROM lease_try_acquire('n', '$ms ms')", End::Timeout, "n", 1),
        ("SELECT name FROM lease_acquire('n')", End::Cancel, "57014", 0),
    ] {
        let is_lease = wait.contains("lease");
        let hold = if is_lease { "BEGIN; SELECT lease_acquire('n')" } else { "SELECT lock_acquire('n')" };
        execute(&mut holder, hold);
        let timeout_ms = if wait.contains("try") || end == End::Cancel { 0 } else { TIMEOUT_MS };
        execute(&mut client, &format!("SET lock_timeout = {timeout_ms}; BEGIN; SAVEPOINT s"));
        let is_over = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| match client.simple_query(&wait.replace("$ms", &ms)) {
                Ok(messages) => answer_of(&messages),
                Err(error) => {
                    execute(&mut client, "ROLLBACK TO s");
                    error.code().expect("an error of the server").code().to_owned()
                }
            });
            wait_until_queued(&cluster, pid);
            let since = format!("SELECT waitstart::text FROM pg_locks WHERE pid = {pid} AND NOT granted");
            let since: String = value(&mut observer, &since);
            let debugger = Debugger::attach(pid);
            execute(&mut holder, if is_lease { "ROLLBACK" } else { "SELECT lock_release('n')" });
            let Some(debugger) = debugger else { return false };
            // ProcSleep() calls this when the wait is over. With a timeout several timers run.
            let has_timeout = timeout_ms > 0 || wait.contains("try");
            debugger.run_to(if has_timeout { "disable_timeouts" } else { "disable_timeout" });
            match end {
                End::Timeout => {
                    let over = format!(
                        "SELECT clock_timestamp() > '{since}'::timestamptz + interval '{} ms'",
                        TIMEOUT_MS + 10
                    );
                    cluster.wait_for(PATIENCE, "the timeout to pass", || value(&mut observer, &over));
                }
                End::Cancel => execute(&mut observer, &format!("SELECT pg_cancel_backend({pid})")),
            }
            drop(debugger);
            assert_eq!(waiter.join().unwrap(), answer, "{wait}");
            true
        });
        if !is_over {
            // Some systems allow ptrace only for parents.
            println!("ptrace is not allowed here, so this run proves nothing");
            return;
        }
        assert_eq!(locks_of(&mut observer, pid), holds, "{wait}");
        execute(&mut client, "ROLLBACK; SELECT pg_advisory_unlock_all()");
    }
}

/// PostgreSQL drops a cancel that coincides with a timeout. The answer about the lock is still true.
#[test]
fn cancel_that_coincides_with_the_timeout_gets_the_answer_of_the_timeout() {
    let cluster = builder().start_with_extension();
    let (mut holder, mut client, mut observer) = (cluster.client(), cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    execute(&mut holder, "SELECT lock_acquire('taken')");
    execute(&mut client, "SET lock_timeout = '2s'");
    for (wait, answer) in [
        ("SELECT lock_try_acquire('taken', '2 s')", "f"),
        ("SELECT lock_try_acquire_many_xact('{free,taken}', '2 s')", "f"),
        ("SELECT lock_acquire('taken')", "55P03"),
    ] {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| match client.simple_query(wait) {
                Ok(messages) => answer_of(&messages),
                Err(error) => error.code().expect("an error of the server").code().to_owned(),
            });
            wait_until_queued(&cluster, pid);
            let paused = pause(pid);
            wait_until_waited(&cluster, &mut observer, pid, 2010);
            execute(&mut observer, &format!("SELECT pg_cancel_backend({pid})"));
            paused.resume();
            assert_eq!(waiter.join().unwrap(), answer, "{wait}");
        });
        assert_eq!(locks_of(&mut observer, pid), 0, "{wait}");
    }
}

/// PostgreSQL reports the earlier one of two timeouts and forgets the other. Here the earlier one is an answer, and the
/// statement goes on.
#[test]
fn statement_timeout_that_coincides_with_the_timeout_of_the_call_ends_the_statement() {
    let cluster = builder().start_with_extension();
    let (mut holder, mut client, mut observer) = (cluster.client(), cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    execute(&mut holder, "SELECT lock_acquire('taken')");
    execute(&mut client, "SET statement_timeout = '3s'");
    for wait in [
        "SELECT lock_try_acquire('taken', '2 s'), pg_sleep(10)",
        "SELECT lock_try_acquire_xact('taken', '2 s'), pg_sleep(10)",
        "SELECT lock_try_acquire_many('{free,taken}', '2 s'), pg_sleep(10)",
        "SELECT name, pg_sleep(10) FROM lease_try_acquire('taken', '2 s') RIGHT JOIN (SELECT 1) AS one ON true",
    ] {
        execute(&mut holder, "BEGIN; SELECT lease_acquire('taken')");
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| expect_error(&mut client, wait, "57014"));
            wait_until_queued(&cluster, pid);
            let paused = pause(pid);
            wait_until_waited(&cluster, &mut observer, pid, 3010);
            paused.resume();
            assert_eq!(waiter.join().unwrap().message(), "canceling statement due to statement timeout", "{wait}");
        });
        execute(&mut holder, "ROLLBACK");
        assert_eq!(locks_of(&mut observer, pid), 0, "{wait}");
    }
}

/// Leaks the few texts of a test.
fn leak(text: String) -> &'static str {
    text.leak()
}
