//! Fences and the lock manager: waits and deadlocks.

use idgen_testkit::script::{play, play_each};

use crate::builder;

/// The take-over waits in the lock manager, so that a deadlock of a fence and a row is detected.
#[test]
fn deadlock_of_a_fence_and_a_row_is_detected_and_leaves_nothing() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (0)");
    let script = "holder: SELECT token FROM lease_acquire('d', '100 ms') -> $token
         until: SELECT state FROM idgen.leases -> expired
         holder: SET deadlock_timeout = '$holders'; BEGIN; SELECT lease_fence('d', $token)
         client: SET deadlock_timeout = '$clients'; BEGIN; UPDATE t SET n = n + 1; SAVEPOINT s
         ";
    let take_over_fails = "holder waits for transactionid: UPDATE t SET n = n + 1
         client: SELECT $wait -> error 40P01
         client: ROLLBACK TO s
         client: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> 0
         client: COMMIT
         holder ends
         -- The victim's transaction goes on, and the lease is unchanged.
         other: SELECT lease_renew('d', $token) IS NOT NULL -> t
         holder: COMMIT
         holder: SELECT lease_release('d', $token)";
    let update_fails = "client waits for transactionid: SELECT lease_acquire('d', '1 day')
         holder: UPDATE t SET n = n + 1 -> error 40P01
         holder: ROLLBACK
         client ends
         client: COMMIT
         client: SELECT n FROM t -> 5
         client: SELECT slot, state FROM idgen.leases -> 0|held";
    let script_of = |holders: &str, clients: &str, rest: &str| {
        script.replace("$holders", holders).replace("$clients", clients) + rest
    };
    for wait in ["lease_acquire('d', '1 day')", "lease_try_acquire('d', '1 hour', '1 day')"] {
        play(&cluster, &script_of("10min", "10ms", &take_over_fails.replace("$wait", wait)));
    }
    play(&cluster, &script_of("10ms", "10min", update_fails));
}

/// Both slots have expired but are fenced: the waiter gets the slot whose transaction ends first.
#[test]
fn take_over_waits_for_any_of_several_fences() {
    let cluster = builder().start_with_extension();
    play_each(
        &cluster,
        "zero: SELECT lease_define('s', 2, '100 ms')
         zero: SELECT token FROM lease_acquire('s') -> $zeroth
         one: SELECT token FROM lease_acquire('s') -> $first
         until: SELECT state FROM idgen.leases ORDER BY slot -> expired, expired
         zero: BEGIN; SELECT lease_fence('s', $zeroth)
         one: BEGIN; SELECT lease_fence('s', $first)
         next waits for transactionid: SELECT slot FROM lease_acquire('s', '1 day')
         $ends: COMMIT
         -- The other fence is still there.
         next ends -> $slot
         $stays: COMMIT; DELETE FROM idgen.lease",
        ["$ends", "$slot", "$stays"],
        &[["zero", "0", "one"], ["one", "1", "zero"]],
    );
}
