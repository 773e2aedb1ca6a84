//! Uncommitted changes of a definition: grants wait for them, holders do not.

use std::sync::{Arc, Mutex};

use idgen_testkit::lease::acquire;
use idgen_testkit::script::{play, play_each};
use idgen_testkit::sql::{backend_pid, execute, value};
use postgres::Config;

use crate::{builder, scenario};

/// Runs a script for each call that blocks grants while its transaction is open.
fn for_each_change(script: &str) {
    for change in [
        "SELECT lease_define('p', 3, '1 hour', force => true)",
        "SELECT lease_alter('p', slots => 3, force => true)",
        "SELECT lease_define('q'), lease_define('p', 1, force => true), lease_drop('q')",
    ] {
        let cluster = builder().conf("lock_timeout", "100ms").start_with_extension();
        play(&cluster, &script.replace("$change", change));
    }
}

#[test]
fn uncommitted_definition_does_not_block_the_holder() {
    for_each_change(
        "holder: SELECT lease_define('p', 4, '1 hour')
         holder: SELECT token FROM lease_acquire('p') -> $renewed
         holder: SELECT token FROM lease_acquire('p') -> $released
         holder: SELECT token FROM lease_acquire('p') -> $fenced
         holder: SELECT slot FROM lease_acquire('p') -> $revoked
         definer: BEGIN; $change
         holder: SELECT lease_renew('p', $renewed) IS NOT NULL -> t
         holder: SELECT lease_release('p', $released) -> t
         holder: SELECT lease_fence('p', $fenced)
         holder: SELECT lease_acquire('p', token => $fenced)
         holder: SELECT count(*) FROM lease_renew_many('{p}', ARRAY[$renewed]) -> 1
         holder: SELECT lease_revoke('p', $revoked) -> t
         definer: COMMIT",
    );
}

#[test]
fn grant_that_waits_for_a_definition_obeys_timeouts() {
    scenario(
        "definer: SELECT lease_define('p', 4, '1 hour')
         definer: BEGIN; SELECT lease_define('p', 5, '1 hour')
         client: SET lock_timeout = '50ms'
         client: SELECT lease_acquire('p') -> error 55P03
         client: RESET lock_timeout
         client: SET statement_timeout = '50ms'
         client: SELECT lease_acquire('p') -> error 57014
         client: RESET statement_timeout
         client: SELECT lease_try_acquire('p', '50 ms') -> nothing
         -- None of these has left a lock: the next attempt waits only for the definition.
         client waits for advisory: SELECT slot FROM lease_acquire('p')
         definer: COMMIT
         client ends -> 0",
    );
}

/// Grants of open transactions, however their rows came about.
#[test]
fn definition_waits_for_an_uncommitted_grant() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('taken'), lease_define('slots', 4), lease_define('first')");
    cluster.execute("SELECT lease_release('taken', token) FROM lease_acquire('taken')");
    play_each(
        &cluster,
        "holder: BEGIN; SAVEPOINT s; SELECT lease_acquire('$name', shared => $shared)
         definer: SET lock_timeout = '50ms'
         definer: SELECT lease_define('$name', 2) -> error 55P03
         definer: SELECT lease_drop('$name') -> error 55P03
         holder: ROLLBACK TO s
         definer: SELECT lease_define('$name')
         holder: COMMIT",
        ["$name", "$shared"],
        &[["taken", "false"], ["slots", "false"], ["first", "false"], ["new", "false"], ["read", "true"]],
    );
}

/// Its new row has the token of a term that is known.
#[test]
fn definition_does_not_wait_for_an_uncommitted_renewal() {
    scenario(
        "definer: SELECT lease_define('p', 2, '1 hour')
         holder: SELECT token FROM lease_acquire('p') -> $token
         holder: BEGIN; SELECT lease_renew('p', $token)
         definer: SET lock_timeout = '1s'
         definer: SELECT lease_define('p', 3, '1 hour')
         holder: COMMIT",
    );
}

/// The definition would wait for the transaction, and that for the definition.
#[test]
fn transaction_that_a_definition_waits_for_acquires_another_slot() {
    scenario(
        "definer: SELECT lease_define('p', 4, '1 hour')
         holder: BEGIN; SELECT slot FROM lease_acquire('p') -> 0
         definer waits for transactionid: SELECT lease_define('p', 2, '1 hour')
         holder: SELECT slot FROM lease_acquire('p') -> 1
         holder: COMMIT
         definer ends
         holder: SELECT lease_try_acquire('p') -> nothing",
    );
}

/// Such transactions can follow each other without a gap, so the wait might never end.
#[test]
fn definition_does_not_wait_for_transactions_that_acquire_later() {
    scenario(
        "definer: SELECT lease_define('p', 3, '1 hour')
         -- The slots have rows: a transaction that makes one keeps the others from it.
         first: SELECT token FROM lease_acquire('p') -> $one
         first: SELECT token FROM lease_acquire('p') -> $two
         first: SELECT token FROM lease_acquire('p') -> $three
         first: SELECT count(*) FROM lease_release_many('{p,p,p}', ARRAY[$one, $two, $three]) -> 3
         first: BEGIN; SELECT lease_acquire('p')
         definer waits for transactionid: SELECT lease_alter('p', ttl => '2 hours')
         second: BEGIN; SELECT lease_acquire('p')
         first: COMMIT
         until: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND pid = $definer_pid -> 1
         third: SELECT lease_try_acquire('p') -> nothing
         second: COMMIT
         definer ends",
    );
}

/// Its holder may still renew it.
#[test]
fn fewer_slots_do_not_exclude_an_expired_holder_unasked() {
    scenario(
        "definer: SELECT lease_define('p', 2)
         kept: SELECT slot FROM lease_acquire('p', ttl => '1 hour') -> 0
         late: SELECT token FROM lease_acquire('p', ttl => '100 ms') -> $token
         until: SELECT state FROM idgen.leases WHERE name = 'p' AND slot = 1 -> expired
         definer: SELECT lease_alter('p', slots => 1) -> error 55006 Holders are in 1
         definer: SELECT lease_define('p') -> error 55006
         late: SELECT lease_renew('p', $token) IS NOT NULL -> t
         late: SELECT lease_release('p', $token)
         definer: SELECT lease_alter('p', slots => 1)",
    );
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
