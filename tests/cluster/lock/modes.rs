//! Servers without preload, standbys and background workers.

use idgen_testkit::script::play;
use idgen_testkit::sql::{PATIENCE, backend_pid, column, execute, expect_error, value};

use crate::{builder, locks, locks_of, wait_until_queued};

#[test]
fn locks_work_and_show_keys_without_preload() {
    let script = "client: SELECT lock_acquire('a'), lock_acquire('a'), lock_acquire_many('{b,c}')
         other: SELECT lock_try_acquire('a'), lock_try_acquire('a', '1 ms'), lock_try_acquire_xact('b', '1 ms') -> f|f|f
         other: BEGIN; SELECT lock_try_acquire_many('{c,d}', '1 ms'), lock_try_acquire_many_xact('{c,d}', '1 ms') -> f|f
         client: LOCKS -> 0
         other: COMMIT; SET lock_timeout = '1ms'
         other: SELECT lock_acquire_many('{c,d}') -> error 55P03
         other: BEGIN; SAVEPOINT s; SELECT lock_acquire_xact('d'); ROLLBACK TO s
         client: LOCKS -> 0
         other: COMMIT
         other: SELECT string_agg(lock_key(name)::text, ', ' ORDER BY lock_key(name))
             FROM unnest('{a,b,c}'::text[]) AS name -> $keys
         other: SELECT string_agg(key::text, ', ' ORDER BY key) = '$keys' FROM idgen.locks
             WHERE name IS NULL AND scope IS NULL AND depth IS NULL AND granted -> t
         client: SELECT lock_release('a'), lock_release('a'), lock_release('a'), lock_release_many('{b,c}') -> t|t|f|t
         other: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' -> 0";
    let of_other = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $other_pid";
    play(&builder().preload(false).start_with_extension(), &script.replace("LOCKS", of_other));
}

/// A logical replication worker runs triggers and has no client.
#[test]
fn background_worker_takes_locks_as_a_session_does() {
    let cluster = builder().conf("wal_level", "logical").start_with_extension();
    cluster.execute("CREATE DATABASE target");
    let (mut source, mut target) = (cluster.client(), cluster.client_in("target"));
    execute(&mut source, "CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t");
    execute(&mut source, "SELECT pg_create_logical_replication_slot('s', 'pgoutput')");
    execute(
        &mut target,
        "CREATE EXTENSION idgen;
         CREATE TABLE t (id int PRIMARY KEY);
         CREATE FUNCTION apply() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             PERFORM public.lock_acquire_xact('transaction'), public.lock_acquire('session');
             PERFORM public.lock_acquire('gate');
             PERFORM public.lock_release('gate');
             RETURN NEW;
         END $$;
         CREATE TRIGGER apply BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION apply();
         ALTER TABLE t ENABLE REPLICA TRIGGER apply;
         SELECT lock_acquire('gate')",
    );
    let connection = cluster.conninfo();
    let with = "WITH (create_slot = false, slot_name = 's', copy_data = false)";
    execute(&mut target, &format!("CREATE SUBSCRIPTION s CONNECTION $${connection}$$ PUBLICATION p {with}"));
    execute(&mut source, "INSERT INTO t VALUES (1)");

    let worker =
        "(SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'logical replication%' AND datname = 'target')";
    let held = format!(
        "SELECT name || ' ' || scope || CASE WHEN granted THEN '' ELSE ' wanted' END
         FROM idgen.locks WHERE pid IN {worker} ORDER BY name"
    );
    let waits = ["gate session wanted", "session session", "transaction transaction"];
    cluster.wait_for(PATIENCE, "the worker to wait", || column::<String>(&mut target, &held) == waits);
    assert!(!value::<bool>(&mut target, "SELECT lock_try_acquire('session')"));
    execute(&mut target, "SELECT lock_release('gate')");
    cluster.wait_for(PATIENCE, "the replicated row", || value::<i64>(&mut target, "SELECT count(*) FROM t") == 1);
    // The worker's transaction has ended, but not the worker.
    cluster.wait_for(PATIENCE, "the release of the transaction's lock", || {
        column::<String>(&mut target, &held) == ["session session"]
    });
    execute(&mut target, "ALTER SUBSCRIPTION s DISABLE");
    cluster.wait_for(PATIENCE, "the worker to end", || locks(&mut target) == 0);
    assert_eq!(value::<i64>(&mut target, "SELECT count(*) FROM idgen.lock_get_holds()"), 0);
    execute(&mut target, "ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s");
}

/// Advisory locks are local, so named locks work on a standby and ignore those of the primary.
#[test]
fn standby_has_its_own_locks() {
    let primary = builder().start_with_extension();
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    let (mut there, mut client, mut other) = (primary.client(), standby.client(), standby.client());
    let pid = backend_pid(&mut other);
    execute(&mut there, "SELECT lock_acquire('a')");
    execute(&mut client, "SELECT lock_acquire('a')");
    for sql in ["SELECT lock_try_acquire('a', '1 ms')", "SELECT lock_try_acquire_many_xact('{a,b,c}', '1 ms')"] {
        assert!(!value::<bool>(&mut other, sql), "{sql}");
        assert_eq!(locks_of(&mut client, pid), 0, "{sql}");
    }
    assert_eq!(value::<String>(&mut other, "SELECT name || ' ' || scope FROM idgen.locks"), "a session");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| value::<bool>(&mut other, "SELECT lock_try_acquire('a', '1 hour')"));
        wait_until_queued(&standby, pid);
        execute(&mut client, "SELECT lock_release('a')");
        assert!(waiter.join().unwrap());
    });
    // A promotion ends no session, so it releases no lock.
    standby.promote();
    assert!(!value::<bool>(&mut client, "SELECT lock_try_acquire('a')"));
    drop(other);
    standby.wait_for(PATIENCE, "the session to end", || locks_of(&mut client, pid) == 0);
    assert!(value::<bool>(&mut client, "SELECT lock_try_acquire('a')"));
}

/// A statement keeps rows that the primary removes. PostgreSQL ends its session instead of the statement if that is in a
/// subtransaction, and so the session's other locks.
#[test]
fn conflict_with_recovery_ends_the_wait_and_not_the_session() {
    let primary = builder().conf("max_standby_streaming_delay", "0").start_with_extension();
    let standby = primary.standby();
    let (mut there, mut holder) = (primary.client(), standby.client());
    execute(&mut there, "CREATE TABLE t AS SELECT");
    standby.wait_until_replayed(&primary);
    execute(&mut holder, "SELECT lock_acquire('b')");
    for sql in [
        "SELECT lock_acquire('b')",
        "SELECT lock_try_acquire('b', '1 hour')",
        "SELECT lock_acquire_xact('b')",
        "SELECT lock_try_acquire_xact('b', '1 hour')",
        "SELECT lock_acquire_many('{a,b,c}')",
        "SELECT lock_try_acquire_many_xact('{a,b,c}', '1 hour')",
    ] {
        // A session of its own: PostgreSQL sends a second signal, which ends it, if the end of the statement takes 5 ms.
        let mut waiter = standby.client();
        let pid = backend_pid(&mut waiter);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| expect_error(&mut waiter, sql, "40001"));
            wait_until_queued(&standby, pid);
            execute(&mut there, "DELETE FROM t; INSERT INTO t DEFAULT VALUES");
            execute(&mut there, "VACUUM t");
            let error = waiting.join().expect("an answer");
            assert_eq!(error.severity(), "ERROR", "{sql}: {error}");
        });
    }
}
