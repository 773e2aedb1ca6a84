//! Tags created or changed in an uncommitted transaction.

use idgen_testkit::Cluster;
use idgen_testkit::parallel::with_workers;
use idgen_testkit::segment::{create, draw, next};
use idgen_testkit::sql::{column, execute, expect_error, ids, value};
use postgres::Client;

use crate::max_id;

fn rows(client: &mut Client) -> i64 {
    value(client, "SELECT count(*) FROM idgen.segment")
}

fn rings(client: &mut Client) -> i64 {
    value(client, "SELECT count(*) FROM idgen.stat_get_segment()")
}

#[test]
fn uncommitted_tag_works_only_in_its_transaction() {
    let (_cluster, [mut client, mut other]) = Cluster::builder().start_with_clients();
    execute(&mut client, "BEGIN");
    create(&mut client, "t", ", step => 10");
    assert_eq!([next(&mut client, "t"), next(&mut client, "t")], [1, 2]);
    expect_error(&mut other, &draw("t"), "42704");
    execute(&mut client, "ROLLBACK");
    expect_error(&mut client, &draw("t"), "42704");
    assert_eq!((rows(&mut other), rings(&mut other)), (0, 0));

    // A bulk load far beyond the step, in the transaction that creates table and tag.
    execute(
        &mut client,
        "BEGIN;
         SELECT segment_create('t', step => 10);
         CREATE TABLE loaded (id bigint PRIMARY KEY DEFAULT segment_next('t'), n int);
         INSERT INTO loaded (n) SELECT generate_series(1, 25000)",
    );
    assert_eq!(ids(&mut client, "SELECT segment_next_many('t', 1000)"), (25001..=26000).collect::<Vec<_>>());
    let reserved = client.query_one("SELECT first_id, last_id FROM segment_reserve('t', 50)", &[]).unwrap();
    assert_eq!((reserved.get::<_, i64>(0), reserved.get::<_, i64>(1)), (26001, 26050));
    execute(&mut client, "COMMIT");
    assert_eq!(column::<i64>(&mut other, "SELECT max(id) FROM loaded"), [25000]);
    assert_eq!(next(&mut other, "t"), 26051);
    assert_eq!(next(&mut client, "t"), 26052);
}

/// The commit notes the values in the row.
#[test]
fn transaction_commits_whatever_it_did_after_it_has_drawn() {
    let (_cluster, [mut client]) = Cluster::builder().start_with_clients();
    for level in ["READ COMMITTED", "SERIALIZABLE"] {
        execute(&mut client, &format!("BEGIN ISOLATION LEVEL {level}; SELECT segment_create('{level}')"));
        assert_eq!([next(&mut client, level), next(&mut client, level)], [1, 2]);
        execute(&mut client, "SET TRANSACTION READ ONLY; COMMIT AND CHAIN");
        expect_error(&mut client, "CREATE TABLE t ()", "25006");
        execute(&mut client, "ROLLBACK");
        assert_eq!(max_id(&mut client, level), 2);
    }
    execute(&mut client, "BEGIN; SELECT segment_create('dropped')");
    assert_eq!(next(&mut client, "dropped"), 1);
    execute(&mut client, "DROP EXTENSION idgen; COMMIT; CREATE EXTENSION idgen");
    assert_eq!(rows(&mut client), 0);
}

