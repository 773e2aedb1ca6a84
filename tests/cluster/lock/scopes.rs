//! The scope of locks: sessions, transactions, subtransactions, prepared transactions and databases.

use idgen_testkit::script::{play, play_each};
use idgen_testkit::sql::{backend_pid, column, execute, in_new_database, value};
use postgres::Client;

use crate::{builder, locks_of};

fn is_free(client: &mut Client, name: &str) -> bool {
    let free = value(client, &format!("SELECT lock_try_acquire('{name}')"));
    if free {
        execute(client, &format!("SELECT lock_release('{name}')"));
    }
    free
}

/// The rows of a process in `idgen.locks`.
fn shown(client: &mut Client, pid: i32) -> Vec<String> {
    let sql = "SELECT name || ' ' || mode || ' ' || scope || ' ' || depth FROM idgen.locks WHERE granted AND pid = ";
    column(client, &format!("{sql}{pid} ORDER BY name COLLATE \"C\", mode"))
}

#[test]
fn prepared_transaction_keeps_its_locks() {
    let cluster = builder().conf("max_prepared_transactions", "4").start_with_extension();
    let (mut client, mut other) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    execute(&mut client, "BEGIN; SELECT lock_acquire_many_xact('{p,q}'); PREPARE TRANSACTION 'two'");
    // Before the next statement of the session.
    assert_eq!(value::<i64>(&mut other, "SELECT count(*) FROM idgen.lock_get_holds()"), 0);
    assert_eq!(locks_of(&mut other, pid), 0);
    assert!(!is_free(&mut other, "p") && !is_free(&mut client, "q"));
    let ownerless = "SELECT concat_ws(' ', name, mode, scope, granted, coalesce(depth::text, '-'), \
                     coalesce(acquired_at::text, '-'), gid) FROM idgen.locks WHERE pid IS NULL ORDER BY name";
    let expected = ["p exclusive transaction t - - two", "q exclusive transaction t - - two"];
    assert_eq!(column::<String>(&mut other, ownerless), expected);

    // Also over a crash, which loses the names, and on a promoted standby. A session of the standby goes on there.
    cluster.kill9_postmaster();
    cluster.start_again();
    let standby = cluster.standby();
    let mut session = standby.client();
    execute(&mut session, "SELECT lock_acquire('s')");
    standby.promote();
    for server in [&cluster, &standby] {
        let (mut client, mut other) = (server.client(), server.client());
        let keys = "SELECT (key = lock_key('p')) || ' ' || coalesce(name, '?') || ' ' || gid FROM idgen.locks \
                    WHERE pid IS NULL ORDER BY 1";
        assert_eq!(column::<String>(&mut other, keys), ["false ? two", "true ? two"]);
        assert!(!is_free(&mut other, "p"));
        execute(&mut client, "COMMIT PREPARED 'two'");
        assert!(is_free(&mut other, "p") && is_free(&mut other, "q"));
    }
    assert!(!is_free(&mut standby.client(), "s"));
    assert!(value::<bool>(&mut session, "SELECT lock_release('s')"));
    play(
        &cluster,
        "-- PostgreSQL's rule for every advisory lock.
         client: BEGIN; SELECT lock_acquire('both'), lock_acquire_xact('both')
         client: PREPARE TRANSACTION 'both' -> error 0A000
         -- A call that waits first takes a session lock, and then turns it into a transaction lock.
         other: SELECT lock_acquire('w')
         client waits for advisory: BEGIN; SELECT lock_try_acquire_xact('w', '1 hour'); PREPARE TRANSACTION 'w'
         other: SELECT lock_release('w') -> t
         client ends -> t
         other: SELECT lock_try_acquire('w') -> f
         other: ROLLBACK PREPARED 'w'
         other: SELECT lock_try_acquire('w') -> t",
    );
}

/// Thousands of nested subtransactions that commit or roll back, some after a wait.
#[test]
fn subtransaction_releases_or_keeps_its_own_locks_smoke() {
    let cluster = builder().start_with_extension();
    let (mut holder, mut client, mut other) = (cluster.client(), cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    execute(&mut holder, "SELECT lock_acquire('taken')");
    execute(
        &mut client,
        "BEGIN;
         DO $$
         BEGIN
             PERFORM lock_acquire_xact('outer');
             FOR i IN 1..3000 LOOP
                 BEGIN
                     PERFORM lock_acquire_xact('name ' || i % 10), lock_acquire_xact('outer');
                     IF i % 100 = 0 AND lock_try_acquire_many_xact(ARRAY['outer', 'taken'], '1 ms') THEN
                         RAISE 'taken is taken';
                     END IF;
                     BEGIN
                         PERFORM lock_acquire_xact('inner'), lock_acquire('session');
                         RAISE division_by_zero;
                     EXCEPTION WHEN division_by_zero THEN
                         -- A rollback to a savepoint keeps it.
                         IF NOT lock_release('session') THEN
                             RAISE 'released';
                         END IF;
                     END;
                     BEGIN
                         PERFORM lock_acquire_xact('outer');
                     EXCEPTION WHEN division_by_zero THEN NULL;
                     END;
                     IF i % 10 <> 3 THEN
                         RAISE division_by_zero;
                     END IF;
                 EXCEPTION WHEN division_by_zero THEN NULL;
                 END;
             END LOOP;
         END $$",
    );
    // 300 of the 3,000 blocks commit: those of 'name 3', with their inner blocks.
    assert_eq!(shown(&mut other, pid), ["name 3 exclusive transaction 300", "outer exclusive transaction 601"]);
    assert_eq!(locks_of(&mut other, pid), 2);
    execute(&mut client, "COMMIT");
    assert_eq!(locks_of(&mut other, pid), 0);
    assert_eq!(value::<i64>(&mut other, "SELECT count(*) FROM idgen.lock_get_holds()"), 1);
}

#[test]
fn advisory_lock_on_the_same_key_is_another_lock() {
    play_each(
        &builder().start_with_extension(),
        "client: SELECT lock_acquire('a')
         other: SELECT pg_try_advisory_lock($key) -> t
         client: SELECT pg_advisory_unlock($key) -> f
         other: SELECT lock_try_acquire('a') -> f
         -- Plain advisory locks are not listed.
         other: SELECT count(*) FROM idgen.locks -> 1
         client: SELECT lock_release('a') -> t
         other: SELECT lock_release('a') -> f
         other: SELECT pg_advisory_unlock_all()
         other: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' -> 0",
        ["$key"],
        &[["lock_key('a')"], ["(lock_key('a') >> 32)::int, (lock_key('a') << 32 >> 32)::int"]],
    );
}

#[test]
fn locks_of_different_databases_do_not_conflict() {
    let cluster = builder().start_with_extension();
    in_new_database(&cluster, "second");
    play(
        &cluster,
        "here: SELECT lock_acquire('a'), lock_acquire('only here')
         there connects to second as postgres
         there: SELECT lock_try_acquire('a') -> t
         here: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' -> 3
         here: SELECT name FROM idgen.locks ORDER BY name -> a, only here
         there: SELECT name FROM idgen.locks -> a
         here: SELECT lock_release('a') -> t
         there: SELECT name FROM idgen.locks -> a",
    );
}
