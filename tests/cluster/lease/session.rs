//! `bind_session`: a lease lasts as long as its session holds the advisory lock of its token, and ends with the session.

use idgen_testkit::lease::try_acquire;
use idgen_testkit::script::play_each;
use idgen_testkit::sql::{PATIENCE, execute, expect_error, value};
use idgen_testkit::{Builder, Cluster};

use crate::process::Psql;
use crate::{boot_us, builder, counter, states};

const BIND: &str = "SELECT token FROM lease_acquire('b', '1 day', bind_session => true)";

/// Runs a script for each of its cases. `BIND` acquires a bound lease and returns its token. `COUNT` counts the leases that
/// are bound to sessions: 27763 is the class of their advisory locks. `END` ends the session of the holder.
fn play_bound<const N: usize>(builder: Builder, script: &str, names: [&str; N], cases: &[[&str; N]]) -> Cluster {
    let cluster: Cluster = builder.start_with_extension();
    let end = "holder leaves
         until: SELECT count(*) FROM pg_stat_activity WHERE pid = $holder_pid -> 0";
    let script = script
        .replace("BIND", BIND)
        .replace("COUNT", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 27763")
        .replace("END\n", &format!("{end}\n"));
    play_each(&cluster, &script, names, cases);
    cluster
}

#[test]
fn rollback_of_the_acquire_releases_the_session_lock() {
    play_bound(
        builder().conf("max_prepared_transactions", "1"),
        "client: $before; BIND
         other: COUNT -> 1
         client: $undo -> $outcome
         other: COUNT -> 0
         client: COMMIT
         other: SELECT count(*) FROM idgen.leases -> 0
         client: DO $$ BEGIN PERFORM lease_acquire('b', '1 day', bind_session => true); RAISE 'x'; END $$ -> error P0001
         other: COUNT -> 0
         other: SELECT lease_release('b', token) FROM lease_try_acquire('b', '0', '1 day') -> t",
        ["$before", "$undo", "$outcome"],
        &[
            ["BEGIN", "ROLLBACK", "nothing"],
            ["BEGIN; SAVEPOINT s", "ROLLBACK TO s", "nothing"],
            ["BEGIN; SAVEPOINT s; SAVEPOINT t", "RELEASE t; ROLLBACK TO s", "nothing"],
            ["BEGIN; SAVEPOINT s", "RELEASE s; ROLLBACK", "nothing"],
            ["BEGIN", "PREPARE TRANSACTION 'p'", "error 0A000"],
        ],
    );
}

#[test]
fn commit_of_the_last_release_releases_the_session_lock() {
    play_bound(
        builder(),
        "client: BIND -> $token
         client: $statements
         other: COUNT -> $bound
         other: SELECT count(*) FROM lease_try_acquire('b') -> $free
         client: DELETE FROM idgen.lease
         client: DISCARD ALL",
        ["$statements", "$bound", "$free", "$release", "$again"],
        &[
            ["$release", "0", "1"],
            ["BEGIN; $release; COMMIT", "0", "1"],
            ["BEGIN; $release; ROLLBACK", "1", "0"],
            ["BEGIN; SAVEPOINT s; $release; ROLLBACK TO s; COMMIT", "1", "0"],
            ["BEGIN; SAVEPOINT s; $release; RELEASE s; COMMIT", "0", "1"],
            ["$again; $release", "1", "0"],
            ["$again; BEGIN; $release; $release; COMMIT", "0", "1"],
            ["BEGIN; $again; ROLLBACK", "1", "0"],
        ]
        .map(|[statements, bound, free]| {
            let again = "SELECT lease_acquire('b', '1 day', bind_session => true, token => $token)";
            let release = "SELECT lease_release('b', $token)";
            [statements, bound, free, release, again]
        }),
    );
    // The lock is held until the release is visible to others.
    play_bound(
        builder(),
        "client: BIND -> $token
         client: BEGIN; SELECT lease_release('b', $token)
         other: COUNT -> 1
         other: SELECT slot, state FROM idgen.leases -> 0|held
         client: COMMIT
         other: COUNT -> 0",
        [],
        &[[]],
    );
}

/// A term that begins releases the locks of those that are over for good.
#[test]
fn rollback_of_the_end_keeps_the_session_lock() {
    play_bound(
        builder(),
        "client: BIND -> $token
         client: BEGIN; SAVEPOINT s; SELECT $end; SELECT lease_acquire('c', bind_session => true); ROLLBACK TO s; COMMIT
         other: COUNT -> 1
         other: SELECT lease_try_acquire('b') -> nothing
         client: SELECT lease_release('b', $token) -> t
         other: COUNT -> 0",
        ["$end"],
        &[["lease_release('b', $token)"], ["lease_revoke('b')"], ["lease_revoke('b'); SELECT lease_drop('b')"]],
    );
}

#[test]
fn each_bound_lease_has_its_own_session_lock() {
    play_bound(
        builder(),
        "client: SELECT lease_define('b', 2)
         client: BIND -> $one
         client: BIND -> $two
         client: SELECT token FROM lease_acquire('c', bind_session => true) -> $c
         other: COUNT -> 3
         -- The token proves ownership in any session.
         other: SELECT lease_release('b', $one) -> t
         other: SELECT slot, state FROM idgen.leases WHERE name = 'b' ORDER BY slot -> 0|free, 1|held
         client: SELECT lease_release('b', $two), lease_release('c', $c) -> t|t
         -- The lock of a lease that another session released is kept until the session ends.
         other: COUNT -> 1
         other: SELECT slot FROM lease_try_acquire('b') -> 0
         other: SELECT slot FROM lease_try_acquire('b') -> 1
         client leaves
         until: SELECT count(*) FROM pg_stat_activity WHERE pid = $client_pid -> 0
         other: COUNT -> 0",
        [],
        &[[]],
    );
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
    play_bound(
        builder(),
        "client: SELECT token FROM lease_acquire('b', '1 day') -> $token
         client: SELECT lease_acquire('b', token => $token, bind_session => true) -> error 0A000
         other: COUNT -> 0
         -- The failed acquire does not count.
         client: SELECT lease_release('b', $token) -> t
         client: BIND -> $token > $token
         other: SELECT lease_acquire('b', token => $token, bind_session => true) -> error 0A000
         client: SELECT lease_acquire('b', token => $token, bind_session => true)
         other: SELECT lease_release('b', $token), lease_release('b', $token) -> f|t",
        [],
        &[[]],
    );
}

#[test]
fn bound_lease_is_free_once_its_client_is_killed_smoke() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    let mut holder = Psql::start(&cluster);
    let token: i64 = holder.ask(BIND).parse().expect("a token");
    holder.kill_and_wait(&cluster);
    assert_eq!(states(&mut client, "b"), ["0 expired"]);
    assert!(try_acquire(&mut client, "'b', '0', '1 day'").is_some_and(|taken| taken.token > token));
    assert_eq!(counter(&mut client, "take_overs"), 1);
}

