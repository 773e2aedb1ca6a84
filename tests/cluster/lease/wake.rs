//! Every event that frees a lease wakes the head of the queue. The tests pause the sleeping head and check that PostgreSQL's
//! wakeup signal is pending.

use idgen_testkit::Cluster;
use idgen_testkit::lease::{Grant, acquire};
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, value};
use nix::sys::signal::Signal;
use postgres::Client;

use crate::process::Psql;
use crate::{builder, pause_asleep, wait_for_state, wait_until_head};

/// True if the signal of a latch is pending for a paused process.
fn is_signalled(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process exists");
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).expect("Linux shows pending signals");
    let pending = u64::from_str_radix(pending.trim(), 16).expect("a mask");
    pending & (1 << (Signal::SIGURG as u32 - 1)) != 0
}

/// The event wakes a session that waits for the name, which then gets the lease.
fn assert_wakes(cluster: &Cluster, name: &str, event: impl FnOnce()) -> Grant {
    let mut waiter = cluster.client();
    let pid = backend_pid(&mut waiter);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| acquire(&mut waiter, &format!("'{name}', '1 day'")));
        wait_until_head(cluster, pid);
        let paused = pause_asleep(cluster, pid);
        assert!(!is_signalled(pid));
        event();
        cluster.wait_for(PATIENCE, "a signal to the head", || is_signalled(pid));
        paused.resume();
        waiter.join().unwrap()
    })
}

#[test]
fn event_that_frees_a_lease_wakes_the_head_smoke() {
    let cluster = builder().start_with_extension();
    for end in [
        "SELECT lease_release('w', $token)",
        "BEGIN; SELECT lease_release('w', $token); COMMIT",
        "BEGIN; SAVEPOINT s; SELECT lease_release('w', $token); RELEASE s; COMMIT",
        "DO $$ BEGIN PERFORM lease_release('w', $token); END $$",
        "SELECT lease_revoke('w')",
        "SELECT lease_define('w', 2)",
    ] {
        let mut holder = cluster.client();
        let token = acquire(&mut holder, "'w', '1 day'").token.to_string();
        assert_wakes(&cluster, "w", || execute(&mut holder, &end.replace("$token", &token)));
        execute(&mut holder, "DELETE FROM idgen.lease; DELETE FROM idgen.lease_definition");
    }
}

#[test]
fn end_of_a_bound_session_wakes_the_head() {
    let cluster = builder().start_with_extension();
    let bound = "SELECT slot FROM lease_acquire('w', '1 day', bind_session => true)";
    let mut killed = Psql::start(&cluster);
    assert_eq!(killed.ask(bound), "0");
    assert_wakes(&cluster, "w", || killed.kill());
    cluster.execute("DELETE FROM idgen.lease");

    let mut ended = Psql::start(&cluster);
    assert_eq!(ended.ask(bound), "0");
    let end = format!("SELECT pg_terminate_backend({}, 60000)", ended.backend);
    assert_wakes(&cluster, "w", || assert!(value::<bool>(&mut cluster.client(), &end)));
    cluster.execute("DELETE FROM idgen.lease");

    // Bound in a savepoint, and released in one that is rolled back.
    let mut killed = Psql::start(&cluster);
    killed.send(&format!("BEGIN; SAVEPOINT s; {bound}; RELEASE s; COMMIT"));
    assert_eq!(killed.answer(), "0");
    killed.send("BEGIN; SAVEPOINT s");
    killed.ask("SELECT lease_release('w', token) FROM idgen.leases");
    assert_eq!(killed.ask("ROLLBACK TO s; COMMIT; SELECT 7"), "7");
    assert_wakes(&cluster, "w", || killed.kill());
}

/// One slot is held, and the row of the other is locked by a transaction: the waiter sleeps, because either may become free
/// first.
#[test]
fn end_of_a_transaction_that_locked_a_slot_wakes_the_head() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('w', 2, '1 day')");
    let mut others: [Client; 3] = [cluster.client(), cluster.client(), cluster.client()];
    let [holder, first, second] = &mut others;
    acquire(holder, "'w'");
    let freed = acquire(first, "'w', '100 ms'");
    wait_for_state_of(&cluster, freed.slot, "expired");
    execute(first, &format!("BEGIN; SELECT lease_fence('w', {})", freed.token));
    let taken = assert_wakes(&cluster, "w", || execute(first, "COMMIT"));
    assert_eq!(taken.slot, freed.slot);

    execute(holder, &format!("SELECT lease_release('w', {})", taken.token));
    execute(second, "BEGIN");
    assert_eq!(acquire(second, "'w'").slot, taken.slot);
    let taken = assert_wakes(&cluster, "w", || execute(second, "ROLLBACK"));
    assert_eq!(taken.slot, freed.slot);
}

fn wait_for_state_of(cluster: &Cluster, slot: i32, state: &str) {
    let mut client = cluster.client();
    let sql = format!("SELECT state = '{state}' FROM idgen.leases WHERE name = 'w' AND slot = {slot}");
    cluster.wait_for(PATIENCE, "the slot's term to expire", || value(&mut client, &sql));
}

/// An expiry and pg_advisory_unlock_all() signal nothing: the head finds them by polling.
#[test]
fn head_finds_an_end_without_a_signal_by_polling() {
    let cluster = builder().start_with_extension();
    let (mut holder, mut waiter) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut waiter);
    for (hold, end) in [
        ("'s', '100 ms'", "SELECT 1"),
        ("'s', '1 day', bind_session => true", "DISCARD ALL"),
        ("'s', '1 day', bind_session => true", "SELECT pg_advisory_unlock_all()"),
    ] {
        acquire(&mut holder, hold);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| acquire(&mut waiter, "'s', '1 day'"));
            if hold.contains("day") {
                wait_until_head(&cluster, pid);
            }
            execute(&mut holder, end);
            waiter.join().unwrap();
        });
        wait_for_state(&cluster, "s", "0 held");
        execute(&mut waiter, "DELETE FROM idgen.lease");
    }
}
