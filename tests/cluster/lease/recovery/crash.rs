//! Crashes: a term that was told is there afterwards, under its token, and no token comes again.

use idgen_testkit::lease::{acquire, assert_held, take_if_free, term};
use idgen_testkit::sql::{backend_pid, execute, value};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;

use super::{assert_free_between, builder};
use crate::boot_us;

/// What is done right before the crash, and what the row of the lease 'told' must say after it.
const DEEDS: [(&str, &str); 6] = [
    ("SELECT lease_acquire('told', ttl => '1 hour')", "depth = 1"),
    ("SELECT lease_try_acquire('told', ttl => '1 hour')", "depth = 1"),
    ("SELECT lease_acquire('told', token => $token)", "depth = 2"),
    ("SELECT lease_renew('told', $token, ttl => '2 hours')", "ttl_us = 7200000000"),
    ("SELECT lease_renew_many('{told}', '{$token}', ttl => '2 hours')", "ttl_us = 7200000000"),
    ("SELECT lease_revoke('told')", "depth = 0"),
];

/// Does it, and then what a crash may undo; the server dies at once. Returns the token, and whether the row without a
/// promise was lost.
fn do_and_die(cluster: &Cluster, deed: &str, stop: impl Fn(&Cluster)) -> (i64, bool) {
    execute(&mut cluster.client(), "DELETE FROM idgen.lease; DELETE FROM without_promise");
    let mut client = cluster.client();
    let mut token = 0;
    if deed.contains("$token") || deed.contains("revoke") {
        token = acquire(&mut client, "'told', ttl => '1 hour'").token;
    }
    execute(&mut client, &deed.replace("$token", &token.to_string()));
    let token = term(&mut client, "told").token;
    execute(&mut client, "INSERT INTO without_promise VALUES (1)");
    stop(cluster);
    cluster.start_again();
    let mut client = cluster.client();
    (token, value(&mut client, "SELECT count(*) = 0 FROM without_promise"))
}

fn immediate(cluster: &Cluster) {
    cluster.stop(Stop::Immediate);
}

/// Nothing is flushed but what a commit waits for.
fn with_lazy_flushes(synchronous_commit: &str) -> Cluster {
    let cluster = builder().conf("wal_writer_delay", "10s").start_with_extension();
    cluster.execute(&format!(
        "CREATE TABLE without_promise (n int);
         ALTER DATABASE postgres SET synchronous_commit = {synchronous_commit};
         ALTER ROLE postgres SET synchronous_commit = {synchronous_commit}"
    ));
    cluster
}

/// Dies after each of the deeds; returns how many of the rows without a promise were lost.
fn survive(cluster: &Cluster, deeds: &[(&str, &str)]) -> usize {
    let mut highest = 0;
    let mut lost = 0;
    for (n, (deed, expected)) in deeds.iter().enumerate() {
        let kill: fn(&Cluster) = if n % 2 == 0 { immediate } else { Cluster::kill9_postmaster };
        let (token, is_lost) = do_and_die(cluster, deed, kill);
        assert!(token > highest, "{deed}: token {token} after {highest}");
        let mut client = cluster.client();
        let found = format!("SELECT count(*) = 1 FROM idgen.lease WHERE token = {token} AND {expected}");
        assert!(value::<bool>(&mut client, &found), "{deed}: nothing with {expected}");
        if *expected != "depth = 0" {
            assert_held(&mut client, "told");
            // Its holder is who has the token, in whatever session.
            execute(&mut client, &format!("SELECT lease_fence('told', {token}), lease_renew('told', {token})"));
        }
        highest = acquire(&mut client, "'next'").token;
        assert!(highest > token, "{deed}: token {highest} after {token}");
        lost += usize::from(is_lost);
    }
    lost
}

#[test]
fn what_was_told_outlives_a_crash_where_others_lose() {
    let cluster = with_lazy_flushes("off");
    let mut lost = 0;
    for _ in 0..rounds(1, 20) {
        lost += survive(&cluster, &DEEDS);
    }
    assert!(lost > 0, "no row without a promise was lost, so the crashes prove nothing");
}

#[test]
fn what_was_told_outlives_a_crash_where_nobody_loses() {
    let cluster = with_lazy_flushes("on");
    assert_eq!(survive(&cluster, &[DEEDS[0], DEEDS[3]]), 0);
}

fn last_value(client: &mut Client) -> i64 {
    value(client, "SELECT last_value FROM idgen.lease_token")
}

/// Also those of transactions that never committed, which the sequence forgets in a crash.
#[test]
fn no_token_that_was_seen_comes_again_smoke() {
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
    assert!(is_set_back, "no crash has set the sequence back, so they prove nothing");
}

/// The server lives, so it knows that the sessions have ended, and when the other terms end.
#[test]
fn the_crash_of_another_backend_frees_what_was_bound() {
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
    assert!(unbound.ends_us > boot_us(), "it was looked at too late to prove anything");
}
