//! Uncommitted changes of a definition: grants wait for them, holders do not.

use idgen_testkit::lease::{acquire, try_acquire};
use idgen_testkit::sql::{backend_pid, execute, expect_error, value};

use crate::{builder, release, renew, wait_until_queued};

/// The calls that block grants while their transaction is open.
const CHANGES: [&str; 3] = [
    "SELECT lease_define('p', 3, '1 hour')",
    "SELECT lease_define('p', 3, '1 hour', first_slot => 100)",
    "SELECT lease_define('q'), lease_define('p', 1), lease_drop('q')",
];

#[test]
fn uncommitted_definition_does_not_block_the_holder() {
    for change in CHANGES {
        let cluster = builder().conf("lock_timeout", "100ms").start_with_extension();
        let [mut definer, mut holder] = [cluster.client(), cluster.client()];
        execute(&mut holder, "SELECT lease_define('p', 4, '1 hour')");
        let [renewed, released, fenced, revoked] = [(); 4].map(|()| acquire(&mut holder, "'p'"));
        execute(&mut definer, "BEGIN");
        execute(&mut definer, change);

        renew(&mut holder, "p", renewed.token);
        assert!(release(&mut holder, "p", released.token));
        execute(&mut holder, &format!("SELECT lease_fence('p', {})", fenced.token));
        execute(&mut holder, &format!("SELECT lease_acquire('p', token => {})", fenced.token));
        let many = format!("SELECT count(*) FROM lease_renew_many('{{p}}', ARRAY[{}])", renewed.token);
        assert_eq!(value::<i64>(&mut holder, &many), 1, "{change}");
        assert!(value::<bool>(&mut holder, &format!("SELECT lease_revoke('p', {})", revoked.slot)), "{change}");
        execute(&mut definer, "COMMIT");
    }
}

#[test]
fn uncommitted_definition_does_not_block_a_server_from_its_worker_id() {
    for change in CHANGES {
        let cluster = builder().conf("lock_timeout", "100ms").start_with_extension();
        let [mut definer, mut holder] = [cluster.client(), cluster.client()];
        execute(&mut holder, "SELECT lease_define('p', 4, '1 hour')");
        let acquire = "SELECT token FROM worker_acquire('p', ttl => '1 hour')";
        let [renewed, released]: [i64; 2] = [(); 2].map(|()| value(&mut holder, acquire));
        execute(&mut definer, "BEGIN");
        execute(&mut definer, change);

        let last = "(SELECT not_after FROM idgen.workers WHERE worker_id = 0)";
        execute(&mut holder, &format!("SELECT worker_renew('p', {renewed}, {last})"));
        execute(&mut holder, &format!("SELECT worker_release('p', {released}, clock_timestamp())"));
        execute(&mut definer, "COMMIT");
    }
}

#[test]
fn grant_that_waits_for_a_definition_obeys_timeouts() {
    let cluster = builder().start_with_extension();
    let [mut definer, mut client] = [cluster.client(), cluster.client()];
    execute(&mut definer, "SELECT lease_define('p', 4, '1 hour')");
    execute(&mut definer, "BEGIN; SELECT lease_define('p', 5, '1 hour')");
    let grants = ["SELECT lease_acquire('p')", "SELECT worker_acquire('p', ttl => '1 hour')"];
    for grant in grants {
        for (limit, sqlstate) in [("lock_timeout", "55P03"), ("statement_timeout", "57014")] {
            execute(&mut client, &format!("SET {limit} = '50ms'"));
            expect_error(&mut client, grant, sqlstate);
            execute(&mut client, &format!("RESET {limit}"));
        }
    }
    assert_eq!(try_acquire(&mut client, "'p', '50 ms'"), None);
    // None of these has left a lock: the next attempt waits only for the definition.
    let pid = backend_pid(&mut client);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| acquire(&mut client, "'p'"));
        wait_until_queued(&cluster, pid);
        execute(&mut definer, "COMMIT");
        assert_eq!(waiter.join().unwrap().slot, 0);
    });
}

/// The name is no longer defined when the caller's turn comes.
#[test]
fn pool_dropped_during_the_wait_grants_no_worker_id() {
    let cluster = builder().start_with_extension();
    let [mut definer, mut client] = [cluster.client(), cluster.client()];
    execute(&mut definer, "SELECT lease_define('p', 4, '1 hour')");
    execute(&mut definer, "BEGIN; SELECT lease_drop('p')");
    let pid = backend_pid(&mut client);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| expect_error(&mut client, "SELECT worker_acquire('p', ttl => '1 hour')", "42704"));
        wait_until_queued(&cluster, pid);
        execute(&mut definer, "COMMIT");
        waiter.join().unwrap();
    });
    assert_eq!(value::<i64>(&mut definer, "SELECT count(*) FROM idgen.worker_number"), 0);
}
