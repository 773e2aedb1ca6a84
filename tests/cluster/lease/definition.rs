//! Uncommitted changes of a definition: grants wait for them, holders do not.

use std::sync::{Arc, Mutex};

use idgen_testkit::lease::{acquire, try_acquire};
use idgen_testkit::sql::{backend_pid, execute, expect_error, value};
use postgres::Config;

use crate::{builder, release, renew, wait_until_queued, wait_until_waiting_for_row};

/// The calls that block grants while their transaction is open.
const CHANGES: [&str; 3] = [
    "SELECT lease_define('p', 3, '1 hour', force => true)",
    "SELECT lease_alter('p', slots => 3, first_slot => 100, force => true)",
    "SELECT lease_define('q'), lease_define('p', 1, force => true), lease_drop('q')",
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

/// Grants of open transactions, however their rows came about.
#[test]
fn definition_waits_for_an_uncommitted_grant() {
    let cluster = builder().start_with_extension();
    let [mut definer, mut holder] = [cluster.client(), cluster.client()];
    execute(&mut definer, "SELECT lease_define('taken'), lease_define('slots', 4), lease_define('first')");
    let token = acquire(&mut holder, "'taken'").token;
    release(&mut holder, "taken", token);
    execute(&mut definer, "SET lock_timeout = '50ms'");
    for (name, shared) in
        [("taken", "false"), ("slots", "false"), ("first", "false"), ("new", "false"), ("read", "true")]
    {
        execute(&mut holder, &format!("BEGIN; SAVEPOINT s; SELECT lease_acquire('{name}', shared => {shared})"));
        for change in ["lease_define($1, 2)", "lease_drop($1)"] {
            let change = format!("SELECT {}", change.replace("$1", &format!("'{name}'")));
            expect_error(&mut definer, &change, "55P03");
        }
        execute(&mut holder, "ROLLBACK TO s");
        execute(&mut definer, &format!("SELECT lease_define('{name}')"));
        execute(&mut holder, "COMMIT");
    }
}

/// Its new row has the token of a term that is known.
#[test]
fn definition_does_not_wait_for_an_uncommitted_renewal() {
    let cluster = builder().conf("lock_timeout", "1s").start_with_extension();
    let [mut definer, mut holder] = [cluster.client(), cluster.client()];
    execute(&mut definer, "SELECT lease_define('p', 2, '1 hour')");
    let token = acquire(&mut holder, "'p'").token;
    execute(&mut holder, "BEGIN");
    renew(&mut holder, "p", token);
    execute(&mut definer, "SELECT lease_define('p', 3, '1 hour')");
    execute(&mut holder, "COMMIT");
}

/// The definition would wait for the transaction, and that for the definition.
#[test]
fn transaction_that_a_definition_waits_for_acquires_another_slot() {
    let cluster = builder().start_with_extension();
    let [mut definer, mut holder] = [cluster.client(), cluster.client()];
    execute(&mut definer, "SELECT lease_define('p', 4, '1 hour')");
    execute(&mut holder, "BEGIN");
    assert_eq!(acquire(&mut holder, "'p'").slot, 0);
    let pid = backend_pid(&mut definer);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| execute(&mut definer, "SELECT lease_define('p', 2, '1 hour')"));
        wait_until_waiting_for_row(&cluster, pid);
        assert_eq!(acquire(&mut holder, "'p'").slot, 1);
        execute(&mut holder, "COMMIT");
        waiter.join().unwrap();
    });
    assert_eq!(try_acquire(&mut holder, "'p'"), None);
}

/// A term of an open transaction cannot be revoked. The warning says who has it, and its hint frees the lease.
#[test]
fn revocation_names_the_process_of_an_uncommitted_grant() {
    let cluster = builder().start_with_extension();
    let notices = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&notices);
    let mut config: Config = cluster.conninfo().parse().unwrap();
    let mut definer =
        config.notice_callback(move |notice| sink.lock().unwrap().push(notice)).connect(postgres::NoTls).unwrap();
    execute(&mut definer, "SELECT lease_define('taken'), lease_define('slots', 4)");
    execute(&mut definer, "SELECT lease_release('taken', token) FROM lease_acquire('taken')");
    let other = acquire(&mut definer, "'slots', '1 day'").slot;
    for (name, shared) in [("taken", false), ("slots", false), ("new", false), ("read", true)] {
        let mut holder = cluster.client();
        let pid = backend_pid(&mut holder);
        execute(&mut holder, "BEGIN; SAVEPOINT s");
        let slot = acquire(&mut holder, &format!("'{name}', '1 day', shared => {shared}")).slot;
        // Of a shared term, only its holder knows the number.
        let asked = if shared { 0 } else { slot };
        let revoke = format!("SELECT lease_revoke('{name}', {asked})");
        assert!(!value::<bool>(&mut definer, &revoke), "{name}");
        let warning = notices.lock().unwrap().pop().expect("a warning");
        assert_eq!(warning.message(), format!("slot {slot} of lease \"{name}\" was acquired by an open transaction"));
        assert_eq!(warning.code().code(), "01000");
        assert!(warning.detail().unwrap().contains(&format!("process {pid} ")), "{warning:?}");
        let command = warning.hint().unwrap().strip_prefix("To end it, run ").expect("a command");
        assert_eq!(command, format!("SELECT pg_terminate_backend({pid});"));
        execute(&mut definer, command);
        // Waits for the end of the process.
        acquire(&mut definer, &format!("'{name}', '1 day'"));
    }
    assert!(value::<bool>(&mut definer, &format!("SELECT lease_revoke('slots', {other})")));
    assert!(!value::<bool>(&mut definer, "SELECT lease_revoke('unknown')"));
    assert_eq!(notices.lock().unwrap().len(), 0);
}
