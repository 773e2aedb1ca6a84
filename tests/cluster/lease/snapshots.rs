//! Transactions with a single snapshot: they take over only if their snapshot has the writes of the last holder.

use idgen_testkit::lease::{acquire, take_if_free};
use idgen_testkit::sql::{backend_pid, execute, expect_error, value};
use postgres::Client;

use crate::{boot_us, builder, wait_until_waiting_for_row};

const LEVELS: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];

/// Begins a transaction and takes its snapshot.
fn begin(client: &mut Client, level: &str) {
    execute(client, &format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM t"));
}

/// Acquires in a transaction of its own at this isolation level.
fn acquire_alone(client: &mut Client, level: &str, name: &str) -> i64 {
    execute(client, &format!("SET default_transaction_isolation = '{}'", level.to_lowercase()));
    let token = acquire(client, &format!("'{name}', ttl => '1 hour'")).token;
    execute(client, "RESET default_transaction_isolation");
    token
}

/// Makes a term expire now, without a change of its row by the holder.
fn end(client: &mut Client, name: &str) {
    let now_us = boot_us();
    execute(client, &format!("UPDATE idgen.lease SET ends_us = {now_us} WHERE name = '{name}'"));
}

#[test]
fn take_over_fails_in_a_block_and_succeeds_in_its_own_transaction() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int); SELECT lease_define('defined')");
    for level in LEVELS {
        let [mut holder, mut next] = [cluster.client(), cluster.client()];
        // The term begins before the snapshot and ends after it, in an unchanged row.
        let token = acquire(&mut holder, "'a', ttl => '500 ms'").token;
        begin(&mut next, level);
        execute(&mut holder, &format!("BEGIN; SELECT lease_fence('a', {token}); INSERT INTO t VALUES (1); COMMIT"));
        expect_error(&mut next, "SELECT lease_acquire('a')", "40001");
        execute(&mut next, "ROLLBACK");
        let taken = acquire_alone(&mut next, level, "a");
        assert!(taken > token);
        begin(&mut next, level);
        execute(&mut next, &format!("SELECT lease_fence('a', {taken})"));
        assert!(value::<i64>(&mut next, "SELECT count(*) FROM t") > 0);
        execute(&mut next, "COMMIT");

        // The row has changed since the snapshot: the holder released the lease.
        let token = acquire(&mut holder, "'defined'").token;
        begin(&mut next, level);
        execute(&mut holder, &format!("SELECT lease_release('defined', {token})"));
        expect_error(&mut next, "SELECT lease_acquire('defined')", "40001");
        execute(&mut next, "ROLLBACK");
        begin(&mut next, level);
        acquire(&mut next, "'defined', ttl => '1 hour'");
        execute(&mut next, "COMMIT");
        execute(&mut holder, "DELETE FROM idgen.lease");
    }
}

/// The release of an undefined name deletes its row.
#[test]
fn take_over_fails_if_the_snapshot_shows_a_released_holder() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int)");
    for level in LEVELS {
        let [mut holder, mut next] = [cluster.client(), cluster.client()];
        let token = acquire(&mut holder, "'a'").token;
        begin(&mut next, level);
        execute(&mut holder, &format!("BEGIN; SELECT lease_fence('a', {token}); INSERT INTO t VALUES (1); COMMIT"));
        execute(&mut holder, &format!("SELECT lease_release('a', {token})"));
        assert_eq!(value::<i64>(&mut holder, "SELECT count(*) FROM idgen.lease"), 0);
        expect_error(&mut next, "SELECT lease_acquire('a')", "40001");
        execute(&mut next, "ROLLBACK");
        begin(&mut next, level);
        acquire(&mut next, "'a'");
        execute(&mut next, "COMMIT; DELETE FROM idgen.lease");
    }
}

