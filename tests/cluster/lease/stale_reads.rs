//! Sessions whose default is one snapshot for a transaction. After a wait, a statement that is its own transaction goes on,
//! and so does a pipeline; whatever runs in a transaction that began before the wait fails with 40001.

use idgen_testkit::Cluster;
use idgen_testkit::lease::acquire;
use idgen_testkit::script::play_each;
use idgen_testkit::sql::{backend_pid, execute, expect_error, value};
use idgen_testkit::wire::Session;
use postgres::Client;

use crate::{builder, wait_until_head};

const LEVELS: [&str; 2] = ["repeatable read", "serializable"];

/// What acquires the lease, fences, and stores what it reads under the fence.
const ACQUIRERS: &str = "
    CREATE TABLE t (n int);
    CREATE TABLE seen (n int);
    CREATE PROCEDURE lease_work() LANGUAGE plpgsql AS $$
    DECLARE
        granted bigint;
    BEGIN
        SELECT token INTO granted FROM lease_acquire('a', '1 hour');
        PERFORM lease_fence('a', granted);
        INSERT INTO seen SELECT n FROM t;
    END $$;
    CREATE FUNCTION lease_in_plpgsql() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CALL lease_work(); END $$;
    CREATE FUNCTION lease_work_of(granted bigint) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM lease_fence('a', granted);
        INSERT INTO seen SELECT n FROM t;
    END $$;
    CREATE PROCEDURE lease_call_of(granted bigint) LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM lease_work_of(granted);
    END $$;
    CREATE FUNCTION lease_in_sql() RETURNS void LANGUAGE sql AS $$
        SELECT lease_acquire('a', '1 hour');
        INSERT INTO seen SELECT n FROM t;
    $$;";

const IN_ONE_TRANSACTION: [&str; 11] = [
    "CALL lease_work()",
    "SELECT lease_in_plpgsql()",
    "SELECT lease_in_sql()",
    "DO $$ BEGIN CALL lease_work(); END $$",
    "DO $$ DECLARE r record; BEGIN \
        FOR r IN SELECT token FROM lease_acquire('a', '1 hour') LOOP PERFORM lease_work_of(r.token); END LOOP; \
     END $$",
    "DO $$ DECLARE c refcursor; granted bigint; BEGIN \
        OPEN c FOR SELECT token FROM lease_acquire('a', '1 hour'); \
        FETCH c INTO granted; \
        PERFORM lease_work_of(granted); \
     END $$",
    "CALL lease_call_of((lease_acquire('a', '1 hour')).token)",
    "EXECUTE work ((lease_acquire('a', '1 hour')).token)",
    "EXPLAIN ANALYZE SELECT lease_work_of(token) FROM lease_acquire('a', '1 hour')",
    "SELECT lease_acquire('a', '1 hour'); INSERT INTO seen SELECT n FROM t",
    "BEGIN; SELECT lease_acquire('a', '1 hour'); INSERT INTO seen SELECT n FROM t; COMMIT",
];

fn start() -> Cluster {
    let cluster = builder().start_with_extension();
    cluster.execute(ACQUIRERS);
    cluster
}

/// A holder that has the lease. [`write_and_release`] ends its term.
fn hold(holder: &mut Client) -> i64 {
    execute(holder, "TRUNCATE t, seen; INSERT INTO t VALUES (0)");
    acquire(holder, "'a', ttl => '1 hour'").token
}

fn write_and_release(holder: &mut Client, token: i64) {
    execute(holder, &format!("BEGIN; SELECT lease_fence('a', {token}); UPDATE t SET n = 41; COMMIT"));
    execute(holder, &format!("SELECT lease_release('a', {token})"));
}

#[test]
fn transaction_that_has_waited_with_one_snapshot_fails_smoke() {
    play_each(
        &start(),
        "holder: TRUNCATE t, seen; INSERT INTO t VALUES (0)
         holder: SELECT token FROM lease_acquire('a', ttl => '1 hour') -> $token
         next: PREPARE work (bigint) AS SELECT lease_work_of($1)
         next: SET default_transaction_isolation = '$level'
         next waits for Extension: $sql
         holder: BEGIN; SELECT lease_fence('a', $token); UPDATE t SET n = 41; COMMIT
         holder: SELECT lease_release('a', $token) -> t
         next ends -> error 40001
         -- Nobody holds the lease: it works now, and sees all that the holder has written.
         next: ROLLBACK
         next: $sql
         next: SELECT n FROM seen -> 41
         next: DELETE FROM idgen.lease",
        ["$level", "$sql"],
        &LEVELS.map(|level| IN_ONE_TRANSACTION.map(|sql| [level, sql])).concat(),
    );
}

