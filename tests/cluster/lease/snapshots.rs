//! Transactions with a single snapshot: they take over only if their snapshot has the writes of the last holder.

use idgen_testkit::script::play_each;

use crate::builder;

/// Runs a script at both levels. `$begin` begins a transaction and takes its snapshot, and `$end` lets the term of 'a' expire
/// now, without a change of its row by the holder.
fn at_each_level(script: &str) {
    at_each_level_and(script, [], &[[]]);
}

/// The same for each case.
fn at_each_level_and<const N: usize>(script: &str, names: [&str; N], cases: &[[&str; N]]) {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int); SELECT lease_define('defined'), lease_define('two', 2)");
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let script = format!("{script}\n         cleaner: DELETE FROM idgen.lease")
            .replace("$begin", &format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM t"))
            .replace("$end", "UPDATE idgen.lease SET ends_us = ends_us - ttl_us WHERE name = 'a'")
            .replace("$level", level);
        play_each(&cluster, &script, names, cases);
    }
}

#[test]
fn take_over_fails_in_a_block_and_succeeds_in_its_own_transaction() {
    at_each_level(
        "-- The term begins before the snapshot and ends after it, in an unchanged row.
         holder: SELECT token FROM lease_acquire('a', ttl => '500 ms') -> $token
         next: $begin
         holder: BEGIN; SELECT lease_fence('a', $token); INSERT INTO t VALUES (1); COMMIT
         next: SELECT lease_acquire('a') -> error 40001
         next: ROLLBACK
         next: SET default_transaction_isolation = '$level'
         next: SELECT token FROM lease_acquire('a', ttl => '1 hour') -> $taken > $token
         next: RESET default_transaction_isolation
         next: $begin; SELECT lease_fence('a', $taken)
         next: SELECT count(*) > 0 FROM t -> t
         next: COMMIT
         -- The row has changed since the snapshot: the holder released the lease.
         holder: SELECT token FROM lease_acquire('defined') -> $token > $token
         next: $begin
         holder: SELECT lease_release('defined', $token)
         next: SELECT lease_acquire('defined') -> error 40001
         next: ROLLBACK
         next: $begin; SELECT lease_acquire('defined', ttl => '1 hour')
         next: COMMIT",
    );
}

/// The release of an undefined name deletes its row.
#[test]
fn take_over_fails_if_the_snapshot_shows_a_released_holder() {
    at_each_level(
        "holder: SELECT token FROM lease_acquire('a') -> $token
         next: $begin
         holder: BEGIN; SELECT lease_fence('a', $token); INSERT INTO t VALUES (1); COMMIT
         holder: SELECT lease_release('a', $token)
         holder: SELECT count(*) FROM idgen.lease -> 0
         next: SELECT lease_acquire('a') -> error 40001
         next: ROLLBACK
         next: $begin; SELECT lease_acquire('a'); COMMIT",
    );
}

/// The row was inserted and deleted after the snapshot: only dead row versions show it.
#[test]
fn take_over_fails_if_a_holder_came_and_left_after_the_snapshot_smoke() {
    let released = "SELECT lease_release('a', $token)";
    let in_a_savepoint = "BEGIN; SAVEPOINT s; SELECT lease_release('a', $token); RELEASE s; COMMIT";
    let histories = [
        "SELECT 1",
        // New row versions, until the page is full.
        "DO $$ BEGIN FOR n IN 1..300 LOOP PERFORM lease_renew('a', $token); COMMIT; END LOOP; END $$",
        // Other row locks, and one in a subtransaction.
        "BEGIN; SELECT lease_fence('a', $token); INSERT INTO t VALUES (1); COMMIT",
        "BEGIN; SELECT lease_fence('a', $token); SAVEPOINT s; SELECT lease_renew('a', $token); RELEASE s; COMMIT",
        "BEGIN; SAVEPOINT s; SELECT lease_renew('a', $token); ROLLBACK TO s; SELECT lease_renew('a', $token); COMMIT",
    ];
    at_each_level_and(
        "next: $begin
         holder: SELECT token FROM lease_acquire('a', ttl => '1 hour') -> $token
         holder: $history
         holder: $release
         holder: SELECT count(*) FROM idgen.lease -> 0
         holder: VACUUM idgen.lease
         next: SELECT lease_acquire('a') -> error 40001
         next: ROLLBACK
         -- The dead row versions are older than the next snapshot.
         next: $begin; SELECT lease_acquire('a')
         next: ROLLBACK",
        ["$history", "$release"],
        &histories.map(|history| [[history, released], [history, in_a_savepoint]]).concat(),
    );
}

/// Versions of other rows, of the own transaction, and of rolled-back transactions do not matter.
#[test]
fn name_without_another_holder_since_the_snapshot_is_granted() {
    at_each_level(
        "holder: SELECT lease_release('a', token) FROM lease_acquire('a')
         next: $begin
         holder: BEGIN; SELECT lease_acquire('a')
         holder: ROLLBACK
         holder: SELECT lease_release('b', token) FROM lease_acquire('b')
         holder: SELECT lease_release('aa', token) FROM lease_acquire('aa')
         holder: SELECT lease_release('A', token) FROM lease_acquire('A')
         -- Another slot of the name, not the one acquired here.
         holder: SELECT lease_acquire('two', ttl => '1 hour')
         next: SELECT lease_acquire('two', ttl => '1 hour')
         next: SAVEPOINT s; SELECT token FROM lease_acquire('a') -> $token
         next: SELECT lease_release('a', $token); RELEASE s
         next: SAVEPOINT s; SELECT token FROM lease_acquire('a') -> $token > $token
         next: SELECT lease_release('a', $token); RELEASE s
         next: SELECT lease_acquire('a')
         next: COMMIT",
    );
}

