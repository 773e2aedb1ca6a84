//! Without preload nothing wakes the head of the queue, so it polls, and there are no statistics.

use idgen_testkit::lease::{acquire, try_acquire};
use idgen_testkit::script::play;
use idgen_testkit::sql::{backend_pid, execute, expect_error, value};

use crate::fairness::assert_granted_in_queue_order;
use crate::process::Psql;
use crate::{builder, release, wait_for_state, wait_until_head};

#[test]
fn leases_work_by_polling_without_preload() {
    let cluster = builder().preload(false).start_with_extension();
    play(
        &cluster,
        "holder: SELECT lease_acquire('u', '1 day')
         observer: SELECT lease_try_acquire('u', '150 ms') -> nothing
         observer: DELETE FROM idgen.lease",
    );
    assert_granted_in_queue_order(&cluster, 4);
    assert_eq!(value::<i64>(&mut cluster.client(), "SELECT count(*) FROM idgen.stat_lease"), 0);
}

#[test]
fn every_kind_of_end_is_noticed_without_preload() {
    let cluster = builder().preload(false).start_with_extension();
    let (mut holder, mut waiter) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut waiter);
    // The end of the term.
    let old = acquire(&mut holder, "'u', '100 ms'").token;
    let taken = acquire(&mut waiter, "'u', '1 day'").token;
    expect_error(&mut holder, &format!("SELECT lease_fence('u', {old})"), "55000");
    assert!(release(&mut waiter, "u", taken));
    // The end of the client.
    let mut killed = Psql::start(&cluster);
    killed.ask("SELECT token FROM lease_acquire('u', '1 day', bind_session => true)");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| acquire(&mut waiter, "'u', '100 ms'"));
        wait_until_head(&cluster, pid);
        killed.kill();
        waiter.join().unwrap();
    });
    // The end of a transaction that has fenced.
    wait_for_state(&cluster, "u", "0 expired");
    let token: i64 = value(&mut holder, "SELECT token FROM idgen.lease");
    execute(&mut holder, &format!("BEGIN; SELECT lease_fence('u', {token})"));
    assert_eq!(try_acquire(&mut waiter, "'u', '150 ms'"), None);
    execute(&mut holder, "COMMIT");
    assert!(try_acquire(&mut waiter, "'u'").is_some());
}

/// Locks, leases and fences do not need it.
#[test]
fn check_says_what_fails_without_preload() {
    let cluster = builder().preload(false).start_with_extension();
    let mut client = cluster.client();
    let message: String = value(&mut client, "SELECT message FROM idgen.checks WHERE \"check\" = 'preloaded'");
    assert_eq!(message, "idgen is not preloaded, so draws fail, and so do grants of worker ids and of segment values");
    expect_error(&mut client, "SELECT snowflake_next()", "55000");
    execute(&mut client, "SELECT lock_acquire('l')");
    let token = acquire(&mut client, "'u', '1 day'").token;
    execute(&mut client, &format!("SELECT lease_renew('u', {token}), lease_fence('u', {token})"));
}

/// Nothing then renews the number that tells a restored data directory.
#[test]
fn coordinator_grants_nothing_without_preload() {
    for (was_preloaded, call) in [(false, "SELECT worker_pool_define('p')"), (true, "SELECT worker_acquire('p')")] {
        let cluster = builder().preload(was_preloaded).start_with_extension();
        cluster.execute("SELECT segment_create('t')");
        if was_preloaded {
            cluster.execute("SELECT worker_pool_define('p')");
            cluster.set_conf("shared_preload_libraries", "");
            cluster.restart();
        }
        let mut client = cluster.client();
        for call in [call, "SELECT segment_request('t', 1, 'server', 0, 10)"] {
            let error = expect_error(&mut client, call, "55000");
            assert_eq!(error.message(), "idgen must be preloaded", "{call}");
        }
    }
}
