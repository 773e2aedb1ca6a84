//! Waits that end without a grant leave nothing behind, and the transaction can continue.

use idgen_testkit::lease::{acquire, try_acquire};
use idgen_testkit::script::play_each;
use idgen_testkit::sql::{backend_pid, execute, expect_error, wait_for_event};

use crate::{builder, scenario};

/// The places where an acquire waits: what the others hold, and the event of the wait.
const PLACES: [[&str; 2]; 3] = [
    // At the head of the queue, for a term to end.
    ["holder: SELECT lease_acquire('w', '1 day')", "Extension"],
    // Behind others. The first session keeps its turn until its transaction ends, because others cannot see its new slot.
    ["holder: BEGIN; SELECT lease_acquire('w', '1 day')", "advisory"],
    // For a transaction that has fenced an expired term.
    [
        "holder: SELECT token FROM lease_acquire('w', '100 ms') -> $token
         until: SELECT state FROM idgen.leases -> expired
         holder: BEGIN; SELECT lease_fence('w', $token)",
        "transactionid",
    ],
];

/// The ways to wait, and how each ends in time: by lock_timeout, or by the timeout of the call, which overrides it.
const WAITS: [[&str; 2]; 3] = [
    ["SELECT lease_acquire('w', '1 day')", BY_LOCK_TIMEOUT],
    ["SELECT lease_try_acquire('w', '1 hour', '1 day')", BY_ITS_OWN],
    ["SELECT lease_acquire('w', '1 day', bind_session => true)", BY_LOCK_TIMEOUT],
];

const BY_LOCK_TIMEOUT: &str = "client: BEGIN; SAVEPOINT s; SET LOCAL lock_timeout = '50ms'
         client: $wait -> error 55P03
         client: ROLLBACK TO s
         observer: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> 0
         client: COMMIT";

const BY_ITS_OWN: &str = "client: BEGIN; SELECT lease_try_acquire('w', '50 ms', '1 day') -> nothing
         observer: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> 0
         client: COMMIT
         client: BEGIN; SET LOCAL lock_timeout = '50ms'
         client: SELECT lease_try_acquire('w', '200 ms', '1 day') -> nothing
         observer: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> 0
         client: COMMIT";

/// Runs steps of the session `client` for each place and each way to wait. `$wait` is the call, and `$event` its wait event.
fn at_each_place(steps: &str) {
    let cluster = builder().start_with_extension();
    let script = format!(
        "$keep
         observer: SELECT coalesce(string_agg(lease::text, ','), 'none') FROM idgen.lease -> $rows
         {steps}
         observer: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> 0
         observer: SELECT coalesce(string_agg(lease::text, ','), 'none') = '$rows' FROM idgen.lease -> t
         holder: COMMIT
         holder: SELECT lease_release(name, token) FROM idgen.leases WHERE depth > 0
         -- Nothing blocks the next acquire.
         holder: SELECT slot FROM lease_try_acquire('w') -> 0
         holder: DELETE FROM idgen.lease"
    );
    for [keep, event] in PLACES {
        let cases = WAITS.map(|[wait, in_time]| [keep, event, in_time, wait]);
        play_each(&cluster, &script, ["$keep", "$event", "$in_time", "$wait"], &cases);
    }
}

#[test]
fn cancelled_wait_leaves_nothing() {
    at_each_place(
        "client: BEGIN; SAVEPOINT s
         client waits for $event: $wait
         observer: SELECT pg_cancel_backend($client_pid) -> t
         client ends -> error 57014
         client: ROLLBACK TO s
         observer: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> 0
         client: COMMIT",
    );
}

#[test]
fn timed_out_wait_leaves_nothing() {
    at_each_place(
        "client: BEGIN; SAVEPOINT s; SET LOCAL statement_timeout = '50ms'
         client: $wait -> error 57014
         client: ROLLBACK TO s
         observer: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> 0
         client: COMMIT
         $in_time
         client: SHOW lock_timeout -> 0",
    );
}

#[test]
fn terminated_waiter_leaves_nothing() {
    at_each_place(
        "client waits for $event: $wait
         observer: SELECT pg_terminate_backend($client_pid, 60000) -> t
         client ends -> error",
    );
}

/// The wait ends just as its turn comes. A paused waiter makes this happen.
#[test]
fn turn_that_comes_as_the_wait_ends_is_used_or_returned() {
    // Long enough to find the waiter in the queue and pause it.
    let over = "until: SELECT clock_timestamp() > waitstart + interval '4 s' FROM pg_locks
             WHERE pid = $client_pid AND NOT granted -> t";
    let cancel = "observer: SELECT pg_cancel_backend($client_pid) -> t";
    play_each(
        &builder().start_with_extension(),
        "first: BEGIN; SELECT lease_acquire('w', '1 day')
         client: BEGIN; SAVEPOINT s; SET LOCAL lock_timeout = '$limit'
         client waits for advisory: SELECT slot FROM $wait
         client is paused
         $end
         first: ROLLBACK
         -- The waiter has its turn but has not noticed yet.
         observer: SELECT granted FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> t
         client resumes
         client ends -> $answer
         client: $then
         -- A session that creates a slot keeps its turn until others can see the slot.
         observer: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> $holds
         client: COMMIT
         observer: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> 0
         observer: DELETE FROM idgen.lease",
        ["$wait", "$limit", "$end", "$answer", "$then", "$holds"],
        &[
            ["lease_acquire('w', '1 day')", "4s", over, "0", "SELECT 1", "1"],
            ["lease_try_acquire('w', '4 s', '1 day')", "4s", over, "0", "SELECT 1", "1"],
            ["lease_acquire('w', '1 day')", "0", cancel, "error 57014", "ROLLBACK TO s", "0"],
            ["lease_try_acquire('w', '1 hour', '1 day')", "0", cancel, "error 57014", "ROLLBACK TO s", "0"],
        ],
    );
}

