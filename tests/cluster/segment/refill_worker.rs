//! The refill worker: it runs on demand, exits when idle, and blocks nothing.

use std::thread;

use idgen_testkit::segment::{create, draw, next};
use idgen_testkit::sql::{
    PATIENCE, execute, expect_error, hint, in_new_database, value, wait_for_event, wait_until_waiting, while_waiting,
};
use idgen_testkit::{Cluster, pause};
use postgres::Client;

use crate::refill::{wait_for_worker, wait_until_no_worker, wait_until_worker_waits, worker};
use crate::{draw_until_refused, max_id};

#[test]
fn refill_worker_runs_on_demand_and_exits_when_idle_smoke() {
    let (cluster, [mut client]) = Cluster::builder().start_with_clients();
    create(&mut client, "t", ", max_step => 1, step => 1");
    assert!(worker(&mut client, "postgres").is_none());
    assert_eq!(next(&mut client, "t"), 1);
    let first = wait_for_worker(&cluster, "postgres");
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = cluster.client();
                for _ in 0..20 {
                    next(&mut client, "t");
                    assert_eq!(worker(&mut client, "postgres"), Some(first));
                }
            });
        }
    });
    wait_until_no_worker(&cluster, "postgres");
    // A later draw starts another one.
    let mut observer = cluster.client();
    cluster.wait_for(PATIENCE, "another worker", || {
        next(&mut client, "t");
        worker(&mut observer, "postgres").is_some_and(|pid| pid != first)
    });
    assert!(!cluster.log().contains("ERROR"), "{}", cluster.log());
}

#[test]
fn cancel_does_not_end_an_idle_refill_worker() {
    let (cluster, [mut client]) = Cluster::builder().start_with_clients();
    create(&mut client, "t", ", step => 1000, max_step => 1000");
    // A worker that has just exited cannot be canceled.
    cluster.wait_for(PATIENCE, "the worker to be canceled", || {
        next(&mut client, "t");
        let pid = worker(&mut client, "postgres");
        pid.is_some_and(|pid| value(&mut client, &format!("SELECT pg_cancel_backend({pid})")))
    });
    wait_until_no_worker(&cluster, "postgres");
    assert!(!cluster.log().contains("canceling statement"), "{}", cluster.log());
}

/// The settings of a tag that needs a refill for every value or two.
const ONE: &str = ", step => 1, max_step => 1";

#[test]
fn synchronous_wait_does_not_delay_a_stop() {
    let (cluster, [mut client]) = Cluster::builder().start_with_clients();
    create(&mut client, "t", ONE);
    cluster.reload_with("synchronous_standby_names", "absent");
    thread::scope(|scope| {
        scope.spawn(|| while client.simple_query(&draw("t")).is_ok() {});
        let worker = wait_for_worker(&cluster, "postgres");
        wait_for_event(&cluster, worker, "SyncRep");
        cluster.restart_with("synchronous_standby_names", "");
    });
    let wasted = max_id(&mut cluster.client(), "t");
    assert!(next(&mut cluster.client(), "t") > wasted);
}

/// The error of the last refill of a tag.
fn last_error(client: &mut Client, tag: &str) -> Option<String> {
    value(client, &format!("SELECT last_error FROM idgen.stat_segment WHERE tag = '{tag}'"))
}

/// A worker whose refills of one tag fail ends after two seconds. A request for another tag that comes in its last refill
/// is the only one before that tag is drawn dry.
#[test]
fn refill_worker_serves_a_request_that_comes_before_it_ends() {
    let (cluster, [mut client]) = Cluster::builder().start_with_clients();
    create(&mut client, "t", ONE);
    create(&mut client, "u", ", step => 100, max_step => 100");
    execute(
        &mut client,
        "CREATE TABLE gate AS SELECT false AS is_closed;
         CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.tag <> 't' THEN RETURN NEW; END IF;
             WHILE (SELECT is_closed FROM public.gate) LOOP PERFORM pg_sleep(0.01); END LOOP;
             RAISE 'no values';
         END $$;
         CREATE TRIGGER zz BEFORE UPDATE ON idgen.segment FOR EACH ROW EXECUTE FUNCTION fail()",
    );
    let refills = "SELECT refills FROM idgen.stat_segment WHERE tag = 'u'";
    assert_eq!(next(&mut client, "u"), 1);
    assert_eq!(value::<i64>(&mut client, refills), 1);
    execute(&mut client, "SET idgen.segment_timeout = '300ms'");
    draw_until_refused(&mut client, "t");
    let failed_at: String = value(&mut client, "SELECT clock_timestamp()::text");
    execute(&mut client, "UPDATE gate SET is_closed = true");
    wait_until_worker_waits(&cluster, "PgSleep");
    let is_idle = format!("SELECT clock_timestamp() > timestamptz '{failed_at}' + interval '2 s'");
    cluster.wait_for(PATIENCE, "the time to end", || value(&mut client, &is_idle));
    execute(&mut client, "SELECT count(*) FROM segment_next_many('u', 90)");
    execute(&mut client, "UPDATE gate SET is_closed = false");
    cluster.wait_for(PATIENCE, "the values of the other tag", || value::<i64>(&mut client, refills) == 2);
}

