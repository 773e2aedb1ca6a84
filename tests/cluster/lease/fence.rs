//! Fences and the lock manager: waits and deadlocks.

use idgen_testkit::lease::acquire;
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, value};

use crate::{builder, locks_of, renew, states, wait_for_state, wait_until_waiting_for_row};

/// The take-over waits in the lock manager, so that a deadlock of a fence and a row is detected.
#[test]
fn deadlock_of_a_fence_and_a_row_is_detected_and_leaves_nothing() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (0)");
    for (wait, is_victim) in [
        ("SELECT lease_acquire('d', '1 day')", true),
        ("SELECT lease_try_acquire('d', '1 hour', '1 day')", true),
        ("SELECT lease_acquire('d', '1 day')", false),
    ] {
        let (mut holder, mut client) = (cluster.client(), cluster.client());
        let (holder_pid, client_pid) = (backend_pid(&mut holder), backend_pid(&mut client));
        let token = acquire(&mut holder, "'d', '100 ms'").token;
        wait_for_state(&cluster, "d", "0 expired");
        let [holders, clients] = if is_victim { ["10min", "10ms"] } else { ["10ms", "10min"] };
        execute(&mut holder, &format!("SET deadlock_timeout = '{holders}'; BEGIN; SELECT lease_fence('d', {token})"));
        execute(
            &mut client,
            &format!("SET deadlock_timeout = '{clients}'; BEGIN; UPDATE t SET n = n + 1; SAVEPOINT s"),
        );
        let update = "UPDATE t SET n = n + 1";
        std::thread::scope(|scope| {
            if is_victim {
                let update = scope.spawn(|| execute(&mut holder, update));
                wait_until_waiting_for_row(&cluster, holder_pid);
                expect_error(&mut client, wait, "40P01");
                execute(&mut client, "ROLLBACK TO s");
                assert_eq!(locks_of(&mut client, client_pid), 0, "{wait}");
                execute(&mut client, "COMMIT");
                update.join().unwrap();
            } else {
                let take_over = scope.spawn(|| execute(&mut client, wait));
                wait_until_waiting_for_row(&cluster, client_pid);
                expect_error(&mut holder, update, "40P01");
                execute(&mut holder, "ROLLBACK");
                take_over.join().unwrap();
            }
        });
        if is_victim {
            // The victim's transaction continues, and the lease is unchanged.
            renew(&mut cluster.client(), "d", token);
            execute(&mut holder, &format!("COMMIT; SELECT lease_release('d', {token})"));
        } else {
            execute(&mut client, "COMMIT");
        }
    }
    let mut client = cluster.client();
    assert_eq!(value::<i32>(&mut client, "SELECT n FROM t"), 5);
    assert_eq!(states(&mut client, "d"), ["0 held"]);
}

/// A prepared transaction keeps the fence after its session has ended.
#[test]
fn take_over_waits_for_a_prepared_fence() {
    let cluster = builder().conf("max_prepared_transactions", "1").start_with_extension();
    let (mut holder, mut client) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    for end in ["COMMIT PREPARED 'p'", "ROLLBACK PREPARED 'p'"] {
        let token = acquire(&mut holder, "'p', '100 ms'").token;
        execute(&mut holder, &format!("BEGIN; SELECT lease_fence('p', {token}); PREPARE TRANSACTION 'p'"));
        drop(std::mem::replace(&mut holder, cluster.client()));
        wait_for_state(&cluster, "p", "0 expired");
        let taken = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| acquire(&mut client, "'p', '1 day'").token);
            wait_until_waiting_for_row(&cluster, pid);
            // The renewal of an expired term does not wait for the fence.
            renew(&mut holder, "p", token);
            execute(&mut holder, end);
            waiter.join().unwrap()
        });
        assert!(taken > token);
        execute(&mut client, &format!("SELECT lease_release('p', {taken})"));
    }
}

/// Both slots have expired but are fenced: the waiter gets the slot whose transaction ends first.
#[test]
fn take_over_waits_for_any_of_several_fences() {
    let cluster = builder().start_with_extension();
    for ends in [0, 1] {
        cluster.execute("SELECT lease_define('s', 2, '100 ms')");
        let mut holders = [cluster.client(), cluster.client()];
        let tokens = holders.each_mut().map(|holder| acquire(holder, "'s'").token);
        cluster
            .wait_for(PATIENCE, "both to expire", || states(&mut cluster.client(), "s") == ["0 expired", "1 expired"]);
        for (holder, token) in holders.iter_mut().zip(tokens) {
            execute(holder, &format!("BEGIN; SELECT lease_fence('s', {token})"));
        }
        let mut next = cluster.client();
        let pid = backend_pid(&mut next);
        std::thread::scope(|scope| {
            let take_over = scope.spawn(|| acquire(&mut next, "'s', '1 day'"));
            wait_until_waiting_for_row(&cluster, pid);
            execute(&mut holders[ends], "COMMIT");
            // The other fence is still there.
            assert_eq!(take_over.join().unwrap().slot, ends as i32);
        });
        execute(&mut holders[1 - ends], "COMMIT; DELETE FROM idgen.lease");
    }
}
