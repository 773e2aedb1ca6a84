//! The fence of `sql/fence.sql`, in a database without idgen: what it lets pass, and what it refuses.

use idgen_testkit::script::{play, play_each};
use idgen_testkit::sql::{PATIENCE, execute, expect_error, value};
use idgen_testkit::{Cluster, dump, run};
use postgres::Client;

use crate::read;

/// A server without idgen, with the fence and a counter that it protects.
pub fn fenced_server() -> Cluster {
    let cluster = Cluster::builder()
        .preload(false)
        .conf("fsync", "off")
        .conf("wal_level", "logical")
        .conf("max_prepared_transactions", "2")
        .start();
    install(&mut cluster.client());
    cluster
}

fn install(client: &mut Client) {
    execute(client, &read("sql/fence.sql"));
    execute(client, "CREATE TABLE counter (n bigint PRIMARY KEY); INSERT INTO counter VALUES (0)");
}

#[test]
fn transaction_waits_for_the_one_before_and_a_lower_token_is_refused() {
    play(
        &fenced_server(),
        "old: BEGIN; SELECT fence.pass('job', 7)
        new waits for transactionid: BEGIN; SELECT fence.pass('job', 8)
        old: UPDATE counter SET n = n + 1; COMMIT
        new ends
        new: SELECT n FROM counter -> 1
        -- The row exists now.
        old waits for transactionid: SELECT fence.pass('job', 7)
        new: UPDATE counter SET n = n + 1; COMMIT
        old ends -> error 55000 Token 8 was seen
        old: SELECT fence.pass('job', 7) -> error 55000 token 7 of \"job\" is stale
        new: BEGIN; SELECT fence.pass('job', 8), fence.pass('job', 8), fence.pass('job', 9)
        same waits for transactionid: SELECT fence.pass('job', 9)
        other: SELECT fence.pass('another job', 1)
        new: COMMIT
        same ends
        -- A token of a transaction that rolls back was not seen.
        new: BEGIN; SELECT fence.pass('job', 10)
        same waits for transactionid: SELECT fence.pass('job', 9)
        new: ROLLBACK
        same ends
        -- The one that waits can limit its wait.
        new: BEGIN; SELECT fence.pass('job', 10)
        same: SET lock_timeout = '10ms'; SELECT fence.pass('job', 9) -> error 55P03
        new: COMMIT
        same: SELECT fence.pass('job', 9) -> error 55000",
    );
}

#[test]
fn older_snapshot_fails_once_another_transaction_has_passed() {
    let script = "
        old: SELECT fence.pass('job', 1)
        new: BEGIN ISOLATION LEVEL LEVEL; SELECT n FROM counter -> 0
        -- The token is the same as before: the row must change all the same.
        old: BEGIN; SELECT fence.pass('job', 1); UPDATE counter SET n = n + 1; COMMIT
        new: SELECT fence.pass('job', 2) -> error 40001
        new: ROLLBACK
        new: BEGIN ISOLATION LEVEL LEVEL; SELECT n FROM counter -> 1
        old: BEGIN; SELECT fence.pass('first', 1); UPDATE counter SET n = n + 1; COMMIT
        new: SELECT fence.pass('first', 2) -> error 40001
        new: ROLLBACK
        new: BEGIN ISOLATION LEVEL LEVEL; SELECT fence.pass('job', 2)
        new: UPDATE counter SET n = n + 1; COMMIT
        old: BEGIN ISOLATION LEVEL LEVEL; SELECT fence.pass('job', 1) -> error 55000
        old: ROLLBACK
        -- It waits with its snapshot, and then is too old.
        new: BEGIN; SELECT fence.pass('job', 2); UPDATE counter SET n = n + 1
        late waits for transactionid: BEGIN ISOLATION LEVEL LEVEL; SELECT fence.pass('job', 3)
        new: COMMIT
        late ends -> error 40001
        late: ROLLBACK
        late: UPDATE counter SET n = 0; DELETE FROM fence.highest";
    play_each(&fenced_server(), script, ["LEVEL LEVEL"], &[["LEVEL REPEATABLE READ"], ["LEVEL SERIALIZABLE"]]);
}

#[test]
fn fence_survives_a_savepoint_after_it_and_is_refused_in_a_subtransaction() {
    play(
        &fenced_server(),
        "holder: BEGIN; SELECT fence.pass('job', 1); SAVEPOINT s; UPDATE counter SET n = n + 1; ROLLBACK TO s
        next waits for transactionid: SELECT fence.pass('job', 2)
        holder: COMMIT
        next ends
        holder: BEGIN; SAVEPOINT s; SELECT fence.pass('job', 3) -> error 25001 before SAVEPOINT
        holder: ROLLBACK TO s; RELEASE s; SELECT fence.pass('job', 3); COMMIT
        holder: DO $$ BEGIN
            PERFORM fence.pass('job', 4);
            EXCEPTION WHEN division_by_zero THEN NULL;
            END $$ -> error 25001
        holder: DO $$ BEGIN PERFORM fence.pass('job', 4); END $$
        holder: SELECT name, token FROM fence.highest -> job|4",
    );
}