#[test]
fn failed_refill_is_reported_and_repeated() {
    let (cluster, [mut client]) = Cluster::builder().start_with_clients();
    execute(&mut client, "SET idgen.segment_timeout = '300ms'");
    let mut drawn = Vec::new();
    create(&mut client, "t", ONE);
    create(&mut client, "other", ONE);
    let constraint = "new row for relation \"segment\" violates check constraint \"full_up\"";
    let fail = "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                    IF NEW.tag = 't' THEN RAISE 'could not write block 7' USING ERRCODE = '58030'; END IF;
                    RETURN NEW;
                END $$;
                CREATE TRIGGER zz BEFORE UPDATE ON idgen.segment FOR EACH ROW EXECUTE FUNCTION fail();
                ALTER TABLE idgen.segment ENABLE ALWAYS TRIGGER zz";
    for (break_it, report, mend_it) in [
        (
            "ALTER TABLE idgen.segment ADD CONSTRAINT full_up CHECK (tag <> 't') NOT VALID",
            constraint,
            "ALTER TABLE idgen.segment DROP CONSTRAINT full_up",
        ),
        (fail, "could not write block 7", "DROP FUNCTION fail CASCADE"),
        ("BEGIN; LOCK TABLE idgen.segment IN EXCLUSIVE MODE", "canceling statement due to lock timeout", "ROLLBACK"),
        (
            "BEGIN; SELECT FROM idgen.segment WHERE tag = 't' FOR UPDATE",
            "A transaction that has not ended holds a lock on the segment's row in idgen.segment.",
            "ROLLBACK",
        ),
    ] {
        drawn.push(next(&mut client, "t"));
        let mut breaker = cluster.client();
        execute(&mut breaker, break_it);
        cluster.wait_for(PATIENCE, "the worker to report", || {
            let (before, error) = draw_until_refused(&mut client, "t");
            drawn.extend(before);
            assert_eq!(error.code().code(), "55P03");
            assert!(hint(&error).contains("Remove the cause"), "{error:?}");
            error.detail() == Some(report)
        });
        assert_eq!(last_error(&mut client, "t").as_deref(), Some(report));
        if !report.contains("lock timeout") {
            assert!(next(&mut client, "other") > 0, "{report}");
        }
        execute(&mut breaker, mend_it);
        // The worker repeats the failed request, and no value is lost.
        cluster.wait_for(PATIENCE, "the refill", || last_error(&mut client, "t").is_none());
    }
    drawn.push(next(&mut client, "t"));
    assert_eq!(drawn, (1..=drawn.len() as i64).collect::<Vec<_>>());
    // No server process has crashed.
    assert!(!cluster.log().contains("server process"), "{}", cluster.log());
}

#[test]
fn extension_can_be_dropped_under_the_refill_worker() {
    let (cluster, [mut client, mut dba]) = Cluster::builder().start_with_clients();
    create(&mut client, "t", ONE);
    execute(&mut client, "SET idgen.segment_timeout = '1min'");
    assert_eq!(next(&mut client, "t"), 1);
    execute(&mut dba, "BEGIN; DROP EXTENSION idgen");
    let draw = |client: &mut Client| (0..20).map(|_| next(client, "t")).collect::<Vec<_>>();
    let drawn = while_waiting(&cluster, &mut client, draw, |_| execute(&mut dba, "ROLLBACK"));
    assert_eq!(drawn, (2..22).collect::<Vec<_>>());
    execute(&mut dba, "BEGIN; DROP EXTENSION idgen");
    let draw = |client: &mut Client| draw_until_refused(client, "t").1;
    let refusal = while_waiting(&cluster, &mut client, draw, |_| execute(&mut dba, "COMMIT"));
    assert_eq!(refusal.code().code(), "42P01");
    wait_until_no_worker(&cluster, "postgres");
    execute(&mut dba, "CREATE EXTENSION idgen");
    create(&mut dba, "t", ONE);
    assert_eq!([next(&mut client, "t"), next(&mut dba, "t")], [1, 2]);
}

