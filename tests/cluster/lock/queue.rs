//! The order of waiters, and the deadlock detector.

use std::process::Stdio;

use idgen_testkit::Cluster;
use idgen_testkit::script::play_each;
use idgen_testkit::sql::{PATIENCE, backend_pid, column, execute, value};
use postgres::Client;

use crate::{builder, locks_of, wait_until_queued};

/// Queues for 'turn', inserts the waiter's number while it holds the lock, and releases it.
const TURNS: [&str; 8] = [
    "SELECT lock_acquire('turn'); $note; SELECT lock_release('turn')",
    "BEGIN; SELECT lock_acquire_xact('turn'); $note; COMMIT",
    "SELECT lock_try_acquire('turn', '1 hour'); $note; SELECT lock_release('turn')",
    "BEGIN; SELECT lock_try_acquire_xact('turn', '1 hour'); $note; COMMIT",
    "SELECT lock_acquire_many('{turn}'); $note; SELECT lock_release_many('{turn}')",
    "BEGIN; SELECT lock_acquire_many_xact('{turn}'); $note; COMMIT",
    "SELECT lock_try_acquire_many('{turn}', '1 hour'); $note; SELECT lock_release_many('{turn}')",
    "BEGIN; SELECT lock_try_acquire_many_xact('{turn}', '1 hour'); $note; COMMIT",
];

/// The statement of the waiter with this number.
fn turn(form: usize, waiter: usize) -> String {
    TURNS[form % TURNS.len()].replace("$note", &format!("INSERT INTO turns (waiter) VALUES ({waiter})"))
}

fn with_turns() -> (Cluster, Client) {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE turns (place bigserial, waiter int)");
    let mut holder = cluster.client();
    execute(&mut holder, "SELECT lock_acquire('turn')");
    (cluster, holder)
}

/// Waits until a session reports that it waits for a lock, and sleeps.
fn wait_until_asleep(cluster: &Cluster, pid: i32) {
    let mut client = cluster.client();
    let sql = format!(
        "SELECT count(*) = 1 FROM idgen.lock_get_holds() AS hold JOIN pg_stat_activity AS activity USING (pid)
         WHERE pid = {pid} AND waits_for IS NOT NULL AND wait_event_type NOT IN ('LWLock', 'IO')"
    );
    cluster.wait_for(PATIENCE, "the session to wait", || value(&mut client, &sql));
}

fn in_order(cluster: &Cluster) -> Vec<i32> {
    column(&mut cluster.client(), "SELECT waiter FROM turns ORDER BY place")
}

/// A waiter that polled instead of queueing would show in the order of the grants.
#[test]
fn waiters_get_the_lock_in_queue_order() {
    let (cluster, mut holder) = with_turns();
    let mut clients: Vec<_> = (0..2 * TURNS.len()).map(|_| cluster.client()).collect();
    // Not the order of their process ids.
    clients.reverse();
    let pids: Vec<_> = clients.iter_mut().map(backend_pid).collect();
    for round in 0..3 {
        let shown: Vec<i32> = std::thread::scope(|scope| {
            for (waiter, (client, pid)) in clients.iter_mut().zip(&pids).enumerate() {
                scope.spawn(move || execute(client, &turn(waiter + round, waiter)));
                wait_until_asleep(&cluster, *pid);
            }
            let shown = column(&mut holder, "SELECT pid FROM idgen.locks WHERE NOT granted ORDER BY queue_position");
            execute(&mut holder, "SELECT lock_release('turn')");
            shown
        });
        assert_eq!(in_order(&cluster), (0..pids.len() as i32).collect::<Vec<_>>());
        assert_eq!(shown, pids);
        execute(&mut holder, "TRUNCATE turns; SELECT lock_acquire('turn')");
    }
}

