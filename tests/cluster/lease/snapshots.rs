//! Transactions with one snapshot for all their statements: nobody takes over who cannot see what the last holder wrote.

use idgen_testkit::lease::{acquire, take_if_free};
use idgen_testkit::sql::{execute, expect_error, value};
use postgres::Client;

use crate::{boot_us, builder};

const LEVELS: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];

/// Begins a transaction that has its snapshot.
fn begin(client: &mut Client, level: &str) {
    execute(client, &format!("BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM t"));
}

/// Acquires in a transaction of its own, which is of that level all the same.
fn acquire_alone(client: &mut Client, level: &str, name: &str) -> i64 {
    execute(client, &format!("SET default_transaction_isolation = '{}'", level.to_lowercase()));
    let token = acquire(client, &format!("'{name}', ttl => '1 hour'")).token;
    execute(client, "RESET default_transaction_isolation");
    token
}

/// Has a term end now, as time does: without a change of its row by the holder.
fn end(client: &mut Client, name: &str) {
    let now_us = boot_us();
    execute(client, &format!("UPDATE idgen.lease SET ends_us = {now_us} WHERE name = '{name}'"));
}

#[test]
fn a_take_over_in_a_block_is_refused_and_succeeds_in_a_transaction_of_its_own() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int); SELECT lease_define('defined')");
    for level in LEVELS {
        let [mut holder, mut next] = [cluster.client(), cluster.client()];
        // The term was there before the snapshot, and its end is after it, in a row that does not change.
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

        // The row has changed since: a holder came and went, or was revoked.
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

/// A name that is not defined leaves no row when it is released.
#[test]
fn a_snapshot_that_shows_a_holder_who_has_left_is_refused() {
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

/// The row was inserted and deleted since the snapshot: only its dead versions are left to tell.
#[test]
fn a_holder_that_came_and_left_since_the_snapshot_is_refused_smoke() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int)");
    let lives = [
        "",
        // New versions of the row, on its page and as long as the page has room.
        "DO $$ BEGIN FOR n IN 1..300 LOOP PERFORM lease_renew('a', $1); COMMIT; END LOOP; END $$",
        // Another kind of lock on it, and one in a subtransaction.
        "BEGIN; SELECT lease_fence('a', $1); INSERT INTO t VALUES (1); COMMIT",
        "BEGIN; SELECT lease_fence('a', $1); SAVEPOINT s; SELECT lease_renew('a', $1); RELEASE s; COMMIT",
        "BEGIN; SAVEPOINT s; SELECT lease_renew('a', $1); ROLLBACK TO s; SELECT lease_renew('a', $1); COMMIT",
    ];
    for level in LEVELS {
        for life in lives {
            for release in [
                "SELECT lease_release('a', $1)",
                "BEGIN; SAVEPOINT s; SELECT lease_release('a', $1); RELEASE s; COMMIT",
            ] {
                let [mut holder, mut next] = [cluster.client(), cluster.client()];
                begin(&mut next, level);
                let token = acquire(&mut holder, "'a', ttl => '1 hour'").token.to_string();
                execute(&mut holder, &life.replace("$1", &token));
                execute(&mut holder, &release.replace("$1", &token));
                assert_eq!(value::<i64>(&mut holder, "SELECT count(*) FROM idgen.lease"), 0);
                execute(&mut holder, "VACUUM idgen.lease");
                expect_error(&mut next, "SELECT lease_acquire('a')", "40001");
                execute(&mut next, "ROLLBACK");
                // The dead versions are older than the next snapshot.
                begin(&mut next, level);
                acquire(&mut next, "'a'");
                execute(&mut next, "ROLLBACK");
            }
        }
    }
}

/// Versions of other rows, of the own transaction, and of those that were rolled back say nothing.
#[test]
fn a_name_without_another_holder_since_the_snapshot_is_granted() {
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
        // Another slot of the name, and not the one that is made here.
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

/// Its row is one that the snapshot does not show, so it cannot be taken, however long one tries.
#[test]
fn a_snapshot_that_does_not_show_the_holder_who_has_left_is_refused() {
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

/// The row was written again and again since the snapshot, and its token is the same.
#[test]
fn renewals_leave_the_fence_of_an_older_snapshot_alone() {
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
        // It is a fence: renewals pass, a take-over waits.
        execute(&mut holder, &format!("SELECT lease_renew('a', {token})"));
        end(&mut holder, "a");
        assert_eq!(take_if_free(&mut next, "a"), None, "{level}");
        execute(&mut worker, "INSERT INTO t VALUES (1); COMMIT");
        assert!(take_if_free(&mut next, "a").expect("its time is over") > token, "{level}");
        execute(&mut next, "DELETE FROM idgen.lease");
    }
}

/// After a take-over the fence of the last holder fails, also where his snapshot still shows him.
#[test]
fn a_take_over_ends_the_fence_of_an_older_snapshot() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int)");
    for level in LEVELS {
        let [mut holder, mut worker, mut next] = [cluster.client(), cluster.client(), cluster.client()];
        let token = acquire(&mut holder, "'a', ttl => '1 hour'").token;
        begin(&mut worker, level);
        execute(&mut holder, &format!("SELECT lease_renew('a', {token})"));
        end(&mut holder, "a");
        let taken = take_if_free(&mut next, "a").expect("its time is over");
        expect_error(&mut worker, &format!("SELECT lease_fence('a', {token})"), "55000");
        execute(&mut worker, "ROLLBACK");

        // And a fence under a token that the snapshot is too old for.
        begin(&mut worker, level);
        end(&mut holder, "a");
        let newer = take_if_free(&mut next, "a").expect("its time is over");
        expect_error(&mut worker, &format!("SELECT lease_fence('a', {newer})"), "40001");
        execute(&mut worker, "ROLLBACK");
        begin(&mut worker, level);
        execute(&mut worker, &format!("SELECT lease_fence('a', {newer}); COMMIT"));
        assert!(newer > taken, "{newer} after {taken}");
        execute(&mut next, "DELETE FROM idgen.lease");
    }
}

/// What is released or revoked is fenced no more, also where the snapshot still shows its holder.
#[test]
fn a_fence_goes_by_what_is_there_now_smoke() {
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
