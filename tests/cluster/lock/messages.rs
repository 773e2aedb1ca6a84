//! What a session holds after a message of its client has failed: what it held before, however late the error came.

use idgen_testkit::sql::{PATIENCE, backend_pid, execute, value};
use postgres::Client;

use crate::{builder, locks_of};

/// A message that fails after its call has returned.
const FAILING: [&str; 9] = [
    "SELECT lock_acquire('a'), 1 / (n - 1) FROM generate_series(1, 1) AS n",
    "SELECT lock_try_acquire('a'), 1 / (n - 1) FROM generate_series(1, 1) AS n",
    "SELECT lock_try_acquire('a', shared => true), 1 / (n - 1) FROM generate_series(1, 1) AS n",
    "SELECT lock_acquire_many('{a,b,c}'), 1 / (n - 1) FROM generate_series(1, 1) AS n",
    "SELECT lock_try_acquire_many('{a,b,c}'), 1 / (n - 1) FROM generate_series(1, 1) AS n",
    // Several times, and each time it holds the lock again.
    "SELECT lock_acquire('a'), 1 / (n - 3) FROM generate_series(1, 3) AS n",
    "SELECT lock_release('held'), lock_acquire('held'), lock_acquire('held'), lock_release('held'), 1 / (n - 1) \
     FROM generate_series(1, 1) AS n, lock_acquire('held')",
    "DO $$ BEGIN
        BEGIN PERFORM lock_acquire('a'); RAISE 'caught'; EXCEPTION WHEN raise_exception THEN END;
        PERFORM 1 / 0;
     END $$",
    // A cancel.
    "SELECT lock_acquire('a'), pg_sleep(60)",
];

/// Only the commit fails.
const FAILING_COMMIT: &str = "INSERT INTO deferred SELECT 1 FROM lock_acquire('a')";

fn held(client: &mut Client) -> String {
    let held = "SELECT COALESCE(string_agg(name || ' ' || depth, ', ' ORDER BY name), '') FROM idgen.locks WHERE pid = pg_backend_pid()";
    value(client, held)
}

/// Fails by the simple protocol, or by the extended one.
fn fails(client: &mut Client, sql: &str, is_simple: bool) {
    let failed = if is_simple { client.simple_query(sql).is_err() } else { client.execute(sql, &[]).is_err() };
    assert!(failed, "{sql} has succeeded");
}

#[test]
fn message_that_fails_after_its_calls_has_acquired_nothing_smoke() {
    let cluster = builder().start_with_extension();
    cluster
        .execute("CREATE TABLE deferred (n int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO deferred VALUES (1)");
    let (mut client, mut observer) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    execute(&mut client, "SET statement_timeout = '300 ms'; SELECT lock_acquire('held')");
    for is_simple in [true, false] {
        for sql in FAILING {
            for (before, after) in [("", ""), ("BEGIN", "ROLLBACK"), ("BEGIN; SAVEPOINT s", "ROLLBACK TO s; COMMIT")] {
                let what = format!("{before}; {sql}; {after}");
                execute(&mut client, before);
                fails(&mut client, sql, is_simple);
                // The client has the error before the server has aborted.
                cluster.wait_for(PATIENCE, &what, || locks_of(&mut observer, pid) == 1);
                execute(&mut client, after);
                assert_eq!(held(&mut client), "held 1", "{what}");
            }
        }
        fails(&mut client, FAILING_COMMIT, is_simple);
        assert_eq!(held(&mut client), "held 1", "{FAILING_COMMIT}");
    }
    // One message with several statements.
    for sql in ["SELECT lock_acquire('a'); SELECT 1 / 0", "BEGIN; SELECT lock_acquire('a'); COMMIT; SELECT 1 / 0"] {
        fails(&mut client, sql, true);
        assert_eq!(held(&mut client), "held 1", "{sql}");
    }
}

/// A deferred trigger is part of the statement, although it runs with the commit: it catches an exception, or acquires a
/// lock before the commit fails.
#[test]
fn deferred_trigger_changes_nothing_but_by_an_error() {
    let cluster = builder().start_with_extension();
    cluster.execute(
        "CREATE TABLE catches (n int);
         CREATE FUNCTION catch() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             BEGIN PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN END;
             RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER c AFTER INSERT ON catches DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION catch();
         CREATE TABLE acquires (n int);
         CREATE FUNCTION acquire() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             PERFORM lock_acquire('b');
             PERFORM 1 / NEW.n;
             RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER c AFTER INSERT ON acquires DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION acquire();",
    );
    for is_simple in [true, false] {
        let mut client = cluster.client();
        let mut run = |sql: &str| {
            if is_simple { client.batch_execute(sql) } else { client.execute(sql, &[]).map(|_| ()) }
        };
        run("INSERT INTO catches SELECT 1 FROM lock_acquire('a')").expect("the trigger catches the exception");
        run("INSERT INTO acquires SELECT 1 FROM lock_acquire('c')").expect("the trigger acquires");
        run("INSERT INTO acquires SELECT 0 FROM lock_acquire('c')").expect_err("the trigger divides by zero");
        assert_eq!(held(&mut client), "a 1, b 1, c 1", "simple protocol: {is_simple}");
    }
}

/// As PostgreSQL's own: the end of the transaction does not matter to a lock of the session.
#[test]
fn lock_that_an_earlier_message_acquired_outlives_errors() {
    let cluster = builder().start_with_extension();
    for (acquire, end) in [
        ("SELECT lock_acquire('a')", ""),
        ("BEGIN; SELECT lock_acquire('a')", "ROLLBACK"),
        ("BEGIN; SAVEPOINT s; SELECT lock_acquire('a')", "ROLLBACK TO s; ROLLBACK"),
        (
            "BEGIN; DECLARE c CURSOR FOR SELECT lock_acquire('a'), 1 / (2 - n) FROM generate_series(1, 2) AS n; FETCH c",
            "ROLLBACK",
        ),
        ("DO $$ BEGIN PERFORM lock_acquire('a'); RAISE 'x'; EXCEPTION WHEN raise_exception THEN END $$", ""),
        ("SELECT lock_acquire('a'); ROLLBACK", ""),
    ] {
        for failing in FAILING {
            let mut client = cluster.client();
            execute(&mut client, "SET statement_timeout = '300 ms'");
            execute(&mut client, "SELECT lock_acquire('held')");
            execute(&mut client, acquire);
            let next = if failing.contains("pg_sleep") { "FETCH c" } else { failing };
            fails(&mut client, next, false);
            execute(&mut client, end);
            assert_eq!(held(&mut client), "a 1, held 1", "{acquire}; {failing}; {end}");
        }
    }
}
