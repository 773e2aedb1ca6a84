//! What happens when there is no room: in PostgreSQL's lock table, in the registry of names, in what a process notes.

use idgen_testkit::sql::{backend_pid, column, execute, expect_error, value};
use postgres::Client;

use crate::{builder, locks, locks_of};

const NAMES: &str = "ARRAY(SELECT 'name ' || n FROM generate_series(1, 40) AS n)";

/// A lock table with room for so many more locks. The holder has taken all the others.
fn fill_lock_table(holder: &mut Client, room: usize) {
    execute(
        holder,
        "DO $$ BEGIN FOR n IN 1..100000 LOOP PERFORM pg_advisory_lock(n); END LOOP;
         EXCEPTION WHEN out_of_memory THEN NULL; END $$",
    );
    // Looks at no table, which might need a lock itself.
    let sql = format!("SELECT count(pg_advisory_unlock(n)) FROM generate_series(1, {room}) AS n");
    assert_eq!(value::<i64>(holder, &sql), room as i64);
}

#[test]
fn a_full_lock_table_leaves_nothing_of_the_call() {
    let cluster = builder()
        .conf("max_locks_per_transaction", "10")
        .conf("max_connections", "20")
        .conf("autovacuum", "off")
        .start_with_extension();
    let (mut holder, mut client) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    // Whatever is looked up in the catalogs is looked up while there is room.
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
        // Once with room for it.
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
fn a_full_registry_shows_keys_and_recovers() {
    let cluster = builder().conf("idgen.max_lock_names", "4").start_with_extension();
    let (mut client, mut other) = (cluster.client(), cluster.client());
    let names: Vec<String> = (0..7).map(|n| format!("'name {n}'")).collect();
    let names = names.join(",");
    execute(&mut client, &format!("SELECT lock_acquire(name) FROM unnest(ARRAY[{names}]) AS name"));
    // Each is there, by its name or by its key, and excludes.
    assert_eq!(value::<i64>(&mut other, "SELECT count(*) FROM idgen.locks"), 7);
    assert_eq!(value::<i64>(&mut other, "SELECT count(name) FROM idgen.locks"), 4);
    let known = "SELECT count(*) FROM idgen.locks AS l JOIN unnest(ARRAY[$names]) AS n ON lock_key(n) = l.key
                 WHERE (l.name = n OR l.name IS NULL) AND scope = 'session' AND depth = 1";
    assert_eq!(value::<i64>(&mut other, &known.replace("$names", &names)), 7);
    let all = format!("SELECT bool_or(lock_try_acquire(name)) FROM unnest(ARRAY[{names}]) AS name");
    assert!(!value::<bool>(&mut other, &all));

    // Names of locks that are free make room, however they were freed; those of held ones do not.
    execute(&mut client, "SELECT pg_advisory_unlock_all()");
    execute(&mut other, "SELECT lock_acquire_many('{w,x,y,z}')");
    execute(&mut client, "SELECT lock_acquire('late')");
    let shown = "SELECT coalesce(name, key::text) FROM idgen.locks ORDER BY name";
    let late: i64 = value(&mut client, "SELECT lock_key('late')");
    assert_eq!(column::<String>(&mut other, shown), ["w", "x", "y", "z", &late.to_string()]);
}

/// More locks than a process notes: the rest has a name, and no depth.
#[test]
fn many_locks_of_one_session_all_have_names() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, &format!("SELECT lock_acquire_many({NAMES})"));
    assert_eq!(value::<i64>(&mut client, "SELECT count(DISTINCT name) FROM idgen.locks WHERE granted"), 40);
    let released = format!("SELECT lock_release_many({NAMES})");
    assert!(value::<bool>(&mut client, &released));
    assert!(!value::<bool>(&mut client, &released));
    assert_eq!(locks(&mut client), 0);
    // What was noted is free again.
    execute(&mut client, "SELECT lock_acquire('one'), lock_acquire('one')");
    assert_eq!(value::<i32>(&mut client, "SELECT depth FROM idgen.locks"), 2);
}

/// A place for what a process notes goes back whenever one ends, also in the middle of a transaction.
#[test]
fn sessions_that_end_in_a_transaction_give_their_place_back() {
    let cluster = builder().conf("max_connections", "20").start_with_extension();
    let mut observer = cluster.client();
    // More than there are places: MaxBackends is 20 connections and all kinds of workers.
    for n in 0..100 {
        let mut client = cluster.client();
        let pid = backend_pid(&mut client);
        execute(&mut client, &format!("BEGIN; SELECT lock_acquire_xact('name {n}'); SAVEPOINT s"));
        drop(client);
        let gone = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}");
        cluster.wait_for(idgen_testkit::sql::PATIENCE, "the session to end", || value(&mut observer, &gone));
    }
    let mut client = cluster.client();
    execute(&mut client, "SELECT lock_acquire('last')");
    assert_eq!(
        value::<String>(&mut client, "SELECT name || ' ' || coalesce(scope, '?') FROM idgen.locks"),
        "last session"
    );
}
