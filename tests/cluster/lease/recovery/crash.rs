//! Crashes and restarts: a term that a client knows survives under its token, and no token is issued again.

use idgen_testkit::lease::{acquire, assert_held, take_if_free, term};
use idgen_testkit::sql::{backend_pid, execute, value};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;

use super::{HOUR_US, SECOND_US, TICK_US, assert_free_between, builder, wait_for_walwriter};
use crate::boot_us;

/// A call right before the crash, and what the row of the lease 'known' must show after it.
const CALLS: [(&str, &str); 6] = [
    ("SELECT lease_acquire('known', ttl => '1 hour')", "depth = 1"),
    ("SELECT lease_try_acquire('known', ttl => '1 hour')", "depth = 1"),
    ("SELECT lease_acquire('known', token => $token)", "depth = 2"),
    ("SELECT lease_renew('known', $token, ttl => '2 hours')", "ttl_us = 7200000000"),
    ("SELECT lease_renew_many('{known}', '{$token}', ttl => '2 hours')", "ttl_us = 7200000000"),
    ("SELECT lease_revoke('known')", "depth = 0"),
];

/// Makes the call, then an ordinary insert, and stops the server at once. Returns the token, and whether the insert was lost.
fn call_and_crash(cluster: &Cluster, call: &str, stop: impl Fn(&Cluster)) -> (i64, bool) {
    execute(&mut cluster.client(), "DELETE FROM idgen.lease; DELETE FROM ordinary");
    let mut client = cluster.client();
    let mut token = 0;
    if call.contains("$token") || call.contains("revoke") {
        token = acquire(&mut client, "'known', ttl => '1 hour'").token;
    }
    execute(&mut client, &call.replace("$token", &token.to_string()));
    let token = term(&mut client, "known").token;
    execute(&mut client, "INSERT INTO ordinary VALUES (1)");
    stop(cluster);
    cluster.start_again();
    let mut client = cluster.client();
    (token, value(&mut client, "SELECT count(*) = 0 FROM ordinary"))
}

fn immediate(cluster: &Cluster) {
    cluster.stop(Stop::Immediate);
}

/// Crashes after each of the calls. Returns the number of lost inserts.
fn crash_after_each(cluster: &Cluster) -> usize {
    let mut highest = 0;
    let mut lost = 0;
    for (n, (call, expected)) in CALLS.iter().enumerate() {
        let kill: fn(&Cluster) = if n % 2 == 0 { immediate } else { Cluster::kill9_postmaster };
        let (token, is_lost) = call_and_crash(cluster, call, kill);
        assert!(token > highest, "{call}: token {token} after {highest}");
        let mut client = cluster.client();
        let found = format!("SELECT count(*) = 1 FROM idgen.lease WHERE token = {token} AND {expected}");
        assert!(value::<bool>(&mut client, &found), "{call}: no row with {expected}");
        if *expected != "depth = 0" {
            assert_held(&mut client, "known");
            // The token proves ownership in any session.
            execute(&mut client, &format!("SELECT lease_fence('known', {token}), lease_renew('known', {token})"));
        }
        highest = acquire(&mut client, "'next'").token;
        assert!(highest > token, "{call}: token {highest} after {token}");
        lost += usize::from(is_lost);
    }
    lost
}

#[test]
fn term_survives_a_crash_with_synchronous_commit_off() {
    // A server that flushes only what a commit waits for.
    let cluster = builder().conf("wal_writer_delay", "10s").start_with_extension();
    cluster.execute(
        "CREATE TABLE ordinary (n int);
         ALTER DATABASE postgres SET synchronous_commit = off;
         ALTER ROLE postgres SET synchronous_commit = off",
    );
    let mut lost = 0;
    for _ in 0..rounds(1, 20) {
        lost += crash_after_each(&cluster);
    }
    assert!(lost > 0, "no insert was lost, so the crashes prove nothing");
}

fn last_value(client: &mut Client) -> i64 {
    value(client, "SELECT last_value FROM idgen.lease_token")
}

