//! A grant is a transaction of its own: what runs in a larger one is refused, and grants of other pools do not matter.

use idgen_testkit::grants::epoch_us;
use idgen_testkit::sql::{execute, expect_error, value};

use super::{at, builder};
use crate::try_acquire;

/// A function could pass id times on, and then fail.
#[test]
fn grant_inside_of_a_function_is_refused() {
    let cluster = builder().start_with_extension();
    cluster.execute(
        "SELECT lease_define('p', 4, '10 s');
         CREATE FUNCTION in_plpgsql() RETURNS int LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT worker_id FROM worker_acquire('p')); END $$;
         CREATE FUNCTION in_sql() RETURNS int LANGUAGE sql AS $$ SELECT 1; SELECT worker_id FROM worker_acquire('p') $$;
         CREATE PROCEDURE in_loop() LANGUAGE plpgsql AS $$
         DECLARE
             r record;
         BEGIN
             FOR r IN SELECT * FROM worker_acquire('p') LOOP END LOOP;
             ROLLBACK;
         END $$;
         CREATE PROCEDURE of_argument(id int) LANGUAGE plpgsql AS $$ BEGIN ROLLBACK; END $$;
         CREATE PROCEDURE in_procedure() LANGUAGE plpgsql AS $$ BEGIN PERFORM worker_acquire('p'); COMMIT; END $$;",
    );
    let mut client = cluster.client();
    for sql in [
        "DO $$ BEGIN PERFORM worker_acquire('p'); RAISE 'the id times are known'; END $$",
        "SELECT in_plpgsql()",
        "SELECT in_sql()",
        "CALL in_procedure()",
        "CALL in_loop()",
        "CALL of_argument((worker_acquire('p')).worker_id)",
    ] {
        expect_error(&mut client, sql, "25001");
    }
    let grant = try_acquire(&mut client, "'p', ttl => '10 s'").expect("a grant");
    let renew = format!("worker_renew('p', {}, {})", grant.token, at(grant.until_us));
    expect_error(&mut client, &format!("DO $$ BEGIN PERFORM {renew}; END $$"), "25001");
    execute(&mut client, &format!("SELECT {renew}"));
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.workers WHERE state = 'held'"), 1);
}

/// Rows of other pools share pages of indexes, on which PostgreSQL's search for dependencies between transactions works.
#[test]
fn grants_of_other_pools_fail_no_serializable_transaction() {
    const SESSIONS: usize = 6;
    const ROUNDS: usize = 50;
    let cluster = builder().conf("default_transaction_isolation", "serializable").start_with_extension();
    cluster
        .execute(&format!("SELECT lease_define('p' || n, {ROUNDS}, '10 s') FROM generate_series(1, {SESSIONS}) AS n"));
    std::thread::scope(|scope| {
        for session in 1..=SESSIONS {
            let mut client = cluster.client();
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let grant = try_acquire(&mut client, &format!("'p{session}', ttl => '10 s'")).expect("a grant");
                    let until = epoch_us("not_after");
                    let last = at(grant.until_us);
                    let renew = format!("SELECT {until} FROM worker_renew('p{session}', {}, {last})", grant.token);
                    assert!(value::<i64>(&mut client, &renew) >= grant.until_us);
                }
            });
        }
    });
}
