//! worker_confirm() with a synchronous standby: it returns what the standby has, or it raises an error.

use idgen_testkit::Stop;
use idgen_testkit::grants::epoch_us;
use idgen_testkit::sql::{PATIENCE, execute, expect_error, value, wait_for_event, while_waiting};
use postgres::Client;

use super::{acquire, builder, renewal, with_pool};

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
    primary.execute("SELECT worker_pool_define('p', count => 4, ttl => '10 s'); ALTER ROLE postgres SET client_min_messages = error");
    let standby = primary.standby_builder().synchronous().start();
    let mut observer = primary.client();
    standby.stop(Stop::Fast);

    // The wait of its commit is cancelled: the client sees success.
    let mut client = primary.client();
    let acquisition = |client: &mut Client| {
        // A cancelled wait is a success.
        value::<i64>(client, "SELECT token FROM worker_acquire('p', NULL, '10 s')")
    };
    let grant = while_waiting(&primary, &mut client, acquisition, |pid| {
        wait_for_event(&primary, pid, "SyncRep");
        execute(&mut observer, &format!("SELECT pg_cancel_backend({pid})"));
    });

    // A cancelled confirmation is an error, not a notice.
    let cancel = |pid| primary.execute(&format!("SELECT pg_cancel_backend({pid})"));
    let confirm = |client: &mut Client| expect_error(client, &confirmation(grant), "57014");
    while_waiting(&primary, &mut client, confirm, cancel);
    execute(&mut observer, "SET statement_timeout = '300 ms'");
    expect_error(&mut observer, &confirmation(grant), "57014");

    standby.start_again();
    let not_after: i64 = value(&mut client, &confirmation(grant));
    primary.kill9_postmaster();
    standby.promote();
    let there = format!("SELECT {} FROM idgen.worker_id WHERE token = {grant}", epoch_us("not_after"));
    assert_eq!(value::<i64>(&mut standby.client(), &there), not_after);
}

/// With `synchronous_commit = local` only the confirmation waits, without holding a table lock.
#[test]
fn confirmation_waits_for_the_standby_without_a_table_lock() {
    let primary = with_pool(builder(), 4);
    let standby = primary.standby_builder().synchronous().start();
    standby.stop(Stop::Fast);
    let mut client = primary.client();
    set_up_keeper_session(&mut client);
    let mut grant = acquire(&mut client, "clock_timestamp()");
    grant.until_us = value(&mut client, &renewal(&grant, "clock_timestamp()"));
    let confirmed = while_waiting(
        &primary,
        &mut client,
        |client| value(client, &confirmation(grant.token)),
        |pid| {
            // An ACCESS EXCLUSIVE lock conflicts with every other.
            let locks = "BEGIN; LOCK TABLE idgen.worker_pool, idgen.worker_id, idgen.worker_history; COMMIT";
            primary.execute(&format!("SET synchronous_commit = local; {locks}"));
            let waits = format!("SELECT state = 'active' FROM pg_stat_activity WHERE pid = {pid}");
            assert!(value::<bool>(&mut primary.client(), &waits), "the standby has nothing yet");
            standby.start_again();
        },
    );
    assert_eq!(grant.until_us, confirmed);
}

/// The wait of a commit ends likewise. The session itself reads its settings only between two statements.
#[test]
fn confirmation_ends_when_synchronous_standby_names_is_emptied() {
    let primary = with_pool(builder(), 4);
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
    let confirmed = while_waiting(
        &primary,
        &mut client,
        |client| value(client, &confirmation(grant.token)),
        |_| {
            execute(&mut observer, "ALTER SYSTEM RESET synchronous_standby_names");
            execute(&mut observer, "SELECT pg_reload_conf()");
        },
    );
    assert_eq!(grant.until_us, confirmed);
}

/// Warnings of a trigger have no effect.
#[test]
fn confirmation_ignores_warnings_of_a_trigger() {
    let primary = builder().start_with_extension();
    primary.execute(
        "SELECT worker_pool_define('p', count => 4, ttl => '10 s');
         CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RAISE WARNING 'canceling wait for synchronous replication due to user request'; RETURN NEW; END $$;
         CREATE TRIGGER warn AFTER INSERT OR UPDATE ON idgen.worker_id FOR EACH ROW EXECUTE FUNCTION warn()",
    );
    let _standby = primary.standby_builder().synchronous().start();
    let mut client = primary.client();
    set_up_keeper_session(&mut client);
    let grant = acquire(&mut client, "clock_timestamp()");
    assert_eq!(value::<i64>(&mut client, &confirmation(grant.token)), grant.until_us);
}

#[test]
fn confirmation_fails_on_a_standby() {
    let primary = with_pool(builder(), 4);
    let grant = acquire(&mut primary.client(), "clock_timestamp()");
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    expect_error(&mut standby.client(), &confirmation(grant.token), "25006");
}
