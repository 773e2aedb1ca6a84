//! `bind_session`: a lease lasts as long as its session holds the advisory lock of its token.

use idgen_testkit::lease::{acquire, try_acquire};
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, value};
use postgres::Client;

use crate::process::Psql;
use crate::{boot_us, builder, release, states};

const BOUND: &str = "'b', '1 day', bind_session => true";

/// The number of leases bound to sessions. 27763 is the class of their advisory locks.
fn session_locks(client: &mut Client) -> i64 {
    value(client, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 27763")
}

#[test]
fn rollback_of_the_acquire_releases_the_session_lock() {
    let cluster = builder().conf("max_prepared_transactions", "1").start_with_extension();
    let (mut client, mut other) = (cluster.client(), cluster.client());
    for (before, undo, after) in [
        ("BEGIN", "ROLLBACK", ""),
        ("BEGIN; SAVEPOINT s", "ROLLBACK TO s", "COMMIT"),
        ("BEGIN; SAVEPOINT s; SAVEPOINT t", "RELEASE t; ROLLBACK TO s", "COMMIT"),
        ("BEGIN; SAVEPOINT s", "RELEASE s; ROLLBACK", ""),
    ] {
        execute(&mut client, before);
        acquire(&mut client, BOUND);
        assert_eq!(session_locks(&mut other), 1);
        execute(&mut client, undo);
        assert_eq!(session_locks(&mut other), 0, "{undo}");
        execute(&mut client, after);
        assert!(states(&mut other, "b").is_empty(), "{undo}");
    }
    execute(&mut client, &format!("BEGIN; SELECT lease_acquire({BOUND})"));
    expect_error(&mut client, "PREPARE TRANSACTION 'p'", "0A000");
    // The server sends an error before it rolls the transaction back.
    execute(&mut client, "SELECT 1");
    assert_eq!(session_locks(&mut other), 0);
    let text = format!("DO $$ BEGIN PERFORM lease_acquire({BOUND}); RAISE 'x'; END $$");
    expect_error(&mut client, &text, "P0001");
    execute(&mut client, "SELECT 1");
    assert_eq!(session_locks(&mut other), 0);
    assert!(try_acquire(&mut other, "'b', '0', '1 day'").is_some());
}

#[test]
fn commit_of_the_last_release_releases_the_session_lock() {
    let cluster = builder().start_with_extension();
    let (mut client, mut other) = (cluster.client(), cluster.client());
    for (statements, is_kept) in [
        ("$release", false),
        ("BEGIN; $release; COMMIT", false),
        ("BEGIN; $release; ROLLBACK", true),
        ("BEGIN; SAVEPOINT s; $release; ROLLBACK TO s; COMMIT", true),
        ("BEGIN; SAVEPOINT s; $release; RELEASE s; COMMIT", false),
        ("$again; $release", true),
        ("$again; BEGIN; $release; $release; COMMIT", false),
        ("BEGIN; $again; ROLLBACK", true),
    ] {
        let token = acquire(&mut client, BOUND).token;
        let statements = statements
            .replace("$release", &format!("SELECT lease_release('b', {token})"))
            .replace("$again", &format!("SELECT lease_acquire({BOUND}, token => {token})"));
        execute(&mut client, &statements);
        assert_eq!(session_locks(&mut other), i64::from(is_kept), "{statements}");
        assert_eq!(try_acquire(&mut other, "'b'").is_none(), is_kept, "{statements}");
        execute(&mut client, "DELETE FROM idgen.lease");
        execute(&mut client, "DISCARD ALL");
    }
    // The lock is held until the release is visible to others.
    let token = acquire(&mut client, BOUND).token;
    execute(&mut client, &format!("BEGIN; SELECT lease_release('b', {token})"));
    assert_eq!(session_locks(&mut other), 1);
    assert_eq!(states(&mut other, "b"), ["0 held"]);
    execute(&mut client, "COMMIT");
    assert_eq!(session_locks(&mut other), 0);
}

#[test]
fn each_bound_lease_has_its_own_session_lock() {
    let cluster = builder().start_with_extension();
    let (mut client, mut other) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    cluster.execute("SELECT lease_define('b', 2)");
    let tokens = ["'b'", "'b'", "'c'"].map(|name| acquire(&mut client, &format!("{name}, bind_session => true")).token);
    assert_eq!(session_locks(&mut other), 3);
    assert!(release(&mut other, "b", tokens[0]), "the token proves ownership in any session");
    assert_eq!(states(&mut other, "b"), ["0 free", "1 held"]);
    assert!(release(&mut client, "b", tokens[1]) && release(&mut client, "c", tokens[2]));
    // The lock of a lease that another session released is kept until the session ends.
    assert_eq!(session_locks(&mut other), 1);
    assert!(try_acquire(&mut other, "'b'").is_some() && try_acquire(&mut other, "'b'").is_some());
    drop(client);
    let gone = format!("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}");
    cluster.wait_for(PATIENCE, "the session to end", || value(&mut other, &gone));
    assert_eq!(session_locks(&mut other), 0);
}

#[test]
fn bound_lease_of_a_paused_client_outlasts_its_ttl() {
    let cluster = builder().start_with_extension();
    let mut observer = cluster.client();
    cluster.execute("CREATE TABLE t (n int)");
    let mut holder = Psql::start(&cluster);
    let token = holder.ask("SELECT token FROM lease_acquire('b', '100 ms', bind_session => true)");
    let paused = holder.pause();
    let ends_us: i64 = value(&mut observer, "SELECT ends_us FROM idgen.lease");
    cluster.wait_for(PATIENCE, "the ttl to be over", || boot_us() > ends_us);
    assert_eq!(try_acquire(&mut observer, "'b', '200 ms'"), None);
    assert_eq!(states(&mut observer, "b"), ["0 held"]);
    let shown = "SELECT bound AND expires_at IS NULL FROM idgen.leases";
    assert!(value::<bool>(&mut observer, shown));
    paused.resume();
    holder.send(&format!("BEGIN; SELECT lease_fence('b', {token}); INSERT INTO t VALUES (1); COMMIT"));
    assert_eq!(holder.answer(), "", "an empty value of type void");
    assert_eq!(holder.ask(&format!("SELECT lease_release('b', {token})")), "t");
    assert_eq!(value::<i32>(&mut observer, "SELECT n FROM t"), 1);
}

#[test]
fn lease_cannot_be_bound_after_its_acquire() {
    let cluster = builder().start_with_extension();
    let (mut client, mut other) = (cluster.client(), cluster.client());
    let token = acquire(&mut client, "'b', '1 day'").token;
    let again = format!("SELECT lease_acquire('b', token => {token}, bind_session => true)");
    expect_error(&mut client, &again, "0A000");
    assert_eq!(session_locks(&mut other), 0);
    assert!(release(&mut client, "b", token), "the failed acquire does not count");

    let token = acquire(&mut client, BOUND).token;
    let again = format!("SELECT lease_acquire('b', token => {token}, bind_session => true)");
    expect_error(&mut other, &again, "0A000");
    execute(&mut client, &again);
    assert!(!release(&mut other, "b", token) && release(&mut other, "b", token));
}