/// The server notices the dead client when it answers, or before. In both cases the next waiter gets its turn.
#[test]
fn queue_skips_a_waiter_whose_client_was_killed() {
    let (cluster, mut holder) = with_turns();
    let mut observer = cluster.client();
    let mut psql = cluster.program("psql");
    psql.args(["-X", "-q", "-c", "SELECT lock_acquire('turn')", "-c", "INSERT INTO turns (waiter) VALUES (99)"]);
    let mut dead = psql.env("PGAPPNAME", "dead").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let find = "SELECT coalesce((SELECT pid FROM idgen.locks WHERE application = 'dead' AND NOT granted), 0)";
    cluster.wait_for(PATIENCE, "psql to queue", || value::<i32>(&mut observer, find) != 0);
    let dead_pid: i32 = value(&mut observer, find);

    let mut next = cluster.client();
    let next_pid = backend_pid(&mut next);
    std::thread::scope(|scope| {
        let next = scope.spawn(move || execute(&mut next, &turn(1, 1)));
        wait_until_queued(&cluster, next_pid);
        dead.kill().unwrap();
        dead.wait().unwrap();
        execute(&mut holder, "SELECT lock_release('turn')");
        next.join().unwrap();
    });
    assert_eq!(in_order(&cluster), [1]);
    cluster.wait_for(PATIENCE, "the dead client's session to end", || locks_of(&mut observer, dead_pid) == 0);
    let holds = format!("SELECT count(*) FROM idgen.lock_get_holds() WHERE pid = {dead_pid}");
    assert_eq!(value::<i64>(&mut observer, &holds), 0);
}

/// A named lock and a row. The session that waits for the named lock checks first and is the victim.
#[test]
fn deadlock_with_a_row_is_detected_and_leaves_nothing() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0)");
    play_each(
        &cluster,
        "victim: SET deadlock_timeout = '10ms'; BEGIN; UPDATE t SET n = n + 1; SAVEPOINT s
         other: SET deadlock_timeout = '10min'; BEGIN; SELECT lock_acquire_xact('x')
         other waits for transactionid: UPDATE t SET n = n + 1
         victim: SELECT $call -> error 40P01
         victim: ROLLBACK TO s
         victim: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $victim_pid -> 0
         victim: COMMIT
         other ends
         other: COMMIT
         victim: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $other_pid -> 0",
        ["$call"],
        &[
            ["lock_acquire('x')"],
            ["lock_acquire_xact('x')"],
            ["lock_try_acquire('x', '1 hour')"],
            ["lock_try_acquire_xact('x', '1 hour')"],
            ["lock_acquire_many('{a,b,c,x}')"],
            ["lock_acquire_many_xact('{a,b,c,x}')"],
            ["lock_try_acquire_many('{a,b,c,x}', '1 hour')"],
            ["lock_try_acquire_many_xact('{a,b,c,x}', '1 hour')"],
        ],
    );
    assert_eq!(value::<i32>(&mut cluster.client(), "SELECT n FROM t"), 16);
}

/// The timeout covers all names together: if the first wait uses it up, there is no second one. The key of n2 is the lesser.
#[test]
fn timeout_covers_all_names_of_a_call() {
    // Longer waits are logged.
    let cluster = builder().conf("log_lock_waits", "on").conf("deadlock_timeout", "50ms").start_with_extension();
    let calls = [
        ["lock_try_acquire_many('{n1,n2}', '3 s')", "f"],
        ["lock_try_acquire_many_xact('{n1,n2}', '3 s')", "f"],
        ["lock_acquire_many('{n1,n2}')", "error 55P03"],
    ];
    play_each(
        &cluster,
        "first: SELECT lock_key('n2') < lock_key('n1') FROM lock_acquire('n2') -> t
         second: SELECT lock_acquire('n1')
         client: SET lock_timeout = '3 s'
         client waits for advisory: SELECT CALL
         client is paused
         until: SELECT clock_timestamp() > waitstart + interval '3.1 s' FROM pg_locks WHERE pid = $client_pid AND NOT granted -> t
         first: SELECT lock_release('n2') -> t
         client resumes
         client ends -> ANSWER
         second: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> 0
         second: SELECT lock_release('n1') -> t",
        ["CALL", "ANSWER"],
        &calls,
    );
    let tag = "SELECT format('%s,%s,26980]', lock_key('n1') >> 32, lock_key('n1') & 4294967295)";
    let second: String = value(&mut cluster.client(), tag);
    assert!(!cluster.log().contains(&second), "a call has waited for the second name");
}