/// The wait for a row ends now and then by a timeout of its own, and begins again. PostgreSQL forgets a statement timeout
/// that passes with it.
#[test]
fn statement_timeout_that_passes_with_a_turn_of_the_wait_ends_the_wait() {
    scenario(
        "holder: SELECT token FROM lease_acquire('w', '100 ms') -> $token
         until: SELECT state FROM idgen.leases -> expired
         holder: BEGIN; SELECT lease_fence('w', $token)
         -- A turn takes a second more than this.
         client: SET deadlock_timeout = '1s'; SET statement_timeout = '3s'
         client waits for transactionid: SELECT lease_acquire('w', '1 day')
         client is paused
         until: SELECT clock_timestamp() > query_start + interval '3010 ms' FROM pg_stat_activity
             WHERE pid = $client_pid -> t
         client resumes
         until: SELECT state FROM pg_stat_activity WHERE pid = $client_pid -> idle
         holder: COMMIT
         client ends -> error 57014",
    );
}

/// Another session has locked a table of the extension, as ALTER EXTENSION UPDATE does.
#[test]
fn call_that_waits_for_a_table_obeys_its_timeout() {
    let cluster = builder().conf("lock_timeout", "30s").start_with_extension();
    let [mut blocker, mut client] = [cluster.client(), cluster.client()];
    execute(&mut client, "SELECT lease_define('defined')");
    execute(&mut client, "SELECT lease_release('defined', token) FROM lease_acquire('defined')");
    let held = acquire(&mut client, "'held', '1 day'");
    for table in ["lease", "lease_definition"] {
        execute(&mut blocker, &format!("BEGIN; LOCK TABLE idgen.{table} IN ACCESS EXCLUSIVE MODE"));
        let again = format!("token => {}", held.token);
        // Neither a term that is acquired once more nor a definition that the session has read needs the definitions.
        let of_both = [(table, "shared => true"), (table, "shared => false")];
        let of_rows = [("defined", "shared => false"), ("held", again.as_str())];
        let of_rows = if table == "lease" { &of_rows[..] } else { &[] };
        for (name, argument) in of_both.iter().chain(of_rows) {
            for timeout in ["0", "50 ms"] {
                let call = format!("'{name}', '{timeout}', {argument}");
                assert_eq!(try_acquire(&mut client, &call), None, "{table}: {call}");
            }
            execute(&mut client, "SET lock_timeout = '50ms'");
            expect_error(&mut client, &format!("SELECT lease_acquire('{name}', {argument})"), "55P03");
            execute(&mut client, "SET lock_timeout = '30s'");
        }
        let pid = backend_pid(&mut client);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| acquire(&mut client, &format!("'{table}'")));
            wait_for_event(&cluster, pid, "Lock");
            execute(&mut blocker, "COMMIT");
            waiter.join().unwrap();
        });
    }
}

/// The clock that counts for a change of a term that has waited for its row is that after the wait.
#[test]
fn renewal_that_has_waited_moves_no_end_back() {
    play_each(
        &builder().start_with_extension(),
        "holder: SELECT token FROM lease_acquire('t', '2 s') -> $token
         holder: BEGIN; SELECT $end
         late waits for Lock: SELECT $end
         holder: SELECT pg_sleep(1)
         holder: SELECT $end -> $told
         holder: COMMIT
         late ends
         other: SELECT token FROM lease_acquire('t', '1 hour') -> $next > $token
         -- The next holder begins once the term is over that the last one was told.
         other: SELECT acquired_at >= timestamptz '$told' FROM idgen.lease -> t
         other: DELETE FROM idgen.lease",
        ["$end"],
        &[
            ["lease_renew('t', $token)"],
            ["lease_renew('t', $token, '2 s')"],
            ["expires_at FROM lease_renew_many(ARRAY['t'], ARRAY[$token])"],
        ],
    );
}

#[test]
fn revocation_that_has_waited_begins_the_whole_lock_delay() {
    scenario(
        "operator: SELECT lease_define('t', lock_delay => '1 s')
         holder: SELECT token FROM lease_acquire('t', '1 hour') -> $token
         holder: BEGIN; SELECT lease_renew('t', $token)
         operator waits for Lock: SELECT lease_revoke('t')
         holder: SELECT pg_sleep(1)
         holder: SELECT clock_timestamp() -> $waited
         holder: COMMIT
         operator ends
         other: SELECT lease_acquire('t', '1 hour')
         -- Not granted within the lock delay.
         other: SELECT clock_timestamp() >= timestamptz '$waited' + interval '1 s' -> t",
    );
}