#[test]
fn uncommitted_tag_follows_savepoints() {
    let (_cluster, [mut client, mut other]) = Cluster::builder().start_with_clients();
    // Values that were seen stay used.
    execute(&mut client, "BEGIN; SELECT segment_create('t'); SAVEPOINT s");
    assert_eq!([next(&mut client, "t"), next(&mut client, "t")], [1, 2]);
    execute(&mut client, "ROLLBACK TO s");
    assert_eq!(next(&mut client, "t"), 3);
    execute(&mut client, "SELECT segment_alter('t', max_id => 100); RELEASE s");
    assert_eq!(next(&mut client, "t"), 101);

    // The rollback to a savepoint removes a tag.
    execute(&mut client, "SAVEPOINT s; SELECT segment_create('gone', 500)");
    assert_eq!(next(&mut client, "gone"), 500);
    execute(&mut client, "ROLLBACK TO s; SAVEPOINT s");
    expect_error(&mut client, &draw("gone"), "42704");
    execute(&mut client, "ROLLBACK TO s; SELECT segment_create('gone', 700)");
    assert_eq!(next(&mut client, "gone"), 700);
    execute(&mut client, "SAVEPOINT s; SELECT segment_drop('t'), segment_create('t', 9000)");
    assert_eq!(next(&mut client, "t"), 9000);
    execute(&mut client, "ROLLBACK TO s");
    assert_eq!(next(&mut client, "t"), 102);
    execute(&mut client, "COMMIT");
    assert_eq!([next(&mut other, "t"), next(&mut client, "t")], [103, 104]);
    assert_eq!([next(&mut other, "gone"), next(&mut client, "gone")], [701, 702]);

    // A PL/pgSQL block that catches an error is a subtransaction too.
    execute(
        &mut client,
        "BEGIN; DO $$ BEGIN PERFORM segment_create('plain'); PERFORM segment_next('plain'); RAISE 'no';
         EXCEPTION WHEN raise_exception THEN NULL; END $$",
    );
    expect_error(&mut client, &draw("plain"), "42704");
    execute(&mut client, "ROLLBACK");
}

#[test]
fn changed_tag_cannot_be_drawn_from_before_the_commit() {
    let (_cluster, [mut client, mut other]) = Cluster::builder().start_with_clients();
    create(&mut client, "t", "");
    assert_eq!([next(&mut client, "t"), next(&mut other, "t")], [1, 2]);
    execute(&mut client, "BEGIN; SELECT segment_alter('t', max_id => 5000); SAVEPOINT s");
    expect_error(&mut client, &draw("t"), "55000");
    execute(&mut client, "ROLLBACK TO s");
    // Other sessions use the old row until the commit.
    assert_eq!(next(&mut other, "t"), 3);
    execute(&mut client, "COMMIT");
    assert_eq!([next(&mut client, "t"), next(&mut other, "t")], [5001, 5002]);
    execute(&mut client, "BEGIN; SAVEPOINT s; SELECT segment_alter('t', max_id => 9000); ROLLBACK TO s");
    assert_eq!(next(&mut client, "t"), 5003);
    // The row is locked until the commit, so the ring cannot be refilled.
    execute(&mut client, "SAVEPOINT s; SELECT segment_grant('t', 'public'); SAVEPOINT granted");
    expect_error(&mut client, &draw("t"), "55000");
    execute(&mut client, "ROLLBACK TO s");
    assert_eq!(next(&mut client, "t"), 5004);
    execute(&mut client, "SELECT segment_drop('t'); SAVEPOINT s");
    expect_error(&mut client, &draw("t"), "42704");
    execute(&mut client, "ROLLBACK TO s");
    assert_eq!(next(&mut other, "t"), 5005);
    execute(&mut client, "ROLLBACK");
    assert_eq!(next(&mut client, "t"), 5006);
}