/// The snapshot does not show the row, so no retry in the transaction can succeed.
#[test]
fn take_over_fails_if_the_snapshot_lacks_the_row_of_the_last_holder() {
    at_each_level_and(
        "next: $begin
         holder: SELECT token FROM lease_acquire('$name', ttl => '1 hour') -> $token
         holder: SELECT lease_release('defined', token) FROM idgen.lease WHERE name = 'defined'; $end
         next: SELECT lease_acquire('$name') -> error 40001
         next: ROLLBACK
         next: SET default_transaction_isolation = '$level'
         next: SELECT lease_acquire('$name', ttl => '1 hour')",
        ["$name"],
        &[["defined"], ["a"]],
    );
}

/// The definition has fewer slots than when the last holder began.
#[test]
fn take_over_fails_if_the_snapshot_lacks_the_end_of_a_holder_above_the_limit() {
    at_each_level(
        "holder: SELECT lease_define('two', 2)
         other: SELECT token FROM lease_acquire('two') -> $first
         holder: SELECT token FROM lease_acquire('two') -> $second
         other: SELECT lease_release('two', $first), lease_define('two', 1, force => true)
         next: $begin
         holder: BEGIN; SELECT lease_fence('two', $second); INSERT INTO t VALUES (1); COMMIT
         holder: SELECT lease_release('two', $second)
         next: SELECT lease_acquire('two') -> error 40001
         next: ROLLBACK
         next: $begin; SELECT lease_acquire('two'); COMMIT",
    );
}

/// Renewals after the snapshot have rewritten the row, but its token is the same.
#[test]
fn fence_with_an_older_snapshot_succeeds_after_renewals() {
    at_each_level(
        "holder: SELECT token FROM lease_acquire('a', ttl => '1 hour') -> $token
         worker: $begin
         holder: SELECT lease_renew('a', $token)
         holder: SELECT lease_renew('a', $token)
         holder: SELECT lease_renew('a', $token)
         worker: SELECT lease_fence('a', $token)
         -- The fence lets renewals pass and makes a take-over wait.
         holder: SELECT lease_renew('a', $token)
         holder: $end
         next: SELECT lease_try_acquire('a') -> nothing
         worker: INSERT INTO t VALUES (1); COMMIT
         next: SELECT token FROM lease_try_acquire('a') -> $taken > $token",
    );
}

/// After a take-over the last holder's fence fails, even if its snapshot still shows it as the holder.
#[test]
fn fence_with_an_older_snapshot_fails_after_a_take_over() {
    at_each_level(
        "holder: SELECT token FROM lease_acquire('a', ttl => '1 hour') -> $token
         worker: $begin
         holder: SELECT lease_renew('a', $token)
         holder: $end
         next: SELECT token FROM lease_try_acquire('a', ttl => '1 hour') -> $taken
         worker: SELECT lease_fence('a', $token) -> error 55000
         worker: ROLLBACK
         -- A fence with a token that is newer than the snapshot.
         worker: $begin
         holder: $end
         next: SELECT token FROM lease_try_acquire('a', ttl => '1 hour') -> $newer > $taken
         worker: SELECT lease_fence('a', $newer) -> error 40001
         worker: ROLLBACK
         worker: $begin; SELECT lease_fence('a', $newer); COMMIT",
    );
}

/// A released or revoked lease cannot be fenced, even if the snapshot still shows its holder.
#[test]
fn fence_reads_the_latest_row_not_the_snapshot_smoke() {
    at_each_level_and(
        "holder: SELECT token FROM lease_acquire('defined', ttl => '1 hour') -> $token
         worker: $begin
         holder: SELECT $freeing
         worker: SELECT lease_fence('defined', $token) -> error 55000
         worker: ROLLBACK",
        ["$freeing"],
        &[["lease_release('defined', $token)"], ["lease_revoke('defined')"]],
    );
}

/// A call that waits for the row of its term goes on with the newest version, as in READ COMMITTED.
#[test]
fn holder_is_served_after_a_wait_for_its_row_smoke() {
    at_each_level_and(
        "first: SELECT token FROM lease_acquire('a', ttl => '1 hour') -> $token
         second: SET default_transaction_isolation = '$level'
         -- An exclusive lock on the row, and a new version.
         first: BEGIN; UPDATE idgen.lease SET ttl_us = ttl_us + 1, token = token WHERE name = 'a'
         first: SELECT FROM idgen.lease WHERE name = 'a' FOR UPDATE
         second waits for transactionid: SELECT $call
         first: COMMIT
         second ends",
        ["$call"],
        &[
            ["lease_renew('a', $token)"],
            ["lease_fence('a', $token)"],
            ["lease_renew_many('{a}', '{$token}')"],
            ["lease_release('a', $token)"],
        ],
    );
}