/// Tokens of uncommitted transactions too, which the sequence forgets in a crash.
#[test]
fn crash_repeats_no_token_that_was_seen_smoke() {
    let cluster = builder().conf("wal_writer_delay", "10s").start_with_extension();
    let mut is_set_back = false;
    let mut highest = 0;
    for round in 0..rounds(4, 40) {
        let mut client = cluster.client();
        execute(&mut client, "BEGIN");
        for n in 0..50 {
            let token = acquire(&mut client, &format!("'{n}'")).token;
            assert!(token > highest, "{token} after {highest}");
            highest = token;
        }
        match round % 4 {
            0 => cluster.stop(Stop::Immediate),
            1 => cluster.kill9_postmaster(),
            2 => cluster.kill9(backend_pid(&mut client)),
            _ => cluster.stop(Stop::Fast),
        }
        if round % 4 == 2 {
            cluster.wait_until_ready();
        } else {
            cluster.start_again();
        }
        is_set_back |= last_value(&mut cluster.client()) < highest;
    }
    assert!(is_set_back, "no crash has set the sequence back, so the test proves nothing");
}

/// The postmaster survives, so the server knows that the sessions have ended and when the other terms end.
#[test]
fn crash_of_another_backend_frees_bound_leases() {
    let cluster = builder().start_with_extension();
    let mut victim = cluster.client();
    let mut client = cluster.client();
    acquire(&mut client, "'bound', ttl => '1 day', bind_session => true");
    acquire(&mut client, "'unbound', ttl => '1 hour'");
    acquire(&mut client, "'ends', ttl => '2 s'");
    let (unbound, ends) = (term(&mut client, "unbound"), term(&mut client, "ends"));
    cluster.kill9(backend_pid(&mut victim));
    cluster.wait_until_ready();

    let mut client = cluster.client();
    assert!(take_if_free(&mut client, "bound").is_some());
    assert_held(&mut client, "unbound");
    assert_eq!(term(&mut client, "unbound"), unbound);
    assert_free_between(&cluster, "ends", ends.ends_us, ends.ends_us);
    assert!(unbound.ends_us > boot_us(), "the check is too late to prove anything");
}

/// A client may not notice the end of its bound session, so the term begins again with the server. An unbound term follows
/// the clock, which has not stopped.
fn assert_terms_after_restart(stop: fn(&Cluster)) {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    for name in ["bound", "bound long"] {
        acquire(&mut client, &format!("'{name}', ttl => '2 s', bind_session => true"));
    }
    // By their rows one ended long ago and lives only by its session, and the other lasts longer.
    cluster.execute(&format!(
        "UPDATE idgen.lease SET ends_us = {} WHERE name = 'bound';
         UPDATE idgen.lease SET ttl_us = {SECOND_US}, ends_us = {} WHERE name = 'bound long'",
        boot_us() - HOUR_US,
        boot_us() + HOUR_US
    ));
    acquire(&mut client, "'unbound', ttl => '1 hour'");
    acquire(&mut client, "'ends', ttl => '1 s'");
    let (unbound, ends) = (term(&mut client, "unbound"), term(&mut client, "ends"));
    assert_held(&mut cluster.client(), "bound");
    drop(client);

    stop(&cluster);
    let before_us = boot_us();
    cluster.start_again();
    let mut client = cluster.client();
    wait_for_walwriter(&cluster);
    let begun_us = boot_us();
    assert_eq!(term(&mut client, "unbound"), unbound);
    assert_held(&mut client, "unbound");
    assert_held(&mut client, "bound long");
    let ttl_us = 2 * SECOND_US;
    assert_free_between(&cluster, "bound", before_us + ttl_us, begun_us + ttl_us + TICK_US);
    assert_free_between(&cluster, "ends", ends.ends_us, ends.ends_us);
    assert!(unbound.ends_us > boot_us(), "the check is too late to prove anything");
}

#[test]
fn bound_terms_begin_again_after_a_fast_restart() {
    assert_terms_after_restart(|cluster| cluster.stop(Stop::Fast));
}

#[test]
fn bound_terms_begin_again_after_a_crash_smoke() {
    assert_terms_after_restart(Cluster::kill9_postmaster);
}