#[test]
fn missing_worker_slot_is_an_error_with_a_hint_once_the_ring_is_empty() {
    // One worker is the keeper of the worker id, which always runs.
    let (cluster, [mut client]) = Cluster::builder()
        .conf("max_worker_processes", "2")
        .conf("max_logical_replication_workers", "0")
        .start_with_clients();
    create(&mut client, "t", ", step => 100");
    assert_eq!(next(&mut client, "t"), 1);
    wait_until_no_worker(&cluster, "postgres");
    // Another database uses the only free worker slot.
    let mut shop = in_new_database(&cluster, "shop");
    create(&mut shop, "t", "");
    assert_eq!(next(&mut shop, "t"), 1);
    let paused = pause(wait_for_worker(&cluster, "shop"));
    (2..=100).for_each(|id| assert_eq!(next(&mut client, "t"), id));
    let error = expect_error(&mut client, &draw("t"), "53400");
    assert!(hint(&error).contains("max_worker_processes"), "{error:?}");
    paused.resume();
    wait_until_no_worker(&cluster, "shop");
    assert_eq!(next(&mut client, "t"), 101);
}

/// Another tag takes the ring during the wait.
#[test]
fn wait_for_a_refill_survives_the_loss_of_its_ring() {
    let (cluster, [mut client, mut dba]) = Cluster::builder().conf("idgen.max_segments", "1").start_with_clients();
    create(&mut client, "t", ONE);
    create(&mut client, "other", ONE);
    execute(&mut client, "SET idgen.segment_timeout = '1min'");
    execute(&mut dba, "BEGIN; SELECT FROM idgen.segment WHERE tag = 't' FOR UPDATE");
    let drawn = while_waiting(
        &cluster,
        &mut client,
        |client| next(client, "t"),
        |pid| {
            assert!(next(&mut cluster.client(), "other") > 0);
            wait_until_waiting(&cluster, pid);
            execute(&mut dba, "ROLLBACK");
        },
    );
    assert!(drawn > 0);
}

/// Settings of a database apply to its sessions. The refill worker ignores them.
#[test]
fn settings_of_the_database_do_not_affect_the_refill_worker() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = in_new_database(&cluster, "shop");
    create(&mut client, "t", ONE);
    execute(
        &mut client,
        "SELECT segment_grant('t', 'public');
         CREATE ROLE unprivileged;
         CREATE SCHEMA trap;
         CREATE FUNCTION trap.fail(bigint, bigint) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
         CREATE OPERATOR trap.= (FUNCTION = trap.fail, LEFTARG = bigint, RIGHTARG = bigint);
         GRANT USAGE ON SCHEMA trap TO public",
    );
    for setting in [
        "role = 'unprivileged'",
        "default_transaction_read_only = on",
        "default_transaction_isolation = 'serializable'",
        "lock_timeout = 1",
        "statement_timeout = 1",
        "session_replication_role = replica",
        "search_path = trap, pg_catalog, public",
    ] {
        execute(&mut cluster.client(), &format!("ALTER DATABASE shop SET {setting}"));
    }
    let mut session = cluster.client_in("shop");
    execute(&mut session, "SET statement_timeout = 0");
    (1..=10).for_each(|id| assert_eq!(next(&mut session, "t"), id));
}

/// Autovacuum goes by the counts.
#[test]
fn updates_are_counted_while_the_refill_worker_runs() {
    let (cluster, [mut client]) = Cluster::builder().start_with_clients();
    create(&mut client, "t", ONE);
    next(&mut client, "t");
    let first = worker(&mut client, "postgres").expect("it has just served");
    cluster.wait_for(PATIENCE, "a count of updates", || {
        next(&mut client, "t");
        value::<i64>(&mut client, "SELECT pg_stat_get_tuples_updated('idgen.segment'::regclass)") > 0
    });
    assert_eq!(worker(&mut client, "postgres"), Some(first));
}

/// The trigger ends each worker, as an error would that PostgreSQL raises as FATAL.
#[test]
fn reason_of_a_worker_that_dies_is_reported_and_starts_are_spaced() {
    let (cluster, [mut client]) = Cluster::builder().start_with_clients();
    create(&mut client, "t", ONE);
    assert_eq!(next(&mut client, "t"), 1);
    execute(
        &mut client,
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             PERFORM pg_terminate_backend(pg_backend_pid());
             RETURN NEW;
         END $$;
         CREATE TRIGGER zz BEFORE UPDATE ON idgen.segment FOR EACH ROW EXECUTE FUNCTION die();
         SET idgen.segment_timeout = '3s'",
    );
    let (drawn, error) = draw_until_refused(&mut client, "t");
    assert_eq!(error.code().code(), "55P03", "{drawn:?}");
    let detail = error.detail().expect("the reason");
    assert!(detail.starts_with("terminating background worker \"idgen refill\""), "{detail}");
    assert_eq!(last_error(&mut client, "t").as_deref(), Some(detail));
    let deaths = cluster.log().matches("FATAL:  terminating background worker").count();
    assert!((2..=5).contains(&deaths), "{deaths} starts in three seconds");
    execute(&mut client, "DROP FUNCTION die CASCADE");
    assert_eq!(next(&mut client, "t"), 1 + drawn.len() as i64 + 1);
    assert_eq!(last_error(&mut client, "t"), None);
}
