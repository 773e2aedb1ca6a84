//! A lock that is granted in the instant when its wait ends. Pausing the waiter makes this happen.

use idgen_testkit::Debugger;
use idgen_testkit::script::{play, play_each};
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, value};
use postgres::SimpleQueryMessage;

use crate::{builder, locks_of, wait_until_queued};

/// Long enough to find the waiter in the queue and pause it.
const TIMEOUT_MS: u64 = 5000;

/// The end of the wait that coincides with the grant.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Timeout,
    Cancel,
}

const LOCKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid";

/// What `$holds` stands for is the number of locks of the session afterwards, inside of its transaction.
const RACE: &str = "holder: SELECT $hold
         client: SET lock_timeout = '$limit'; BEGIN; SAVEPOINT s
         client waits for advisory: SELECT $wait
         client is paused
         $end
         holder: SELECT $let_go
         -- The waiter has the lock but has not noticed yet.
         observer: SELECT count(*) FROM pg_locks WHERE pid = $client_pid AND NOT granted -> 0
         observer: $locks -> $locks_before > 0
         client resumes
         client ends -> $answer
         -- The answer must be true inside the transaction, which continues.
         client: $then
         client: SHOW lock_timeout -> $limit
         observer: $locks -> $holds
         client: COMMIT
         observer: $locks -> $kept";

/// Runs cases of what is held, the call that waits, its answer, and `$holds`.
fn race(end: End, cases: &[[&str; 4]]) {
    let cluster = builder().start_with_extension();
    let ending = match end {
        End::Timeout => waited(TIMEOUT_MS + 10),
        End::Cancel => "observer: SELECT pg_cancel_backend($client_pid) -> t".to_owned(),
    };
    // In parallel, because each case waits for its timeout.
    std::thread::scope(|scope| {
        for [hold, wait, answer, holds] in cases {
            let script = RACE
                .replace("$locks ", &format!("{LOCKS} "))
                .replace("$hold\n", &format!("{hold}\n"))
                .replace("$let_go", &hold.replace("acquire", "release").replace("_lock(", "_unlock("))
                .replace("$limit", if wait.contains("try") { "0" } else { "5s" })
                .replace("$wait", wait)
                .replace("$end", &ending)
                .replace("$answer", answer)
                .replace("$then", if answer.contains("error") { "ROLLBACK TO s" } else { "SELECT 1" })
                .replace("$holds", holds)
                .replace("$kept", if wait.contains("xact") { "0" } else { holds });
            let cluster = &cluster;
            scope.spawn(move || play(cluster, &script));
        }
    });
    // Once the servers of the sessions have noticed that these have ended.
    let mut observer = cluster.client();
    let holds = "SELECT count(*) FROM idgen.lock_get_holds()";
    cluster.wait_for(PATIENCE, "no holds", || value::<i64>(&mut observer, holds) == 0);
}

/// A step that waits until the session has been in the queue for this long.
fn waited(ms: u64) -> String {
    let over = format!("clock_timestamp() > waitstart + interval '{ms} ms'");
    format!("until: SELECT {over} FROM pg_locks WHERE pid = $client_pid AND NOT granted -> t")
}

/// The value of the only row. An empty value of type void counts as "t".
fn answer_of(messages: &[SimpleQueryMessage]) -> String {
    let found = messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    found.filter(|text| !text.is_empty()).unwrap_or_else(|| "t".to_owned())
}