#[test]
fn bound_lease_is_free_once_its_session_releases_all_locks() {
    let cluster = play_bound(
        builder(),
        "holder: BIND -> $token
         other: SELECT lease_try_acquire('b') -> nothing
         holder: $end
         other: SELECT token FROM lease_try_acquire('b', '0', '1 day') -> $next > $token
         holder: SELECT lease_renew('b', $token) -> error 55000
         holder: SELECT lease_fence('b', $token) -> error 55000
         holder: SELECT lease_release('b', $token) -> error 55000
         other: SELECT lease_release('b', $next) -> t",
        ["$end"],
        &[["DISCARD ALL"], ["SELECT pg_advisory_unlock_all()"]],
    );
    // Late calls of the holder raise no warnings about a lock that is not held.
    assert!(!cluster.log().contains("you don't own a lock"), "{}", cluster.log());
}

/// Another session may renew with the token if no one has taken the lease over. The term then lasts its ttl.
#[test]
fn bound_lease_renewed_after_its_session_lasts_its_ttl() {
    play_bound(
        builder(),
        "holder: BIND -> $token
         END
         client: SELECT $renewal
         other: SELECT slot, state, bound, expires_at < now() + interval '2 days' FROM idgen.leases -> 0|held|f|t
         other: SELECT lease_try_acquire('b') -> nothing
         client: SELECT lease_renew('b', $token)
         client: DELETE FROM idgen.lease",
        ["$renewal"],
        &[
            ["lease_renew('b', $token)"],
            ["lease_renew_many('{b}', '{$token}')"],
            ["lease_acquire('b', token => $token)"],
        ],
    );
}