#[test]
fn tag_in_a_prepared_transaction_takes_effect_at_its_commit_smoke() {
    let (cluster, [mut client, mut other]) =
        Cluster::builder().conf("max_prepared_transactions", "5").start_with_clients();
    for (end, code) in [("ROLLBACK PREPARED 'p'", Some("42704")), ("COMMIT PREPARED 'p'", None)] {
        execute(&mut client, "BEGIN; SELECT segment_create('t')");
        assert_eq!([next(&mut client, "t"), next(&mut client, "t")], [1, 2]);
        execute(&mut client, "PREPARE TRANSACTION 'p'");
        expect_error(&mut client, &draw("t"), "42704");
        expect_error(&mut other, &draw("t"), "42704");
        execute(&mut other, end);
        match code {
            Some(code) => [&mut client, &mut other].map(|session| drop(expect_error(session, &draw("t"), code))),
            None => [(&mut other, 3), (&mut client, 4)].map(|(session, id)| assert_eq!(next(session, "t"), id)),
        };
    }

    // A change of a tag that others draw from takes effect at its commit, also over a restart.
    execute(&mut client, "BEGIN; SELECT segment_alter('t', max_id => 70000); PREPARE TRANSACTION 'p'");
    assert_eq!([next(&mut client, "t"), next(&mut other, "t")], [5, 6]);
    execute(&mut other, "COMMIT PREPARED 'p'");
    assert_eq!([next(&mut client, "t"), next(&mut other, "t")], [70001, 70002]);
    execute(&mut client, "BEGIN; SELECT segment_alter('t', max_id => 90000); PREPARE TRANSACTION 'p'");
    cluster.restart();
    let (mut client, mut other) = (cluster.client(), cluster.client());
    execute(&mut client, "SET idgen.segment_timeout = '300ms'");
    // Shared memory has no values, and the row is locked.
    expect_error(&mut client, &draw("t"), "55P03");
    execute(&mut other, "COMMIT PREPARED 'p'");
    assert_eq!([next(&mut client, "t"), next(&mut other, "t")], [90001, 90002]);
}

const TEN: &str = "FROM big WHERE n % 1000 = 0";

fn assert_parallel(client: &mut Client, sql: &str) {
    let plan: Vec<String> = column(client, &format!("EXPLAIN {sql}"));
    assert!(plan.iter().any(|line| line.contains("Gather")), "{plan:?}");
}

#[test]
fn draws_run_in_parallel_plans_smoke() {
    let (cluster, [mut client]) = Cluster::builder().start_with_clients();
    with_workers(&mut client, "big", 10_000);
    // The first draw from a tag in a parallel plan, in a transaction that has written.
    create(&mut client, "t", "");
    let made = format!("CREATE TABLE made AS SELECT segment_next('t') AS id {TEN}");
    assert_parallel(&mut client, &made);
    execute(&mut client, &made);
    assert_eq!(ids(&mut client, "SELECT id FROM made ORDER BY id"), (1..=10).collect::<Vec<_>>());

    execute(&mut client, "BEGIN; SELECT segment_create('p')");
    let drawn = format!("SELECT segment_next('p') {TEN}");
    assert_parallel(&mut client, &drawn);
    assert_eq!(ids(&mut client, &drawn), (1..=10).collect::<Vec<_>>());
    let made = format!("CREATE TABLE also AS SELECT segment_next('p') AS id {TEN}");
    assert_parallel(&mut client, &made);
    execute(&mut client, &made);
    execute(&mut client, "COMMIT");
    assert_eq!(next(&mut cluster.client(), "p"), 21);
}

/// A function that is wrongly declared PARALLEL SAFE.
#[test]
fn parallel_worker_cannot_draw_from_an_uncommitted_tag() {
    let (_cluster, [mut client]) = Cluster::builder().start_with_clients();
    with_workers(&mut client, "big", 10_000);
    execute(
        &mut client,
        "CREATE FUNCTION wrong(tag text) RETURNS bigint PARALLEL SAFE LANGUAGE plpgsql AS 'BEGIN RETURN segment_next(tag); END'",
    );
    create(&mut client, "t", "");
    // Draws from shared memory work.
    let mut drawn = ids(&mut client, &format!("SELECT wrong('t') {TEN}"));
    drawn.sort_unstable();
    assert_eq!(drawn, (1..=10).collect::<Vec<_>>());
    execute(&mut client, "BEGIN; SELECT segment_create('p')");
    let error = expect_error(&mut client, &format!("SELECT wrong('p') {TEN}"), "25000");
    assert!(error.message().contains("parallel worker"), "{error:?}");
    execute(&mut client, "ROLLBACK");
}