#[test]
fn prepared_transaction_keeps_the_fence_over_a_crash() {
    play(
        &fenced_server(),
        "holder: BEGIN; SELECT fence.pass('job', 1); UPDATE counter SET n = n + 1; PREPARE TRANSACTION 'p'
        server: crashes
        next waits for transactionid: BEGIN; SELECT fence.pass('job', 2)
        holder: COMMIT PREPARED 'p'
        next ends
        next: SELECT n FROM counter -> 1
        next: COMMIT
        holder: BEGIN; SELECT fence.pass('job', 3); PREPARE TRANSACTION 'q'
        next waits for transactionid: SELECT fence.pass('job', 2)
        holder: ROLLBACK PREPARED 'q'
        next ends",
    );
}

#[test]
fn wrong_names_and_tokens_are_refused() {
    let cluster = fenced_server();
    let mut client = cluster.client();
    for (arguments, code) in [
        ("NULL, 1", "22004"),
        ("'job', NULL", "22004"),
        ("'', 1", "22023"),
        ("repeat('x', 256), 1", "22023"),
        ("repeat('é', 128), 1", "22023"),
        ("'job', 0", "22023"),
        ("'job', -1", "22023"),
        ("'job', -9223372036854775808", "22023"),
    ] {
        expect_error(&mut client, &format!("SELECT fence.pass({arguments})"), code);
    }
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM fence.highest"), 0);
    execute(&mut client, "SELECT fence.pass(repeat('x', 255), 9223372036854775807)");
    expect_error(&mut client, "SELECT fence.pass(repeat('x', 255), 9223372036854775806)", "55000");
    expect_error(&mut client, "BEGIN READ ONLY; SELECT fence.pass('job', 1)", "25006");
}

#[test]
fn caller_needs_execute_alone_and_cannot_go_around_the_fence() {
    let cluster = fenced_server();
    cluster.execute(
        "CREATE ROLE app LOGIN; CREATE ROLE stranger LOGIN; GRANT EXECUTE ON FUNCTION fence.pass TO app;
         CREATE SCHEMA app AUTHORIZATION app",
    );
    play(
        &cluster,
        "app connects as app
        stranger connects as stranger
        app: SELECT fence.pass('job', 2)
        stranger: SELECT fence.pass('job', 3) -> error 42501
        app: SELECT * FROM fence.highest -> error 42501
        app: UPDATE fence.highest SET token = 1 -> error 42501
        app: DELETE FROM fence.highest -> error 42501
        app: TRUNCATE fence.highest -> error 42501
        app: SELECT FROM fence.highest FOR UPDATE -> error 42501
        app: CREATE TABLE fence.mine () -> error 42501
        -- Objects of the caller's do not stand in for those of the function.
        app: CREATE FUNCTION app.yes(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'
        app: CREATE OPERATOR app.<= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = app.yes)
        app: CREATE FUNCTION app.octet_length(text) RETURNS int LANGUAGE sql AS 'SELECT 1'
        app: CREATE TEMPORARY TABLE highest (name text PRIMARY KEY, token bigint)
        app: SET search_path = app, pg_temp, pg_catalog
        app: SELECT 2::bigint <= 1::bigint -> t
        app: SELECT fence.pass('job', 1) -> error 55000
        app: SELECT fence.pass('', 3) -> error 22023
        app: SELECT fence.pass('job', 2)",
    );
}

/// The subscriber has the tokens that belong to its rows, although the apply worker calls no function.
#[test]
fn subscriber_refuses_tokens_below_those_that_were_replicated() {
    let (origin, subscriber) = (fenced_server(), fenced_server());
    origin.execute("CREATE PUBLICATION p FOR TABLE counter, fence.highest");
    let with = "WITH (copy_data = false, connect = true)";
    subscriber.execute(&format!("CREATE SUBSCRIPTION s CONNECTION $${}$$ PUBLICATION p {with}", origin.conninfo()));
    let (mut on_origin, mut on_subscriber) = (origin.client(), subscriber.client());
    for token in [1, 2] {
        execute(
            &mut on_origin,
            &format!("BEGIN; SELECT fence.pass('job', {token}); UPDATE counter SET n = n + 1; COMMIT"),
        );
    }
    let is_there = "SELECT n = 2 FROM counter";
    subscriber.wait_for(PATIENCE, "the rows", || value(&mut on_subscriber, is_there));
    expect_error(&mut on_subscriber, "SELECT fence.pass('job', 1)", "55000");
    execute(&mut on_subscriber, "SELECT fence.pass('job', 2)");
    execute(&mut on_subscriber, "DROP SUBSCRIPTION s");
}

/// A restore forgets the last tokens, as the guide says, and its remedy refuses the old holder again.
#[test]
fn restored_dump_refuses_an_old_token_once_a_new_one_has_passed() {
    let cluster = fenced_server();
    let mut client = cluster.client();
    execute(&mut client, "SELECT fence.pass('job', 1)");
    let file = dump::file(&cluster, "dump.sql");
    run(cluster.program("pg_dump").args(["-d", "postgres", "-f"]).arg(&file));
    execute(&mut client, "SELECT fence.pass('job', 2)");
    cluster.execute("CREATE DATABASE restored");
    run(cluster.program("psql").args(["-Xq", "-v", "ON_ERROR_STOP=1", "-d", "restored", "-f"]).arg(&file));
    let mut restored = cluster.client_in("restored");
    execute(&mut restored, "SELECT fence.pass('job', 1); SELECT fence.pass('job', 3)");
    expect_error(&mut restored, "SELECT fence.pass('job', 2)", "55000");
}