/// Whether it has waited or not.
#[test]
fn statement_that_acquires_cannot_fence_with_one_snapshot() {
    let cluster = start();
    let mut client = cluster.client();
    let work = "SELECT lease_work_of(token) FROM lease_acquire('a', '1 hour')";
    for level in LEVELS {
        execute(&mut client, &format!("SET default_transaction_isolation = '{level}'"));
        expect_error(&mut client, work, "55000");
        // A portal that has not ended does not commit.
        let mut pipeline = Session::open(&cluster);
        pipeline.execute_without_sync(&format!("SET default_transaction_isolation = '{level}'"));
        pipeline.sync();
        pipeline.fetch_without_sync("SELECT token FROM lease_acquire('a', '1 hour')", 1);
        pipeline.execute_without_sync("SELECT lease_fence('a', last_value) FROM idgen.lease_token");
        let (kind, error) = pipeline.read_to(b'E');
        assert!(kind == b'E' && error.contains("55000"), "{level}: {error}");
    }
    execute(&mut client, "SET default_transaction_isolation = 'read committed'");
    execute(&mut client, work);
}

#[test]
fn statement_that_is_its_own_transaction_is_served_after_a_wait_smoke() {
    let cluster = start();
    let mut holder = cluster.client();
    for level in LEVELS {
        let token = hold(&mut holder);
        let mut next = cluster.client();
        execute(&mut next, &format!("SET default_transaction_isolation = '{level}'"));
        let pid = backend_pid(&mut next);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| acquire(&mut next, "'a', '1 hour'").token);
            wait_until_head(&cluster, pid);
            write_and_release(&mut holder, token);
            let granted = waiting.join().unwrap();
            write_and_release(&mut holder, granted);
        });

        let token = hold(&mut holder);
        let mut pipeline = Session::open(&cluster);
        pipeline.execute_without_sync(&format!("SET default_transaction_isolation = '{level}'"));
        pipeline.sync();
        pipeline.execute_without_sync("SELECT token FROM lease_acquire('a', '1 hour')");
        pipeline.execute_without_sync("INSERT INTO seen SELECT n FROM t");
        let waits = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()";
        cluster.wait_for(idgen_testkit::sql::PATIENCE, "the pipeline to wait", || {
            holder.query(waits, &[]).is_ok_and(|rows| !rows.is_empty())
        });
        write_and_release(&mut holder, token);
        pipeline.sync();
        assert_eq!(value::<i32>(&mut holder, "SELECT n FROM seen"), 41, "{level}: the pipeline");
        execute(&mut holder, "DELETE FROM idgen.lease");
    }
}

/// The WARNING that the lease is not held yet comes wherever a later statement can undo the acquisition.
#[test]
fn acquisition_that_can_be_undone_warns() {
    let cluster = start();
    let mut client = cluster.client();
    let warnings = || cluster.log().matches("is not held until this transaction commits").count();
    for (sql, warns) in [
        ("SELECT lease_acquire('a', '1 hour')", false),
        ("SELECT * FROM lease_try_acquire('a', ttl => '1 hour')", false),
        ("PREPARE p AS SELECT lease_acquire('a', '1 hour'); EXECUTE p", true),
        ("EXECUTE p", false),
        ("INSERT INTO seen SELECT slot FROM lease_acquire('a', '1 hour')", false),
        ("DO $$ BEGIN PERFORM lease_acquire('a', '1 hour'); END $$", true),
        ("SELECT lease_in_sql()", true),
        ("SELECT lease_in_plpgsql()", true),
        ("BEGIN; SELECT lease_acquire('a', '1 hour'); COMMIT", true),
    ] {
        let before = warnings();
        execute(&mut client, sql);
        assert_eq!(warnings() > before, warns, "{sql}");
        execute(&mut client, "DELETE FROM idgen.lease");
    }
}

/// The grant is committed before its result is sent, so that no later statement can roll it back.
#[test]
fn lease_granted_in_a_pipeline_survives_a_later_error() {
    let cluster = start();
    for level in [&LEVELS[..], &["read committed"]].concat() {
        let mut pipeline = Session::open(&cluster);
        pipeline.execute_without_sync(&format!("SET default_transaction_isolation = '{level}'"));
        pipeline.sync();
        pipeline.execute_before_an_error("SELECT token FROM lease_acquire('a', '1 hour')");
        let mut client = cluster.client();
        assert!(value::<bool>(&mut client, "SELECT count(*) = 1 FROM idgen.leases WHERE state = 'held'"), "{level}");
        execute(&mut client, "DELETE FROM idgen.lease");
    }
}
