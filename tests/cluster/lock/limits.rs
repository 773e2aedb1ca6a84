//! Full tables: PostgreSQL's lock table, the registry of names, and a process's list of holds.

use idgen_testkit::script::{play, play_each};
use idgen_testkit::sql::{PATIENCE, backend_pid, column, execute, expect_error, value};
use postgres::Client;

use crate::{builder, locks_of};

const NAMES: &str = "ARRAY(SELECT 'name ' || n FROM generate_series(1, 40) AS n)";

/// Fills the lock table except for this many locks.
fn fill_lock_table(holder: &mut Client, room: usize) {
    execute(
        holder,
        "DO $$ BEGIN FOR n IN 1..100000 LOOP PERFORM pg_advisory_lock(n); END LOOP;
         EXCEPTION WHEN out_of_memory THEN NULL; END $$",
    );
    // Reads no table, because that could need a lock.
    let sql = format!("SELECT count(pg_advisory_unlock(n)) FROM generate_series(1, {room}) AS n");
    assert_eq!(value::<i64>(holder, &sql), room as i64);
}

#[test]
fn call_that_fills_the_lock_table_leaves_nothing() {
    let cluster = builder()
        .conf("max_locks_per_transaction", "10")
        .conf("max_connections", "20")
        .conf("autovacuum", "off")
        .start_with_extension();
    let (mut holder, mut client) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    // Fills the catalog caches while there is room.
    execute(&mut client, "SELECT lock_acquire('mine'), lock_acquire('mine')");
    let calls = [
        ("lock_acquire('one')", 0),
        ("lock_acquire_xact('one')", 0),
        ("lock_try_acquire('one', '1 s')", 0),
        ("lock_try_acquire_xact('one', '1 s')", 0),
        ("lock_acquire_many($names)", 12),
        ("lock_acquire_many_xact($names)", 12),
        ("lock_try_acquire_many($names, '1 s')", 12),
        ("lock_try_acquire_many_xact($names, '1 s')", 12),
    ];
    for (call, room) in calls {
        let sql = format!("SELECT {}", call.replace("$names", NAMES));
        // Once with room.
        execute(&mut client, &format!("BEGIN; {sql}; ROLLBACK; SELECT pg_advisory_unlock_all()"));
        execute(&mut client, "SELECT lock_acquire('mine'), lock_acquire('mine')");
        fill_lock_table(&mut holder, room);
        execute(&mut client, "BEGIN; SAVEPOINT s");
        expect_error(&mut client, &sql, "53200");
        execute(&mut client, "ROLLBACK TO s");
        execute(&mut client, "COMMIT");
        execute(&mut holder, "SELECT pg_advisory_unlock_all()");
        let sql = format!("SELECT name || ' ' || depth FROM idgen.locks WHERE pid = {pid}");
        assert_eq!(column::<String>(&mut holder, &sql), ["mine 2"], "{call}");
        assert_eq!(locks_of(&mut holder, pid), 1, "{call}");
    }
}

#[test]
fn full_registry_shows_keys_and_recovers() {
    let cluster = builder().conf("idgen.max_lock_names", "4").start_with_extension();
    let (mut client, mut other) = (cluster.client(), cluster.client());
    let names: Vec<String> = (0..7).map(|n| format!("'name {n}'")).collect();
    let names = names.join(",");
    execute(&mut client, &format!("SELECT lock_acquire(name) FROM unnest(ARRAY[{names}]) AS name"));
    // Each lock is listed by name or by key, and excludes others.
    assert_eq!(value::<i64>(&mut other, "SELECT count(*) FROM idgen.locks"), 7);
    assert_eq!(value::<i64>(&mut other, "SELECT count(name) FROM idgen.locks"), 4);
    let known = "SELECT count(*) FROM idgen.locks AS l JOIN unnest(ARRAY[$names]) AS n ON lock_key(n) = l.key
                 WHERE (l.name = n OR l.name IS NULL) AND scope = 'session' AND depth = 1";
    assert_eq!(value::<i64>(&mut other, &known.replace("$names", &names)), 7);
    let all = format!("SELECT bool_or(lock_try_acquire(name)) FROM unnest(ARRAY[{names}]) AS name");
    assert!(!value::<bool>(&mut other, &all));

    // The names of free locks make room, those of held locks do not.
    execute(&mut client, "SELECT pg_advisory_unlock_all()");
    execute(&mut other, "SELECT lock_acquire_many('{w,x,y,z}')");
    execute(&mut client, "SELECT lock_acquire('late')");
    let shown = "SELECT coalesce(name, key::text) FROM idgen.locks ORDER BY name";
    let late: i64 = value(&mut client, "SELECT lock_key('late')");
    assert_eq!(column::<String>(&mut other, shown), ["w", "x", "y", "z", &late.to_string()]);
}

/// However a hold or a wait ends, its name makes room for others.
#[test]
fn ended_holds_and_waits_leave_room_for_names() {
    let builder = builder().conf("idgen.max_lock_names", "4").conf("max_prepared_transactions", "1");
    let cluster = builder.start_with_extension();
    let script = |steps: &str| {
        format!(
            "{steps}
         other: SELECT lock_acquire_many('{{w,x,y,z}}')
         other: SELECT count(name) FROM idgen.locks -> 4
         other: SELECT lock_release_many('{{w,x,y,z}}') -> t"
        )
    };
    play_each(
        &cluster,
        &script(
            "holder: BEGIN; SELECT lock_acquire_many_xact('{a,b}'), lock_acquire_xact('a')
         holder: $ending",
        ),
        ["$ending"],
        &[
            ["ROLLBACK"],
            ["SELECT pg_advisory_unlock_all(); COMMIT"],
            ["SAVEPOINT s; SELECT lock_acquire_xact('c'); ROLLBACK TO s; COMMIT"],
            ["PREPARE TRANSACTION 'p'\n         holder: ROLLBACK PREPARED 'p'"],
        ],
    );
    play(
        &cluster,
        &script(
            "holder: SELECT lock_acquire_many('{a,b,c,d}')
         holder: DISCARD ALL",
        ),
    );
    play_each(
        &cluster,
        &script(
            "holder: SELECT lock_acquire_many('{a,b}')
         waiter waits for advisory: SELECT lock_acquire('c'), lock_acquire('a')
         holder: SELECT $end($waiter_pid) -> t
         waiter ends -> error
         holder: SELECT lock_release_many('{a,b}') -> t
         until: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' -> 0",
        ),
        ["$end"],
        &[["pg_cancel_backend"], ["pg_terminate_backend"]],
    );
}

/// A process returns its list when it exits, also in the middle of a transaction.
#[test]
fn session_that_ends_in_a_transaction_returns_its_list() {
    let cluster = builder().conf("max_connections", "20").start_with_extension();
    let mut observer = cluster.client();
    // More than MaxBackends, which is 20 connections plus the workers.
    for n in 0..100 {
        let mut client = cluster.client();
        let pid = backend_pid(&mut client);
        execute(&mut client, &format!("BEGIN; SELECT lock_acquire_xact('name {n}'); SAVEPOINT s"));
        drop(client);
        let gone = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}");
        cluster.wait_for(PATIENCE, "the session to end", || value(&mut observer, &gone));
    }
    let mut client = cluster.client();
    execute(&mut client, "SELECT lock_acquire('last')");
    assert_eq!(
        value::<String>(&mut client, "SELECT name || ' ' || coalesce(scope, '?') FROM idgen.locks"),
        "last session"
    );
}
