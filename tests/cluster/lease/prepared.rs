//! PREPARE TRANSACTION: a term that nobody was told cannot be prepared, a fence can, and holds until its transaction ends.

use idgen_testkit::lease::{acquire, take_if_free, term};
use idgen_testkit::sql::{PATIENCE, backend_pid, column, execute, expect_error, value, wait_for_event};
use idgen_testkit::{Builder, Stop};

use crate::builder;

fn with_prepared() -> Builder {
    builder().conf("max_prepared_transactions", "5")
}

#[test]
fn what_begins_or_prolongs_a_term_cannot_be_prepared() {
    let cluster = with_prepared().start_with_extension();
    let mut client = cluster.client();
    let token = acquire(&mut client, "'held', ttl => '1 hour'").token;
    let before = term(&mut client, "held");
    for deed in [
        "lease_acquire('a')".to_owned(),
        "lease_try_acquire('a', bind_session => true)".to_owned(),
        format!("lease_acquire('held', token => {token})"),
        format!("lease_renew('held', {token})"),
        format!("lease_renew_many('{{held}}', '{{{token}}}')"),
        "lease_revoke('held')".to_owned(),
    ] {
        execute(&mut client, &format!("BEGIN; SELECT {deed}"));
        expect_error(&mut client, "PREPARE TRANSACTION 'p'", "0A000");
        // The error has ended the transaction, and all that it did.
        assert_eq!(term(&mut client, "held"), before, "{deed}");
        let other = take_if_free(&mut cluster.client(), "a").expect("nobody holds it");
        execute(&mut client, &format!("SELECT lease_release('a', {other})"));
    }
    // What ends a term can be.
    execute(&mut client, &format!("BEGIN; SELECT lease_release('held', {token}); PREPARE TRANSACTION 'p'"));
    assert_eq!(take_if_free(&mut cluster.client(), "held"), None);
    execute(&mut client, "COMMIT PREPARED 'p'");
    assert!(take_if_free(&mut cluster.client(), "held").is_some());
}

/// The holder's term is over, and only his fence keeps the next one out: without its session, and over a crash.
#[test]
fn a_prepared_fence_keeps_the_next_holder_out_until_its_transaction_ends() {
    let cluster = with_prepared().start_with_extension();
    cluster.execute("CREATE TABLE t (n int)");
    for (ending, rows) in [("COMMIT", 1_i64), ("ROLLBACK", 0)] {
        let mut client = cluster.client();
        let token = acquire(&mut client, "'a', ttl => '1 hour'").token;
        execute(
            &mut client,
            &format!(
                "BEGIN; SELECT lease_fence('a', {token}); INSERT INTO t VALUES (1); PREPARE TRANSACTION 'fenced';
                 UPDATE idgen.lease SET ends_us = 0"
            ),
        );
        drop(client);
        let mut next = cluster.client();
        assert_eq!(take_if_free(&mut next, "a"), None);
        cluster.stop(Stop::Immediate);
        cluster.start_again();

        let [mut next, mut client] = [cluster.client(), cluster.client()];
        assert_eq!(take_if_free(&mut next, "a"), None);
        let pid = backend_pid(&mut next);
        let next_token = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| acquire(&mut next, "'a'").token);
            wait_for_event(&cluster, pid, "transactionid");
            // The holder goes on renewing meanwhile: then the term is his again.
            execute(&mut client, &format!("SELECT lease_renew('a', {token}, ttl => '100 ms')"));
            execute(&mut client, &format!("{ending} PREPARED 'fenced'"));
            waiter.join().unwrap()
        });
        assert!(next_token > token);
        expect_error(&mut client, &format!("SELECT lease_fence('a', {token})"), "55000");
        assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM t"), rows);
        execute(&mut client, "DELETE FROM t; DELETE FROM idgen.lease");
    }
}

/// Where another slot may be free sooner, the head of the queue does not wait for the fence in the lock manager. COMMIT
/// PREPARED rings no bell, so it looks at the rows now and then, and not all the time.
#[test]
fn a_slot_under_a_prepared_fence_is_looked_at_now_and_then() {
    let cluster = with_prepared().start_with_extension();
    let [mut client, mut next] = [cluster.client(), cluster.client()];
    execute(&mut client, "SELECT lease_define('s', slots => 2); SELECT lease_acquire('s', ttl => '1 hour')");
    let token = acquire(&mut client, "'s'").token;
    execute(
        &mut client,
        &format!(
            "BEGIN; SELECT lease_fence('s', {token}); PREPARE TRANSACTION 'fenced';
             UPDATE idgen.lease SET ends_us = 0 WHERE token = {token};
             SELECT idgen.reset_stats()"
        ),
    );
    let pid = backend_pid(&mut next);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| acquire(&mut next, "'s'").token);
        let waits = format!(
            "SELECT clock_timestamp() > query_start + interval '2 s' FROM pg_stat_activity WHERE pid = {pid} AND state = 'active'"
        );
        cluster.wait_for(PATIENCE, "some looks", || column::<bool>(&mut client, &waits) == [true]);
        let probes: i64 = value(&mut client, "SELECT probes FROM idgen.stat_lease");
        assert!((1..100).contains(&probes), "{probes} looks");
        execute(&mut client, "COMMIT PREPARED 'fenced'");
        assert!(waiter.join().unwrap() > token);
    });
}