/// The release is rolled back with the session's transaction. The end of the session frees the lease.
#[test]
fn bound_lease_is_free_once_its_session_ends_inside_a_transaction() {
    play_bound(
        builder(),
        "holder: BIND -> $token
         holder: BEGIN; SELECT $last('b', $token)
         client: SELECT slot, state FROM idgen.leases -> 0|held
         END
         client: SELECT lease_release('b', token) FROM lease_try_acquire('b', '0', '1 day') -> t",
        ["$last"],
        &[["lease_release"], ["lease_fence"], ["lease_renew"]],
    );
}

#[test]
fn lock_delay_begins_when_another_session_sees_the_end_of_the_bound_one() {
    play_bound(
        builder(),
        "client: SELECT lease_define('b', lock_delay => '1 day')
         holder: BIND
         END
         client: SELECT lease_try_acquire('b') -> nothing
         client: SELECT slot, state FROM idgen.leases -> 0|resting
         client: SELECT lease_define('b', lock_delay => '100 ms')
         until: SELECT slot, state FROM idgen.leases -> 0|expired
         client: SELECT slot FROM lease_try_acquire('b') -> 0",
        [],
        &[[]],
    );
}

/// Waiters that give up during the lock delay neither restart it nor block the holder.
#[test]
fn lock_delay_continues_while_waiters_give_up() {
    let cluster = play_bound(
        builder(),
        "client: SELECT lease_define('b', lock_delay => '1 day')
         holder: BIND -> $token
         END
         client: BEGIN; SELECT lease_try_acquire('b') -> nothing
         other: SELECT lease_renew('b', $token) IS NOT NULL -> t
         client: COMMIT
         client: SELECT slot, state FROM idgen.leases -> 0|held
         client: DELETE FROM idgen.lease; SELECT lease_define('b', lock_delay => '1 s')
         holder: BIND
         END
         ",
        [],
        &[[]],
    );
    let mut client = cluster.client();
    let token: i64 = value(&mut client, "SELECT token FROM idgen.lease");
    execute(&mut client, "SET lock_timeout = '300 ms'");
    cluster.wait_for(PATIENCE, "the rest to end", || {
        let acquired = client.simple_query("SELECT lease_acquire('b', '1 day')");
        acquired.map_err(|error| assert_eq!(error.code().map(|code| code.code()), Some("55P03"), "{error:?}")).is_ok()
    });
    expect_error(&mut client, &format!("SELECT lease_renew('b', {token})"), "55000");
}

/// The session lock belongs to one token only.
#[test]
fn revoked_bound_lease_is_free_while_its_session_lives() {
    play_bound(
        builder(),
        "holder: BIND -> $token
         client: SELECT lease_revoke('b') -> t
         client: SELECT token FROM lease_try_acquire('b', '0', '1 day', bind_session => true) -> $next > $token
         holder: SELECT lease_renew('b', $token) -> error 55000
         END
         client: SELECT state FROM idgen.leases -> held
         other: SELECT lease_try_acquire('b') -> nothing
         client: SELECT lease_release('b', $next) -> t",
        [],
        &[[]],
    );
}