#[test]
fn failed_commit_of_a_new_tag_leaves_nothing() {
    let (_cluster, [mut client, mut other]) = Cluster::builder().start_with_clients();
    create(&mut client, "t", "");
    assert_eq!([next(&mut client, "t"), next(&mut other, "t")], [1, 2]);
    execute(
        &mut other,
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no' USING ERRCODE = '58030'; END $$;
         CREATE TRIGGER zz BEFORE UPDATE ON idgen.segment FOR EACH ROW WHEN (NEW.tag = 'p') EXECUTE FUNCTION fail()",
    );
    execute(&mut client, "BEGIN; SELECT segment_create('p')");
    assert_eq!(next(&mut client, "p"), 1);
    expect_error(&mut client, "COMMIT", "58030");
    expect_error(&mut client, &draw("p"), "42704");
    // A later change by the session is not taken for a refill.
    execute(&mut client, "SELECT segment_alter('t', max_id => 4000)");
    assert_eq!([next(&mut client, "t"), next(&mut other, "t")], [4001, 4002]);
    execute(&mut other, "DROP FUNCTION fail CASCADE");
    execute(&mut client, "BEGIN; SELECT segment_create('p')");
    assert_eq!(next(&mut client, "p"), 1);
    execute(&mut client, "COMMIT");
    assert_eq!(next(&mut other, "p"), 2);
}

#[test]
fn upper_bound_limits_an_uncommitted_tag() {
    let (cluster, [mut client]) = Cluster::builder().start_with_clients();
    execute(&mut client, "BEGIN; SELECT segment_create('t', upper_bound => 5); SAVEPOINT s");
    expect_error(&mut client, "SELECT segment_reserve('t', 6)", "2200H");
    execute(&mut client, "ROLLBACK TO s");
    // The failed block used no value.
    assert_eq!(next(&mut client, "t"), 1);
    expect_error(&mut client, "SELECT segment_next_many('t', 5)", "2200H");
    execute(&mut client, "ROLLBACK TO s; COMMIT");
    expect_error(&mut cluster.client(), &draw("t"), "2200H");
    assert_eq!(max_id(&mut client, "t"), 5);
}

/// Otherwise the row would contradict its draws, and the commit would fail.
#[test]
fn change_of_an_uncommitted_tag_counts_its_draws() {
    let (cluster, [mut client]) = Cluster::builder().conf("idgen.coordinator", "host=/nowhere").start_with_clients();
    execute(&mut client, "BEGIN; SELECT segment_create('t'); SELECT segment_next_many('t', 100); SAVEPOINT s");
    for setting in ["upper_bound => 99", "max_id => 99"] {
        expect_error(&mut client, &format!("SELECT segment_alter('t', {setting})"), "22023");
        execute(&mut client, "ROLLBACK TO s");
    }
    execute(&mut client, "SELECT segment_alter('t', upper_bound => 100)");
    expect_error(&mut client, &draw("t"), "2200H");
    // What the savepoint undoes is the definition only.
    execute(&mut client, "ROLLBACK TO s");
    assert_eq!(next(&mut client, "t"), 101);
    execute(&mut client, "SELECT segment_attach('t'), segment_detach('t'); SAVEPOINT s");
    expect_error(&mut client, &draw("t"), "55000");
    execute(&mut client, "ROLLBACK TO s; COMMIT");
    assert_eq!(max_id(&mut client, "t"), 101);
    assert_eq!(value::<i64>(&mut cluster.client(), "SELECT received FROM idgen.segment"), 101);
}

/// The draws are then above the bound that the row has. The definition can still be mended before the commit.
#[test]
fn bound_that_a_savepoint_has_undone_can_be_raised_again() {
    let (_cluster, [mut client]) = Cluster::builder().start_with_clients();
    execute(&mut client, "BEGIN; SELECT segment_create('t', upper_bound => 100), segment_create('other'); SAVEPOINT s");
    let raise = "SELECT segment_alter('t', upper_bound => 1000)";
    execute(&mut client, &format!("{raise}; SELECT segment_next_many('t', 500); ROLLBACK TO s"));
    expect_error(&mut client, "SELECT segment_alter('t', upper_bound => 499)", "22023");
    execute(&mut client, "ROLLBACK TO s; SELECT segment_alter('other', step => 2000)");
    execute(&mut client, &format!("{raise}; COMMIT"));
    assert_eq!([max_id(&mut client, "t"), next(&mut client, "t")], [500, 501]);
}
