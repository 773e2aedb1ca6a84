//! worker_confirm() beside a synchronous standby: it returns what the standby has, or it raises.

use idgen_testkit::Stop;
use idgen_testkit::grants::epoch_us;
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, value};
use postgres::Client;

use super::{acquire, builder, renewal};

fn confirmation(token: i64) -> String {
    format!("SELECT {} FROM worker_confirm('p', {token}) AS confirmed", epoch_us("confirmed"))
}

/// A keeper's session: its commits wait for no standby, and it hears of no warning.
fn deaf(client: &mut Client) {
    execute(client, "SET synchronous_commit = local; SET client_min_messages = error");
}

#[test]
fn a_grant_that_no_standby_has_is_not_confirmed_whatever_the_role_hears_smoke() {
    let primary = builder().start_with_extension();
    primary.execute("SELECT lease_define('p', 4, '10 s'); ALTER ROLE postgres SET client_min_messages = error");
    let standby = primary.standby_builder().synchronous().start();
    let mut observer = primary.client();
    standby.stop(Stop::Fast);

    // Its commit waits, and the wait is cancelled: the client sees success.
    let mut client = primary.client();
    let pid = backend_pid(&mut client);
    let told = std::thread::scope(|scope| {
        let grant = scope.spawn(|| {
            let sql = "SELECT token FROM worker_acquire('p', NULL, '10 s')";
            client.query_one(sql, &[]).expect("a cancelled wait is a success").get::<_, i64>(0)
        });
        let waits = format!("SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'SyncRep'");
        primary.wait_for(PATIENCE, "the commit to wait", || value(&mut observer, &waits));
        execute(&mut observer, &format!("SELECT pg_cancel_backend({pid})"));
        grant.join().unwrap()
    });

    execute(&mut observer, "SET statement_timeout = '300 ms'");
    expect_error(&mut observer, &confirmation(told), "57014");
    // Cancelled while it waits, it is an error, and no notice.
    let pid = backend_pid(&mut client);
    let asked = std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.query_one(&confirmation(told), &[]).map(|row| row.get::<_, i64>(0)));
        let mut canceller = primary.client();
        let waits = format!(
            "SELECT count(*) = 1 FROM pg_stat_activity
             WHERE pid = {pid} AND wait_event IS NOT NULL AND state = 'active' AND query LIKE '%worker_confirm%'"
        );
        primary.wait_for(PATIENCE, "the confirmation to wait", || value(&mut canceller, &waits));
        execute(&mut canceller, &format!("SELECT pg_cancel_backend({pid})"));
        asked.join().unwrap()
    });
    let error = asked.expect_err("the standby does not have it");
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error:?}");

    standby.start_again();
    let not_after: i64 = value(&mut client, &confirmation(told));
    primary.kill9_postmaster();
    standby.promote();
    let there = format!("SELECT {} FROM idgen.worker_number WHERE token = {told}", epoch_us("not_after"));
    assert_eq!(value::<i64>(&mut standby.client(), &there), not_after);
}

/// With `local` neither grant nor renewal waits: only the confirmation does, and it holds no lock of a table meanwhile.
#[test]
fn a_confirmation_waits_without_a_table_lock_where_the_commit_does_not() {
    let primary = builder().start_with_extension();
    primary.execute("SELECT lease_define('p', 4, '10 s')");
    let standby = primary.standby_builder().synchronous().start();
    standby.stop(Stop::Fast);
    let mut client = primary.client();
    deaf(&mut client);
    let mut told = acquire(&mut client, "clock_timestamp()");
    told.until_us = value(&mut client, &renewal(&told, "clock_timestamp()"));
    let pid = backend_pid(&mut client);
    let confirmed = std::thread::scope(|scope| {
        let asked = scope.spawn(|| value::<i64>(&mut client, &confirmation(told.token)));
        let mut observer = primary.client();
        let waits = format!(
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {pid} AND query LIKE '%worker_confirm%' AND state = 'active'"
        );
        primary.wait_for(PATIENCE, "the confirmation to wait", || value(&mut observer, &waits));
        // Takes a lock that conflicts with every other.
        execute(
            &mut observer,
            "SET synchronous_commit = local; BEGIN; LOCK TABLE idgen.lease, idgen.worker_number, idgen.worker_history; COMMIT",
        );
        assert!(!asked.is_finished(), "the standby has nothing yet");
        standby.start_again();
        asked.join().unwrap()
    });
    assert_eq!(confirmed, told.until_us);
}

/// As the wait of a commit does. The session itself reads its settings between two statements only.
#[test]
fn a_confirmation_ends_when_no_standby_is_asked_for_any_more() {
    let primary = builder().start_with_extension();
    primary.execute("SELECT lease_define('p', 4, '10 s')");
    let mut observer = primary.client();
    deaf(&mut observer);
    execute(&mut observer, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    execute(&mut observer, "SELECT pg_reload_conf()");
    let mut client = primary.client();
    deaf(&mut client);
    primary.wait_for(PATIENCE, "the setting", || {
        value(&mut client, "SELECT current_setting('synchronous_standby_names') <> ''")
    });
    let told = acquire(&mut client, "clock_timestamp()");
    execute(&mut client, "SET statement_timeout = '20 s'");
    let pid = backend_pid(&mut client);
    let confirmed = std::thread::scope(|scope| {
        let asked = scope.spawn(|| value::<i64>(&mut client, &confirmation(told.token)));
        let waits = format!(
            "SELECT count(*) = 1 FROM pg_stat_activity
             WHERE pid = {pid} AND wait_event IS NOT NULL AND state = 'active' AND query LIKE '%worker_confirm%'"
        );
        primary.wait_for(PATIENCE, "the confirmation to wait", || value(&mut observer, &waits));
        execute(&mut observer, "ALTER SYSTEM RESET synchronous_standby_names");
        execute(&mut observer, "SELECT pg_reload_conf()");
        asked.join().unwrap()
    });
    assert_eq!(confirmed, told.until_us);
}

/// Warnings of others, as of a trigger, decide nothing.
#[test]
fn a_trigger_that_warns_does_no_harm() {
    let primary = builder().start_with_extension();
    primary.execute(
        "SELECT lease_define('p', 4, '10 s');
         CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RAISE WARNING 'canceling wait for synchronous replication due to user request'; RETURN NEW; END $$;
         CREATE TRIGGER warn AFTER INSERT OR UPDATE ON idgen.worker_number FOR EACH ROW EXECUTE FUNCTION warn()",
    );
    let _standby = primary.standby_builder().synchronous().start();
    let mut client = primary.client();
    deaf(&mut client);
    let told = acquire(&mut client, "clock_timestamp()");
    assert_eq!(value::<i64>(&mut client, &confirmation(told.token)), told.until_us);
}

#[test]
fn a_standby_confirms_nothing() {
    let primary = builder().start_with_extension();
    primary.execute("SELECT lease_define('p', 4, '10 s')");
    let told = acquire(&mut primary.client(), "clock_timestamp()");
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    expect_error(&mut standby.client(), &confirmation(told.token), "25006");
}
