//! A grant is a transaction of its own: what runs in a larger one or behind another statement of a pipeline is refused, and
//! grants of other pools do not matter. Of two processes with one token, as when a virtual machine is resumed twice, one renews.

use idgen_testkit::grants::epoch_us;
use idgen_testkit::sql::{backend_pid, execute, expect_error, value, wait_for_event};
use idgen_testkit::wire::Session;

use super::{acquire, at, builder, renewal, with_pool};
use crate::try_acquire;

/// A function could pass id times on, and then fail.
#[test]
fn grant_inside_of_a_function_is_refused() {
    let cluster = builder().start_with_extension();
    cluster.execute(
        "SELECT worker_pool_define('p', count => 4, ttl => '10 s');
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
    cluster.execute(&format!(
        "SELECT worker_pool_define('p' || n, count => {ROUNDS}, ttl => '10 s') FROM generate_series(1, {SESSIONS}) AS n"
    ));
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

/// Two statements each acquire if they see that nobody has. Both have looked before one of them writes.
#[test]
fn grant_in_a_statement_that_reads_tables_stays_serializable() {
    let cluster = builder().conf("default_transaction_isolation", "serializable").start_with_extension();
    cluster.execute(
        "SELECT worker_pool_define('p', count => 4, ttl => '10 s');
         CREATE TABLE registered (worker_id int);
         CREATE FUNCTION is_first() RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
             RETURN NOT EXISTS (SELECT FROM registered);
         END $$",
    );
    for condition in ["is_first()", "NOT EXISTS (SELECT FROM registered)"] {
        cluster.execute("TRUNCATE registered");
        let mut gate = cluster.client();
        execute(&mut gate, "SELECT pg_advisory_lock(1)");
        let register = format!(
            "WITH seen AS MATERIALIZED (SELECT {condition} AS is_first),
                  gate AS MATERIALIZED (SELECT pg_advisory_xact_lock_shared(1) FROM seen WHERE is_first)
             INSERT INTO registered SELECT (SELECT worker_id FROM worker_acquire('p', ttl => '10 s')) FROM gate"
        );
        let registered: Vec<bool> = std::thread::scope(|scope| {
            let sessions = [(); 2].map(|()| {
                let (mut client, register) = (cluster.client(), &register);
                let pid = backend_pid(&mut client);
                let session = scope.spawn(move || client.execute(register, &[]).is_ok());
                wait_for_event(&cluster, pid, "advisory");
                session
            });
            execute(&mut gate, "SELECT pg_advisory_unlock(1)");
            sessions.into_iter().map(|session| session.join().expect("the session ends")).collect()
        });
        assert_eq!(registered.iter().filter(|is_registered| **is_registered).count(), 1, "{condition}");
    }
}

/// The grant is committed before its result is sent, so that no later statement can roll it back.
#[test]
fn rectangle_granted_in_a_pipeline_survives_a_later_error() {
    let cluster = with_pool(builder(), 4);
    let mut session = Session::open(&cluster);
    session.execute_before_an_error("SELECT worker_acquire('p', 'pipeline', '10 s')");
    let held = "SELECT count(*) = 1 FROM idgen.workers WHERE owner = 'pipeline' AND state = 'held'";
    assert!(value::<bool>(&mut cluster.client(), held), "a rollback took back a rectangle that the client knows");
}

/// After another statement, the call runs in the transaction of that one.
#[test]
fn pipeline_is_granted_nothing_after_another_statement() {
    let cluster = with_pool(builder(), 4);
    let mut session = Session::open(&cluster);
    session.execute_without_sync("SELECT 1");
    assert_eq!(session.read_to(b'C').0, b'C');
    session.execute_without_sync("SELECT worker_acquire('p', 'pipeline', '10 s')");
    let (kind, error) = session.read_to(b'C');
    assert!(kind == b'E' && error.contains("25001"), "{error}");
}

#[test]
fn second_process_with_the_same_token_is_refused_at_its_renewal() {
    let cluster = with_pool(builder(), 4);
    let (mut client, mut other) = (cluster.client(), cluster.client());
    let mut one = acquire(&mut client, "clock_timestamp()");
    let twin = one.clone();
    one.until_us = value(&mut client, &renewal(&one, "clock_timestamp()"));
    let error = expect_error(&mut other, &renewal(&twin, "clock_timestamp()"), "55000");
    assert!(error.message().contains("was renewed by another holder of its token"), "{}", error.message());
    assert!(error.detail().is_some_and(|detail| detail.contains("Its not_after is ")));
    // The refused process keeps its rectangle, and the other one continues after it.
    assert!(one.until_us > twin.until_us);
    assert!(value::<i64>(&mut client, &renewal(&one, "clock_timestamp()")) > one.until_us);
}

/// The second renewal waits for the first one and is then refused.
#[test]
fn concurrent_renewals_with_one_token_succeed_once() {
    let cluster = with_pool(builder(), 4);
    let mut grant = acquire(&mut cluster.client(), "clock_timestamp()");
    // Each moves the end by 10 s, which is less than the maximum lead.
    for _ in 0..5 {
        let (mut client, mut other) = (cluster.client(), cluster.client());
        let sql = renewal(&grant, &super::at(grant.until_us));
        let answers = std::thread::scope(|scope| {
            let one = scope.spawn(|| client.query_one(&sql, &[]));
            let two = scope.spawn(|| other.query_one(&sql, &[]));
            [one.join().unwrap(), two.join().unwrap()]
        });
        let (granted, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        let codes: Vec<_> = refused.iter().filter_map(|error| error.as_ref().err()?.code()).collect();
        assert_eq!(codes.iter().map(|code| code.code()).collect::<Vec<_>>(), ["55000"], "{refused:?}");
        let renewed: i64 = granted[0].as_ref().expect("partitioned").get(0);
        assert_eq!(renewed, grant.until_us + 10_000_000);
        grant.until_us = renewed;
    }
}
