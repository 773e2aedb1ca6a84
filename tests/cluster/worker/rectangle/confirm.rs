//! worker_confirm() with a synchronous standby: it returns what the standby has, or it raises an error.

use idgen_testkit::Stop;
use idgen_testkit::grants::epoch_us;
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, value};
use postgres::Client;

use super::{acquire, builder, renewal};

fn confirmation(token: i64) -> String {
    format!("SELECT {} FROM worker_confirm('p', {token}) AS confirmed", epoch_us("confirmed"))
}

/// Sets up a keeper's session: commits do not wait for standbys, and warnings are not sent.
fn set_up_keeper_session(client: &mut Client) {
    execute(client, "SET synchronous_commit = local; SET client_min_messages = error");
}

#[test]
fn grant_is_not_confirmed_without_a_standby_even_if_warnings_are_off_smoke() {
    let primary = builder().start_with_extension();
    primary.execute("SELECT lease_define('p', 4, '10 s'); ALTER ROLE postgres SET client_min_messages = error");
    let standby = primary.standby_builder().synchronous().start();
    let mut observer = primary.client();
    standby.stop(Stop::Fast);

    // The wait of its commit is cancelled: the client sees success.
    let mut client = primary.client();
    let pid = backend_pid(&mut client);
    let grant = std::thread::scope(|scope| {
        let acquisition = scope.spawn(|| {
            let sql = "SELECT token FROM worker_acquire('p', NULL, '10 s')";
            client.query_one(sql, &[]).expect("a cancelled wait is a success").get::<_, i64>(0)
        });
        let waits = format!("SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'SyncRep'");
        primary.wait_for(PATIENCE, "the commit to wait", || value(&mut observer, &waits));
        execute(&mut observer, &format!("SELECT pg_cancel_backend({pid})"));
        acquisition.join().unwrap()
    });

    execute(&mut observer, "SET statement_timeout = '300 ms'");
    expect_error(&mut observer, &confirmation(grant), "57014");
    // A cancelled confirmation is an error, not a notice.
    let pid = backend_pid(&mut client);
    let asked = std::thread::scope(|scope| {
        let asked = scope.spawn(|| client.query_one(&confirmation(grant), &[]).map(|row| row.get::<_, i64>(0)));
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
    let not_after: i64 = value(&mut client, &confirmation(grant));
    primary.kill9_postmaster();
    standby.promote();
    let there = format!("SELECT {} FROM idgen.worker_number WHERE token = {grant}", epoch_us("not_after"));
    assert_eq!(value::<i64>(&mut standby.client(), &there), not_after);
}

/// With `synchronous_commit = local` only the confirmation waits, without holding a table lock.
#[test]
fn confirmation_waits_for_the_standby_without_a_table_lock() {
    let primary = builder().start_with_extension();
    primary.execute("SELECT lease_define('p', 4, '10 s')");
    let standby = primary.standby_builder().synchronous().start();
    standby.stop(Stop::Fast);
    let mut client = primary.client();
    set_up_keeper_session(&mut client);
    let mut grant = acquire(&mut client, "clock_timestamp()");
    grant.until_us = value(&mut client, &renewal(&grant, "clock_timestamp()"));
    let pid = backend_pid(&mut client);
    let confirmed = std::thread::scope(|scope| {
        let asked = scope.spawn(|| value::<i64>(&mut client, &confirmation(grant.token)));
        let mut observer = primary.client();
        let waits = format!(
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {pid} AND query LIKE '%worker_confirm%' AND state = 'active'"
        );
        primary.wait_for(PATIENCE, "the confirmation to wait", || value(&mut observer, &waits));
        // An ACCESS EXCLUSIVE lock conflicts with every other.
        execute(
            &mut observer,
            "SET synchronous_commit = local; BEGIN; LOCK TABLE idgen.lease, idgen.worker_number, idgen.worker_history; COMMIT",
        );
        assert!(!asked.is_finished(), "the standby has nothing yet");
        standby.start_again();
        asked.join().unwrap()
    });
    assert_eq!(confirmed, grant.until_us);
}

/// The wait of a commit ends likewise. The session itself reads its settings only between two statements.
#[test]
fn confirmation_ends_when_synchronous_standby_names_is_emptied() {
    let primary = builder().start_with_extension();
    primary.execute("SELECT lease_define('p', 4, '10 s')");
    let mut observer = primary.client();
    set_up_keeper_session(&mut observer);
    execute(&mut observer, "ALTER SYSTEM SET synchronous_standby_names = 'absent'");
    execute(&mut observer, "SELECT pg_reload_conf()");
    let mut client = primary.client();
    set_up_keeper_session(&mut client);
    primary.wait_for(PATIENCE, "the changed setting", || {
        value(&mut client, "SELECT current_setting('synchronous_standby_names') <> ''")
    });
    let grant = acquire(&mut client, "clock_timestamp()");
    execute(&mut client, "SET statement_timeout = '20 s'");
    let pid = backend_pid(&mut client);
    let confirmed = std::thread::scope(|scope| {
        let asked = scope.spawn(|| value::<i64>(&mut client, &confirmation(grant.token)));
        let waits = format!(
            "SELECT count(*) = 1 FROM pg_stat_activity
             WHERE pid = {pid} AND wait_event IS NOT NULL AND state = 'active' AND query LIKE '%worker_confirm%'"
        );
        primary.wait_for(PATIENCE, "the confirmation to wait", || value(&mut observer, &waits));
        execute(&mut observer, "ALTER SYSTEM RESET synchronous_standby_names");
        execute(&mut observer, "SELECT pg_reload_conf()");
        asked.join().unwrap()
    });
    assert_eq!(confirmed, grant.until_us);
}

/// Warnings of a trigger have no effect.
#[test]
fn confirmation_ignores_warnings_of_a_trigger() {
    let primary = builder().start_with_extension();
    primary.execute(
        "SELECT lease_define('p', 4, '10 s');
         CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RAISE WARNING 'canceling wait for synchronous replication due to user request'; RETURN NEW; END $$;
         CREATE TRIGGER warn AFTER INSERT OR UPDATE ON idgen.worker_number FOR EACH ROW EXECUTE FUNCTION warn()",
    );
    let _standby = primary.standby_builder().synchronous().start();
    let mut client = primary.client();
    set_up_keeper_session(&mut client);
    let grant = acquire(&mut client, "clock_timestamp()");
    assert_eq!(value::<i64>(&mut client, &confirmation(grant.token)), grant.until_us);
}

#[test]
fn confirmation_fails_on_a_standby() {
    let primary = builder().start_with_extension();
    primary.execute("SELECT lease_define('p', 4, '10 s')");
    let grant = acquire(&mut primary.client(), "clock_timestamp()");
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    expect_error(&mut standby.client(), &confirmation(grant.token), "25006");
}
