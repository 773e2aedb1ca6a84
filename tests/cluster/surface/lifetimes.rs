//! What a function holds for the transaction lasts as long as the rows that it has written, also if a cursor runs it:
//! PostgreSQL gives locks of a cursor's query to the cursor, which fails and closes at other times than the savepoint
//! around it.

use idgen_testkit::sql::{execute, expect_error};
use postgres::Client;

use crate::start;

struct Held {
    /// The query that takes it, one value.
    take: &'static str,
    /// True in another session while it is free.
    is_free: &'static str,
}

const HELD: [Held; 11] = [
    Held { take: "SELECT lock_acquire_xact('n')::text", is_free: "SELECT lock_try_acquire_xact('n')" },
    Held { take: "SELECT lock_try_acquire_xact('n')::text", is_free: "SELECT lock_try_acquire_xact('n')" },
    Held {
        take: "SELECT lock_try_acquire_xact('n', shared => true)::text",
        is_free: "SELECT lock_try_acquire_xact('n')",
    },
    Held { take: "SELECT lock_acquire_many_xact('{m,n}')::text", is_free: "SELECT lock_try_acquire_xact('n')" },
    Held {
        take: "SELECT token::text FROM lease_acquire('n')",
        is_free: "SELECT count(*) > 0 FROM lease_try_acquire('n')",
    },
    Held {
        take: "SELECT token::text FROM lease_try_acquire('n')",
        is_free: "SELECT count(*) > 0 FROM lease_try_acquire('n', shared => true)",
    },
    Held {
        take: "SELECT token::text FROM lease_try_acquire('n', shared => true)",
        is_free: "SELECT count(*) > 0 FROM lease_try_acquire('n')",
    },
    // The lock of the session that the term is bound to.
    Held {
        take: "SELECT token::text FROM lease_try_acquire('n', bind_session => true)",
        is_free: "SELECT count(*) = 0 FROM pg_locks WHERE objsubid = 27763 AND pid <> pg_backend_pid()",
    },
    // One of its two slots is taken.
    Held {
        take: "SELECT token::text FROM lease_try_acquire('two')",
        is_free: "SELECT count(*) = 2 FROM generate_series(1, 2), LATERAL lease_try_acquire('two', '300 ms')",
    },
    Held { take: "SELECT lease_define('d')::text", is_free: "SELECT count(*) > 0 FROM lease_try_acquire('d')" },
    // The lock that keeps DROP EXTENSION out.
    Held {
        take: "SELECT token::text FROM lease_try_acquire('n')",
        is_free: "SELECT count(*) = 0 FROM pg_locks WHERE relation = 'idgen.lease'::regclass AND pid <> pg_backend_pid()",
    },
];

/// Declares a cursor whose first row takes it and whose second row fails.
fn declare(client: &mut Client, held: &Held) {
    let query = format!("CASE n WHEN 1 THEN ({}) ELSE (1 / (n - 2))::text END", held.take);
    execute(client, &format!("BEGIN; DECLARE c CURSOR FOR SELECT {query} FROM generate_series(1, 2) AS n"));
}

/// Another session tries it, and keeps nothing.
fn is_free(other: &mut Client, held: &Held) -> bool {
    execute(other, "BEGIN");
    let is_free = other.query_one(held.is_free, &[]).is_ok_and(|row| row.get(0));
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
    for held in &HELD {
        let take = held.take;
        let mut expect_free = |free: bool, when: &str| {
            if is_free(&mut other, held) != free {
                wrong.push(format!("{take}: {} {when}", if free { "not free" } else { "free" }));
            }
        };
        expect_free(true, "before");
        for (after, sql) in [
            ("when the cursor has failed under a later savepoint", None),
            ("when the cursor was closed", Some("CLOSE c")),
            ("when a later savepoint was rolled back", Some("SAVEPOINT s; ROLLBACK TO s")),
        ] {
            declare(&mut client, held);
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

        declare(&mut client, held);
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