/// The row was inserted and deleted after the snapshot: only dead row versions show it.
#[test]
fn take_over_fails_if_a_holder_came_and_left_after_the_snapshot_smoke() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int)");
    let histories = [
        "",
        // New row versions, until the page is full.
        "DO $$ BEGIN FOR n IN 1..300 LOOP PERFORM lease_renew('a', $1); COMMIT; END LOOP; END $$",
        // Other row locks, and one in a subtransaction.
        "BEGIN; SELECT lease_fence('a', $1); INSERT INTO t VALUES (1); COMMIT",
        "BEGIN; SELECT lease_fence('a', $1); SAVEPOINT s; SELECT lease_renew('a', $1); RELEASE s; COMMIT",
        "BEGIN; SAVEPOINT s; SELECT lease_renew('a', $1); ROLLBACK TO s; SELECT lease_renew('a', $1); COMMIT",
    ];
    for level in LEVELS {
        for history in histories {
            for release in [
                "SELECT lease_release('a', $1)",
                "BEGIN; SAVEPOINT s; SELECT lease_release('a', $1); RELEASE s; COMMIT",
            ] {
                let [mut holder, mut next] = [cluster.client(), cluster.client()];
                begin(&mut next, level);
                let token = acquire(&mut holder, "'a', ttl => '1 hour'").token.to_string();
                execute(&mut holder, &history.replace("$1", &token));
                execute(&mut holder, &release.replace("$1", &token));
                assert_eq!(value::<i64>(&mut holder, "SELECT count(*) FROM idgen.lease"), 0);
                execute(&mut holder, "VACUUM idgen.lease");
                expect_error(&mut next, "SELECT lease_acquire('a')", "40001");
                execute(&mut next, "ROLLBACK");
                // The dead row versions are older than the next snapshot.
                begin(&mut next, level);
                acquire(&mut next, "'a'");
                execute(&mut next, "ROLLBACK");
            }
        }
    }
}

/// Versions of other rows, of the own transaction, and of rolled-back transactions do not matter.
#[test]
fn name_without_another_holder_since_the_snapshot_is_granted() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int); SELECT lease_define('two', 2)");
    for level in LEVELS {
        let [mut holder, mut next] = [cluster.client(), cluster.client()];
        let token = acquire(&mut holder, "'a'").token;
        execute(&mut holder, &format!("SELECT lease_release('a', {token})"));
        begin(&mut next, level);
        execute(&mut holder, "BEGIN");
        acquire(&mut holder, "'a'");
        execute(&mut holder, "ROLLBACK");
        for name in ["b", "aa", "A"] {
            let token = acquire(&mut holder, &format!("'{name}'")).token;
            execute(&mut holder, &format!("SELECT lease_release('{name}', {token})"));
        }
        // Another slot of the name, not the one acquired here.
        acquire(&mut holder, "'two', ttl => '1 hour'");
        acquire(&mut next, "'two', ttl => '1 hour'");
        for _ in 0..2 {
            execute(&mut next, "SAVEPOINT s");
            let token = acquire(&mut next, "'a'").token;
            execute(&mut next, &format!("SELECT lease_release('a', {token}); RELEASE s"));
        }
        acquire(&mut next, "'a'");
        execute(&mut next, "COMMIT; DELETE FROM idgen.lease");
    }
}

/// The snapshot does not show the row, so no retry in the transaction can succeed.
#[test]
fn take_over_fails_if_the_snapshot_lacks_the_row_of_the_last_holder() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int); SELECT lease_define('defined')");
    for level in LEVELS {
        let [mut holder, mut next] = [cluster.client(), cluster.client()];
        for (name, ending) in [("defined", "lease_release('defined', $token)"), ("a", "pg_sleep(0)")] {
            begin(&mut next, level);
            let token = acquire(&mut holder, &format!("'{name}', ttl => '1 hour'")).token;
            execute(&mut holder, &format!("SELECT {}", ending.replace("$token", &token.to_string())));
            end(&mut holder, name);
            expect_error(&mut next, &format!("SELECT lease_acquire('{name}')"), "40001");
            execute(&mut next, "ROLLBACK");
            acquire_alone(&mut next, level, name);
            execute(&mut next, "DELETE FROM idgen.lease");
        }
    }
}