#[test]
fn lock_granted_as_the_timeout_ends_is_a_success_smoke() {
    race(
        End::Timeout,
        &[
            ["lock_acquire('a')", "lock_try_acquire('a', '5 s')", "t", "1"],
            ["lock_acquire('b')", "lock_try_acquire_xact('b', '5 s')", "t", "1"],
            ["lock_acquire('c')", "lock_try_acquire_many('{c}', '5 s')", "t", "1"],
            ["lock_acquire('d')", "lock_try_acquire_many_xact('{d}', '5 s')", "t", "1"],
            ["lock_acquire('e')", "lock_try_acquire_many('{e,e1,e2,e3}', '5 s')", "t", "4"],
            ["lock_acquire('f')", "lock_try_acquire_many_xact('{f,f1,f2,f3}', '5 s')", "t", "4"],
            ["lock_acquire('g')", "lock_acquire('g')", "''", "1"],
            ["lock_acquire('h')", "lock_acquire_many('{h,h1,h2,h3}')", "''", "4"],
            ["lock_acquire('i')", "lock_acquire_many_xact('{i,i1,i2,i3}')", "''", "4"],
            // The failed subtransaction releases its lock.
            ["lock_acquire('j')", "lock_acquire_xact('j')", "error 55P03", "0"],
            // The control without idgen: the call fails and the session holds the lock.
            ["pg_advisory_lock(1)", "pg_advisory_lock(1)", "error 55P03", "1"],
        ],
    );
}

#[test]
fn lock_granted_as_the_wait_is_cancelled_is_released() {
    race(
        End::Cancel,
        &[
            ["lock_acquire('a')", "lock_try_acquire('a', '1 min')", "error 57014", "0"],
            ["lock_acquire('b')", "lock_try_acquire_xact('b', '1 min')", "error 57014", "0"],
            ["lock_acquire('c')", "lock_try_acquire_many('{c,c1,c2,c3}', '1 min')", "error 57014", "0"],
            ["lock_acquire('d')", "lock_try_acquire_many_xact('{d,d1,d2,d3}', '1 min')", "error 57014", "0"],
            ["lock_acquire('e')", "lock_acquire('e')", "error 57014", "0"],
            ["lock_acquire('f')", "lock_acquire_xact('f')", "error 57014", "0"],
            ["lock_acquire('g')", "lock_acquire_many('{g,g1,g2,g3}')", "error 57014", "0"],
            ["lock_acquire('h')", "lock_acquire_many_xact('{h,h1,h2,h3}')", "error 57014", "0"],
            ["pg_advisory_lock(1)", "pg_advisory_lock(1)", "error 57014", "1"],
        ],
    );
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
    let script = "holder: SELECT lock_acquire('taken')
         client: SET lock_timeout = '2s'
         client waits for advisory: SELECT $wait
         client is paused
         $waited
         observer: SELECT pg_cancel_backend($client_pid) -> t
         client resumes
         client ends -> $answer
         observer: $locks -> 0
         holder: SELECT lock_release('taken') -> t";
    play_each(
        &builder().start_with_extension(),
        &script.replace("$waited", &waited(2010)).replace("$locks", LOCKS),
        ["$wait", "$answer"],
        &[
            ["lock_try_acquire('taken', '2 s')", "f"],
            ["lock_try_acquire_many_xact('{free,taken}', '2 s')", "f"],
            ["lock_acquire('taken')", "error 55P03"],
        ],
    );
}

/// PostgreSQL reports the earlier one of two timeouts and forgets the other. Here the earlier one is an answer, and the
/// statement goes on.
#[test]
fn statement_timeout_that_coincides_with_the_timeout_of_the_call_ends_the_statement() {
    let script = "holder: SELECT lock_acquire('taken')
         holder: BEGIN; SELECT lease_acquire('taken')
         client: SET statement_timeout = '3s'
         client waits for advisory: SELECT $wait
         client is paused
         $waited
         client resumes
         client ends -> error 57014 canceling statement due to statement timeout
         holder: ROLLBACK
         holder: SELECT lock_release('taken') -> t
         observer: $locks -> 0";
    play_each(
        &builder().start_with_extension(),
        &script.replace("$waited", &waited(3010)).replace("$locks", LOCKS),
        ["$wait"],
        &[
            ["lock_try_acquire('taken', '2 s'), pg_sleep(10)"],
            ["lock_try_acquire_xact('taken', '2 s'), pg_sleep(10)"],
            ["lock_try_acquire_many('{free,taken}', '2 s'), pg_sleep(10)"],
            ["name, pg_sleep(10) FROM lease_try_acquire('taken', '2 s') RIGHT JOIN (SELECT 1) AS one ON true"],
        ],
    );
}
