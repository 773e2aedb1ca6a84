//! Waits that end without the lock: the session holds exactly what it held before.

use idgen_testkit::script::{play, play_each};

use crate::builder;

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

/// The session `client` holds 'mine' twice and nothing else.
const UNCHANGED: &str = "observer: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> 1
         observer: SELECT name, depth, scope FROM idgen.locks WHERE pid = $client_pid -> mine|2|session
         client: SHOW lock_timeout -> 0";

/// Runs steps of that session for each form of call, while 'taken' is taken.
fn for_each_wait(steps: impl Fn(&str) -> String) {
    let cluster = builder().start_with_extension();
    for wait in WAITS {
        let script = format!(
            "holder: SELECT lock_acquire('taken')
         client: SELECT lock_acquire('mine'), lock_acquire('mine')
         {}
         observer: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' -> 1
         observer: SELECT count(*) FROM idgen.lock_get_holds() -> 1
         holder: SELECT lock_release('taken')",
            steps(wait)
        );
        play(&cluster, &script.replace("UNCHANGED", UNCHANGED));
    }
}

const RELEASE: &str = "client: SELECT lock_release('mine'), lock_release('mine'), lock_release('mine') -> t|t|f";

#[test]
fn cancelled_wait_changes_no_lock() {
    for_each_wait(|wait| {
        format!(
            "client waits for advisory: {wait}
         observer: SELECT pg_cancel_backend($client_pid) -> t
         client ends -> error 57014
         UNCHANGED
         client: BEGIN; SAVEPOINT s; SET LOCAL statement_timeout = '50ms'
         client: {wait} -> error 57014
         client: ROLLBACK TO s
         UNCHANGED
         client: COMMIT
         {RELEASE}"
        )
    });
}

#[test]
fn timed_out_wait_changes_no_lock() {
    let in_time = |wait: &str| {
        if !wait.contains("try") {
            // Forms without a timeout follow lock_timeout, whose error aborts the transaction.
            return format!(
                "client: BEGIN; SAVEPOINT s; SET LOCAL lock_timeout = '30ms'
         client: {wait} -> error 55P03
         client: ROLLBACK TO s
         UNCHANGED
         client: COMMIT
         "
            );
        }
        let by_limit = |limit| {
            format!(
                "client: BEGIN
         client: {} -> f
         UNCHANGED
         client: COMMIT
         ",
                wait.replace("1 hour", limit)
            )
        };
        ["0", "1 us", "999 us", "1 ms", "30 ms"].map(by_limit).concat()
    };
    for_each_wait(|wait| in_time(wait) + RELEASE);
    // Forms with a timeout neither use nor change lock_timeout.
    play(
        &builder().start_with_extension(),
        "holder: SELECT lock_acquire('taken')
         client: SET lock_timeout = '10ms'
         client waits for advisory: SELECT lock_try_acquire('taken', '1 hour')
         until: SELECT clock_timestamp() > waitstart + interval '1 s' FROM pg_locks WHERE pid = $client_pid AND NOT granted -> t
         holder: SELECT lock_release('taken')
         client ends -> t
         client: SHOW lock_timeout -> 10ms
         holder: SELECT pg_advisory_lock(7)
         client: SELECT pg_advisory_lock(7) -> error 55P03",
    );
}

#[test]
fn terminated_waiter_leaves_nothing() {
    for_each_wait(|wait| {
        format!(
            "client waits for advisory: {wait}
         observer: SELECT pg_terminate_backend($client_pid, 60000) -> t
         client ends -> error"
        )
    });
}

/// The server reinitializes its shared memory: no lock and no name is left.
#[test]
fn crash_of_a_waiting_process_leaves_nothing() {
    let noted = "SELECT (SELECT count(*) FROM idgen.lock_get_holds()), (SELECT count(*) FROM idgen.lock_get_names())";
    let script = "holder: SELECT lock_acquire('taken')
         client waits for advisory: SELECT lock_acquire('taken')
         observer: NOTED -> 2|1
         client is killed
         observer: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' -> 0
         observer: NOTED -> 0|0
         client: SELECT lock_try_acquire('taken') -> t
         client: SELECT name, scope FROM idgen.locks -> taken|session";
    play(&builder().start_with_extension(), &script.replace("NOTED", noted));
}

/// Nothing waits, so the call ends long after the timeout, and no wait serves it.
#[test]
fn several_locks_whose_call_is_cancelled_without_a_wait_are_released() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE names AS SELECT array_agg('name ' || n) AS names FROM generate_series(1, 5000) AS n");
    play_each(
        &cluster,
        "client: SET statement_timeout = '2 ms'
         client: SELECT $call FROM names -> error 57014
         observer: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> 0
         observer: SELECT count(*) FROM idgen.locks -> 0",
        ["$call"],
        &[["lock_acquire_many(names)"], ["lock_try_acquire_many(names)"], ["lock_acquire_many_xact(names)"]],
    );
}
