//! `bind_session`: a bound lease when its session ends.

use idgen_testkit::Cluster;
use idgen_testkit::lease::{acquire, try_acquire};
use idgen_testkit::sql::{PATIENCE, column, execute, expect_error, value};
use postgres::Client;

use crate::process::Psql;
use crate::{builder, counter, release, renew, states, wait_for_state};

const BOUND: &str = "'b', '1 day', bind_session => true";

/// Acquires the lease in a client that is then killed. Returns the token.
fn token_of_killed_client(cluster: &Cluster) -> i64 {
    let mut holder = Psql::start(cluster);
    let token = holder.ask(&format!("SELECT token FROM lease_acquire({BOUND})"));
    holder.kill_and_wait(cluster);
    token.parse().expect("a token")
}

#[test]
fn bound_lease_is_free_once_its_client_is_killed_smoke() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    let token = token_of_killed_client(&cluster);
    assert_eq!(states(&mut client, "b"), ["0 expired"]);
    let taken = try_acquire(&mut client, "'b', '0', '1 day'").expect("the lease is free");
    assert!(taken.token > token);
    assert_eq!(counter(&mut client, "take_overs"), 1);
}

#[test]
fn bound_lease_is_free_once_its_session_releases_all_locks() {
    let cluster = builder().start_with_extension();
    let (mut holder, mut client) = (cluster.client(), cluster.client());
    for end in ["DISCARD ALL", "SELECT pg_advisory_unlock_all()"] {
        let token = acquire(&mut holder, BOUND).token;
        assert_eq!(try_acquire(&mut client, "'b'"), None);
        execute(&mut holder, end);
        let taken = try_acquire(&mut client, "'b', '0', '1 day'").expect(end);
        // Late calls of the holder raise errors, without warnings about a lock that is not held.
        for proof in ["lease_renew", "lease_fence", "lease_release"] {
            expect_error(&mut holder, &format!("SELECT {proof}('b', {token})"), "55000");
        }
        assert!(release(&mut client, "b", taken.token));
    }
    assert!(!cluster.log().contains("you don't own a lock"), "{}", cluster.log());
}

/// Another session may renew with the token if no one has taken the lease over. The term then lasts its ttl.
#[test]
fn bound_lease_renewed_after_its_session_lasts_its_ttl() {
    let cluster = builder().start_with_extension();
    let (mut client, mut other) = (cluster.client(), cluster.client());
    for renewal in [
        "SELECT lease_renew('b', $token)",
        "SELECT lease_renew_many('{b}', '{$token}')",
        "SELECT lease_acquire('b', token => $token)",
    ] {
        let token = token_of_killed_client(&cluster);
        execute(&mut client, &renewal.replace("$token", &token.to_string()));
        assert_eq!(states(&mut other, "b"), ["0 held"], "{renewal}");
        assert_eq!(try_acquire(&mut other, "'b'"), None, "{renewal}");
        let shown = "SELECT bound::text || ' ' || (expires_at < now() + interval '2 days') FROM idgen.leases";
        assert_eq!(column::<String>(&mut client, shown), ["false true"], "{renewal}");
        renew(&mut client, "b", token);
        execute(&mut client, "DELETE FROM idgen.lease");
    }
}

/// The release is rolled back with the session's transaction. The end of the session frees the lease.
#[test]
fn bound_lease_is_free_once_its_session_ends_inside_a_transaction() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    for last in
        ["SELECT lease_release('b', $token)", "SELECT lease_fence('b', $token)", "SELECT lease_renew('b', $token)"]
    {
        let mut holder = Psql::start(&cluster);
        let token = holder.ask(&format!("SELECT token FROM lease_acquire({BOUND})"));
        holder.send("BEGIN");
        holder.ask(&last.replace("$token", &token));
        assert_eq!(states(&mut client, "b"), ["0 held"], "{last}");
        holder.kill_and_wait(&cluster);
        let taken = try_acquire(&mut client, "'b', '0', '1 day'").expect(last);
        assert!(release(&mut client, "b", taken.token));
    }
}

#[test]
fn lock_delay_begins_when_another_session_sees_the_end_of_the_bound_one() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    cluster.execute("SELECT lease_define('b', lock_delay => '1 day')");
    token_of_killed_client(&cluster);
    assert_eq!(try_acquire(&mut client, "'b'"), None);
    assert_eq!(states(&mut client, "b"), ["0 resting"]);
    cluster.execute("SELECT lease_define('b', lock_delay => '100 ms')");
    wait_for_state(&cluster, "b", "0 expired");
    assert!(try_acquire(&mut client, "'b'").is_some());
}

/// Waiters that give up during the lock delay neither restart it nor block the holder.
#[test]
fn lock_delay_continues_while_waiters_give_up() {
    let cluster = builder().start_with_extension();
    let (mut client, mut holder) = (cluster.client(), cluster.client());
    cluster.execute("SELECT lease_define('b', lock_delay => '1 s')");
    let token = token_of_killed_client(&cluster);
    execute(&mut client, "SET lock_timeout = '300 ms'");
    cluster.wait_for(PATIENCE, "the rest to end", || {
        let acquired = client.simple_query("SELECT lease_acquire('b', '1 day')");
        acquired.map_err(|error| assert_eq!(error.code().map(|code| code.code()), Some("55P03"), "{error:?}")).is_ok()
    });
    expect_error(&mut holder, &format!("SELECT lease_renew('b', {token})"), "55000");

    cluster.execute("DELETE FROM idgen.lease; SELECT lease_define('b', lock_delay => '1 day')");
    let token = token_of_killed_client(&cluster);
    execute(&mut client, "BEGIN");
    assert_eq!(try_acquire(&mut client, "'b'"), None);
    renew(&mut holder, "b", token);
    execute(&mut client, "COMMIT");
    assert_eq!(states(&mut client, "b"), ["0 held"]);
}

/// The session lock belongs to one token only.
#[test]
fn revoked_bound_lease_is_free_while_its_session_lives() {
    let cluster = builder().start_with_extension();
    let (mut holder, mut client) = (cluster.client(), cluster.client());
    let token = acquire(&mut holder, BOUND).token;
    assert!(value::<bool>(&mut client, "SELECT lease_revoke('b')"));
    let taken = try_acquire(&mut client, "'b', '0', '1 day', bind_session => true").expect("the lease was revoked");
    expect_error(&mut holder, &format!("SELECT lease_renew('b', {token})"), "55000");
    drop(holder);
    assert_eq!(value::<Vec<String>>(&mut client, "SELECT array_agg(state) FROM idgen.leases"), ["held"]);
    let mut other: Client = cluster.client();
    assert_eq!(try_acquire(&mut other, "'b'"), None);
    assert!(release(&mut client, "b", taken.token));
}