/// Renewals after the snapshot have rewritten the row, but its token is the same.
#[test]
fn fence_with_an_older_snapshot_succeeds_after_renewals() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int)");
    for level in LEVELS {
        let [mut holder, mut worker, mut next] = [cluster.client(), cluster.client(), cluster.client()];
        let token = acquire(&mut holder, "'a', ttl => '1 hour'").token;
        begin(&mut worker, level);
        for _ in 0..3 {
            execute(&mut holder, &format!("SELECT lease_renew('a', {token})"));
        }
        execute(&mut worker, &format!("SELECT lease_fence('a', {token})"));
        // The fence lets renewals pass and makes a take-over wait.
        execute(&mut holder, &format!("SELECT lease_renew('a', {token})"));
        end(&mut holder, "a");
        assert_eq!(take_if_free(&mut next, "a"), None, "{level}");
        execute(&mut worker, "INSERT INTO t VALUES (1); COMMIT");
        assert!(take_if_free(&mut next, "a").expect("the term has expired") > token, "{level}");
        execute(&mut next, "DELETE FROM idgen.lease");
    }
}

/// After a take-over the last holder's fence fails, even if its snapshot still shows it as the holder.
#[test]
fn fence_with_an_older_snapshot_fails_after_a_take_over() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int)");
    for level in LEVELS {
        let [mut holder, mut worker, mut next] = [cluster.client(), cluster.client(), cluster.client()];
        let token = acquire(&mut holder, "'a', ttl => '1 hour'").token;
        begin(&mut worker, level);
        execute(&mut holder, &format!("SELECT lease_renew('a', {token})"));
        end(&mut holder, "a");
        let taken = take_if_free(&mut next, "a").expect("the term has expired");
        expect_error(&mut worker, &format!("SELECT lease_fence('a', {token})"), "55000");
        execute(&mut worker, "ROLLBACK");

        // A fence with a token that is newer than the snapshot.
        begin(&mut worker, level);
        end(&mut holder, "a");
        let newer = take_if_free(&mut next, "a").expect("the term has expired");
        expect_error(&mut worker, &format!("SELECT lease_fence('a', {newer})"), "40001");
        execute(&mut worker, "ROLLBACK");
        begin(&mut worker, level);
        execute(&mut worker, &format!("SELECT lease_fence('a', {newer}); COMMIT"));
        assert!(newer > taken, "{newer} after {taken}");
        execute(&mut next, "DELETE FROM idgen.lease");
    }
}

/// A released or revoked lease cannot be fenced, even if the snapshot still shows its holder.
#[test]
fn fence_reads_the_latest_row_not_the_snapshot_smoke() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int); SELECT lease_define('a')");
    for level in LEVELS {
        let [mut holder, mut worker] = [cluster.client(), cluster.client()];
        for end in ["lease_release('a', $token)", "lease_revoke('a')"] {
            let token = acquire(&mut holder, "'a', ttl => '1 hour'").token;
            begin(&mut worker, level);
            execute(&mut holder, &format!("SELECT {}", end.replace("$token", &token.to_string())));
            expect_error(&mut worker, &format!("SELECT lease_fence('a', {token})"), "55000");
            execute(&mut worker, "ROLLBACK");
        }
    }
}

/// A call that waits for the row of its term goes on with the newest version, as in READ COMMITTED.
#[test]
fn holder_is_served_after_a_wait_for_its_row_smoke() {
    let cluster = builder().start_with_extension();
    for level in LEVELS {
        let [mut first, mut second] = [cluster.client(), cluster.client()];
        execute(&mut second, &format!("SET default_transaction_isolation = '{}'", level.to_lowercase()));
        let pid = backend_pid(&mut second);
        let token = acquire(&mut first, "'a', ttl => '1 hour'").token;
        for call in [
            "lease_renew('a', $1)",
            "lease_fence('a', $1)",
            "lease_renew_many('{a}', '{$1}')",
            "lease_release('a', $1)",
        ] {
            let call = call.replace("$1", &token.to_string());
            // An exclusive lock on the row, and a new version.
            execute(&mut first, "BEGIN; UPDATE idgen.lease SET ttl_us = ttl_us + 1, token = token WHERE name = 'a'");
            execute(&mut first, "SELECT FROM idgen.lease WHERE name = 'a' FOR UPDATE");
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| execute(&mut second, &format!("SELECT {call}")));
                wait_until_waiting_for_row(&cluster, pid);
                execute(&mut first, "COMMIT");
                waiting.join().unwrap();
            });
        }
    }
}
