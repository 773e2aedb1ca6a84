//! `bind_session`: a lease lasts as long as its session holds the advisory lock of its token.

use idgen_testkit::lease::try_acquire;
use idgen_testkit::script::play_each;
use idgen_testkit::sql::{PATIENCE, value};
use idgen_testkit::{Builder, Cluster};

use crate::process::Psql;
use crate::{boot_us, builder, states};

/// Runs a script for each of its cases. `BIND` acquires a bound lease and returns its token. `COUNT` counts the leases that
/// are bound to sessions: 27763 is the class of their advisory locks.
fn play_bound<const N: usize>(builder: Builder, script: &str, names: [&str; N], cases: &[[&str; N]]) {
    let cluster: Cluster = builder.start_with_extension();
    let script = script
        .replace("BIND", "SELECT token FROM lease_acquire('b', '1 day', bind_session => true)")
        .replace("COUNT", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 27763");
    play_each(&cluster, &script, names, cases);
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
