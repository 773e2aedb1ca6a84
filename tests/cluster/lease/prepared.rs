//! PREPARE TRANSACTION: a grant or renewal cannot be prepared. A fence can, and lasts until its transaction ends.

use idgen_testkit::Builder;
use idgen_testkit::lease::acquire;
use idgen_testkit::script::play_each;
use idgen_testkit::sql::{PATIENCE, backend_pid, column, execute, value};

use crate::builder;

fn with_prepared() -> Builder {
    builder().conf("max_prepared_transactions", "5")
}

#[test]
fn grant_or_renewal_cannot_be_prepared() {
    play_each(
        &with_prepared().start_with_extension(),
        "client: SELECT token FROM lease_acquire('held', ttl => '1 hour') -> $token
         client: SELECT lease::text FROM idgen.lease -> $row
         client: BEGIN; SELECT $call
         client: PREPARE TRANSACTION 'p' -> error 0A000 acquired, renewed or revoked
         -- The error has rolled the transaction back.
         client: SELECT lease::text = '$row' FROM idgen.lease WHERE name = 'held' -> t
         other: SELECT lease_release('a', token) FROM lease_try_acquire('a') -> t
         -- A release can be prepared.
         client: BEGIN; SELECT lease_release('held', $token); PREPARE TRANSACTION 'p'
         other: SELECT lease_try_acquire('held') -> nothing
         client: COMMIT PREPARED 'p'
         other: SELECT lease_release('held', token) FROM lease_try_acquire('held') -> t",
        ["$call"],
        &[
            ["lease_acquire('a')"],
            ["lease_try_acquire('a', bind_session => true)"],
            ["lease_acquire('held', token => $token)"],
            ["lease_renew('held', $token)"],
            ["lease_renew_many('{held}', '{$token}')"],
            ["lease_revoke('held')"],
        ],
    );
}

/// The term has expired, and the fence alone blocks the take-over, without its session and over a crash.
#[test]
fn prepared_fence_blocks_a_take_over_until_its_transaction_ends() {
    let cluster = with_prepared().start_with_extension();
    cluster.execute("CREATE TABLE t (n int)");
    play_each(
        &cluster,
        "client: SELECT token FROM lease_acquire('a', ttl => '1 hour') -> $token
         client: BEGIN; SELECT lease_fence('a', $token); INSERT INTO t VALUES (1); PREPARE TRANSACTION 'fenced'
         client: UPDATE idgen.lease SET ends_us = 0
         client leaves
         next: SELECT lease_try_acquire('a', ttl => '1 hour') -> nothing
         server: crashes
         next: SELECT lease_try_acquire('a', ttl => '1 hour') -> nothing
         next waits for transactionid: SELECT token FROM lease_acquire('a')
         -- Until then the holder can renew the expired term.
         client: SELECT lease_renew('a', $token, ttl => '100 ms')
         client: $ending PREPARED 'fenced'
         next ends -> $taken > $token
         client: SELECT lease_fence('a', $token) -> error 55000
         client: SELECT count(*) FROM t -> $rows
         client: DELETE FROM t; DELETE FROM idgen.lease",
        ["$ending", "$rows"],
        &[["COMMIT", "1"], ["ROLLBACK", "0"]],
    );
}

/// If another slot may become free first, the head of the queue does not wait for the fence in the lock manager. COMMIT
/// PREPARED signals no condition variable, so the head polls the rows, but not continuously.
#[test]
fn head_polls_a_slot_under_a_prepared_fence_at_intervals() {
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
        cluster.wait_for(PATIENCE, "two seconds of waiting", || column::<bool>(&mut client, &waits) == [true]);
        let probes: i64 = value(&mut client, "SELECT probes FROM idgen.stat_lease");
        assert!((1..100).contains(&probes), "{probes} probes");
        execute(&mut client, "COMMIT PREPARED 'fenced'");
        assert!(waiter.join().unwrap() > token);
    });
}
