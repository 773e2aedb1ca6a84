//! What a function holds for the transaction lasts as long as the rows that it has written, also if a cursor runs it:
//! PostgreSQL gives locks of a cursor's query to the cursor, which fails and closes at other times than the savepoint
//! around it.

use idgen_testkit::sql::{execute, expect_error};
use postgres::Client;

use crate::start;

/// The query that takes it, one value; and a query that is true in another session while it is free.
type Held = (&'static str, &'static str);

const LOCK_IS_FREE: &str = "SELECT lock_try_acquire_xact('n')";
const LEASE_IS_FREE: &str = "SELECT count(*) > 0 FROM lease_try_acquire('n')";

const HELD: [Held; 11] = [
    ("SELECT lock_acquire_xact('n')::text", LOCK_IS_FREE),
    ("SELECT lock_try_acquire_xact('n')::text", LOCK_IS_FREE),
    ("SELECT lock_try_acquire_xact('n', shared => true)::text", LOCK_IS_FREE),
    ("SELECT lock_acquire_many_xact('{m,n}')::text", LOCK_IS_FREE),
    ("SELECT token::text FROM lease_acquire('n')", LEASE_IS_FREE),
    (
        "SELECT token::text FROM lease_try_acquire('n')",
        "SELECT count(*) > 0 FROM lease_try_acquire('n', shared => true)",
    ),
    ("SELECT token::text FROM lease_try_acquire('n', shared => true)", LEASE_IS_FREE),
    // The lock of the session that the term is bound to.
    (
        "SELECT token::text FROM lease_try_acquire('n', bind_session => true)",
        "SELECT count(*) = 0 FROM pg_locks WHERE objsubid = 27763 AND pid <> pg_backend_pid()",
    ),
    // One of its two slots is taken.
    (
        "SELECT token::text FROM lease_try_acquire('two')",
        "SELECT count(*) = 2 FROM generate_series(1, 2), LATERAL lease_try_acquire('two', '300 ms')",
    ),
    ("SELECT lease_define('d')::text", "SELECT count(*) > 0 FROM lease_try_acquire('d')"),
    // The lock that keeps DROP EXTENSION out.
    (
        "SELECT token::text FROM lease_try_acquire('n')",
        "SELECT count(*) = 0 FROM pg_locks WHERE relation = 'idgen.lease'::regclass AND pid <> pg_backend_pid()",
    ),
];

/// Declares a cursor whose first row takes it and whose second row fails.
fn declare(client: &mut Client, take: &str) {
    let query = format!("CASE n WHEN 1 THEN ({take}) ELSE (1 / (n - 2))::text END");
    execute(client, &format!("BEGIN; DECLARE c CURSOR FOR SELECT {query} FROM generate_series(1, 2) AS n"));
}

/// Another session tries it, and keeps nothing.
fn is_free(other: &mut Client, sql: &str) -> bool {
    execute(other, "BEGIN");
    let is_free = other.query_one(sql, &[]).is_ok_and(|row| row.get(0));
    execute(other, "ROLLBACK");
    is_free
}

#[test]
fn what_a_cursor_holds_follows_savepoints_smoke() {
    let cluster = start();
    cluster.execute("SELECT lease_define('two', 2)");
    let [mut client, mut other] = [cluster.client(), cluster.client()];
    execute(&mut other, "SET statement_timeout = '3 s'");
    let mut wrong = Vec::new();
    for (take, is_free_sql) in HELD {
        let mut expect_free = |free: bool, when: &str| {
            if is_free(&mut other, is_free_sql) != free {
                wrong.push(format!("{take}: {} {when}", if free { "not free" } else { "free" }));
            }
        };
        expect_free(true, "before");
        for (after, sql) in [
            ("when the cursor has failed under a later savepoint", None),
            ("when the cursor was closed", Some("CLOSE c")),
            ("when a later savepoint was rolled back", Some("SAVEPOINT s; ROLLBACK TO s")),
        ] {
            declare(&mut client, take);
            execute(&mut client, "FETCH c");
            match sql {
                Some(sql) => execute(&mut client, sql),
                None => {
                    execute(&mut client, "SAVEPOINT s");
                    expect_error(&mut client, "FETCH c", "22012");
                    execute(&mut client, "ROLLBACK TO s");
                }
            }
            expect_free(false, after);
            execute(&mut client, "ROLLBACK");
            expect_free(true, "after the end of the transaction");
        }

        declare(&mut client, take);
        execute(&mut client, "SAVEPOINT s; FETCH c; ROLLBACK TO s");
        expect_free(true, "after its savepoint was rolled back");
        execute(&mut client, "COMMIT");

        // A cursor variable, and an exception that is caught.
        execute(
            &mut client,
            &format!(
                "BEGIN; DO $$
                 DECLARE
                     c CURSOR FOR SELECT CASE n WHEN 1 THEN ({take}) ELSE (1 / (n - 2))::text END FROM generate_series(1, 2) AS n;
                     r text;
                 BEGIN
                     OPEN c;
                     FETCH c INTO r;
                     BEGIN
                         FETCH c INTO r;
                         RAISE 'the second row has not failed';
                     EXCEPTION WHEN division_by_zero THEN
                     END;
                 END $$"
            ),
        );
        expect_free(false, "after a caught exception in PL/pgSQL");
        execute(&mut client, "ROLLBACK");
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
