//! Standbys: a synchronous one has every token that a client knows. A promoted one repeats no token and respects every term
//! that it has.

use idgen_testkit::Stop;
use idgen_testkit::lease::{acquire, assert_held, take_if_free, term};
use idgen_testkit::sql::{PATIENCE, backend_pid, column, execute, value, wait_for_event};

use super::{HOUR_US, SECOND_US, TICK_US, assert_free_between, builder, by_another_clock, wait_for_walwriter};
use crate::boot_us;

/// The commit of an acquire waits for the standby under every setting of synchronous_commit. Other commits follow it.
#[test]
fn synchronous_standby_has_the_token_before_the_client() {
    let primary = builder().start_with_extension();
    primary.execute("CREATE TABLE t (n int); ALTER ROLE postgres SET synchronous_commit = off");
    let standby = primary.standby_builder().synchronous().start();
    let mut observer = primary.client();
    let renewed = acquire(&mut observer, "'renewed', ttl => '1 hour'").token;
    standby.stop(Stop::Fast);

    let by_setting = |name: &'static str, setting: Option<&'static str>| {
        let mut client = primary.client();
        if let Some(setting) = setting {
            execute(&mut client, &format!("SET synchronous_commit = {setting}"));
        }
        if name != "on" {
            execute(&mut client, "INSERT INTO t VALUES (1)");
        }
        (name, client)
    };
    let sessions = [
        by_setting("role", None),
        by_setting("off", Some("off")),
        by_setting("local", Some("local")),
        by_setting("on", Some("on")),
    ];
    let granted: Vec<(String, i64)> = std::thread::scope(|scope| {
        let waiters: Vec<_> = sessions
            .into_iter()
            .map(|(name, mut client)| {
                let pid = backend_pid(&mut client);
                let setting: String = value(&mut client, "SHOW synchronous_commit");
                let waiter = scope.spawn(move || {
                    let token = acquire(&mut client, &format!("'{name}', ttl => '1 hour'")).token;
                    assert_eq!(value::<String>(&mut client, "SHOW synchronous_commit"), setting);
                    (name.to_owned(), token)
                });
                wait_for_event(&primary, pid, "SyncRep");
                waiter
            })
            .collect();
        let renewal = scope.spawn(|| {
            let mut client = primary.client();
            execute(&mut client, "SET application_name = 'renewal'");
            execute(&mut client, &format!("SELECT lease_renew('renewed', {renewed}, ttl => '2 hours')"));
        });
        let waits = "SELECT count(*) = 1 FROM pg_stat_activity
                     WHERE application_name = 'renewal' AND wait_event = 'SyncRep'";
        primary.wait_for(PATIENCE, "the renewal to wait", || value(&mut observer, waits));
        // None has an answer yet: all wait for the standby.
        standby.start_again();
        renewal.join().unwrap();
        waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect()
    });
    primary.kill9_postmaster();
    standby.promote();
    let mut client = standby.client();
    assert_eq!(term(&mut client, "renewed").ttl_us, 2 * HOUR_US);
    for (name, token) in &granted {
        assert_eq!(term(&mut client, name).token, *token, "{name}");
        assert_held(&mut client, name);
        execute(&mut client, &format!("SELECT lease_renew('{name}', {token})"));
    }
    let next = acquire(&mut client, "'next'").token;
    assert!(granted.iter().all(|(_, token)| next > *token), "{next} after {granted:?}");
}

/// If the wait for the standby is cancelled, PostgreSQL answers the client with a warning. After a promotion the lease can be
/// granted again, with a greater token.
#[test]
fn token_is_not_repeated_after_a_cancelled_wait_for_the_standby() {
    let primary = builder().start_with_extension();
    let standby = primary.standby_builder().synchronous().start();
    standby.stop(Stop::Fast);
    let mut client = primary.client();
    let pid = backend_pid(&mut client);
    let granted = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| acquire(&mut client, "'a', ttl => '1 hour'").token);
        wait_for_event(&primary, pid, "SyncRep");
        primary.execute(&format!("SELECT pg_cancel_backend({pid})"));
        waiter.join().unwrap()
    });
    assert!(primary.log().contains("WARNING:  canceling wait for synchronous replication due to user request"));
    assert_eq!(term(&mut primary.client(), "a").token, granted);
    primary.kill9_postmaster();
    standby.start_again();
    standby.promote();
    let mut client = standby.client();
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.lease"), 0);
    let next = take_if_free(&mut client, "a").expect("the standby has no holder");
    assert!(next > granted, "{next} after {granted}");
}

#[test]
fn promoted_asynchronous_standby_keeps_its_terms_and_repeats_no_token() {
    const TTL_US: i64 = 3 * SECOND_US;
    let primary = builder().start_with_extension();
    let mut client = primary.client();
    for name in ["long", "bound long"] {
        let bind = name.starts_with("bound");
        acquire(&mut client, &format!("'{name}', ttl => '1 hour', bind_session => {bind}"));
    }
    // A standby has another clock of leases than its primary. These rows look as another machine may write them.
    for (name, bind) in [("early", false), ("late", false), ("bound early", true), ("bound late", true)] {
        acquire(&mut client, &format!("'{name}', ttl => '3 s', bind_session => {bind}"));
        by_another_clock(&mut client, name, if name.ends_with("late") { i64::MAX } else { 0 });
    }
    acquire(&mut client, "'bound', ttl => '3 s', bind_session => true");
    execute(&mut client, &format!("UPDATE idgen.lease SET ends_us = {} WHERE name = 'bound'", boot_us() - HOUR_US));
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    // A session from before the promotion does not know the start of the server's writes yet.
    let mut early = standby.client();
    let held = "SELECT count(*) FROM idgen.leases WHERE state = 'held'";
    assert_eq!(value::<i64>(&mut early, held), 7);
    standby.stop(Stop::Fast);

    let tokens = "SELECT (lease_acquire('lost ' || n)).token FROM generate_series(1, 100) AS n";
    let seen: Vec<i64> = column(&mut client, tokens);
    let highest = *seen.iter().max().expect("a hundred tokens");
    primary.kill9_postmaster();
    standby.start_again();
    let mut client = standby.client();
    assert_eq!(value::<i64>(&mut client, held), 7);
    let replayed: i64 = value(&mut client, "SELECT last_value FROM idgen.lease_token");
    assert!(replayed < highest, "the standby's sequence is up to date, so the test proves nothing");

    let before_us = boot_us();
    standby.promote();
    wait_for_walwriter(&standby);
    let latest_us = boot_us() + TTL_US + TICK_US;
    // This session is from before the promotion too.
    for name in ["long", "bound long"] {
        assert_held(&mut client, name);
    }
    let next = take_if_free(&mut client, "lost 1").expect("the standby has no holder");
    assert!(next > highest, "{next} after {highest}");
    for name in ["early", "late", "bound early", "bound late", "bound"] {
        let token = assert_free_between(&standby, name, before_us + TTL_US, latest_us);
        assert!(token > highest, "{token} after {highest}");
    }
}

/// Clones of a virtual machine from one image of its memory share the boot id, and their boot clocks differ. By the clock
/// here, which is ahead of the primary's, the term is over.
#[test]
fn term_lasts_its_ttl_after_a_failover_to_a_clone_of_the_machine() {
    let primary = builder().start_with_extension();
    let mut client = primary.client();
    acquire(&mut client, "'cloned', ttl => '1 hour'");
    execute(&mut client, "UPDATE idgen.lease SET ends_us = 0 WHERE name = 'cloned'");
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    primary.kill9_postmaster();
    standby.promote();
    assert_held(&mut standby.client(), "cloned");
    standby.restart();
    assert_held(&mut standby.client(), "cloned");
}

/// After a crash of a backend, a standby draws another number for its data. Rows name the clock with that one, as after a
/// restart: under another name, terms would count again from the start.
#[test]
fn promoted_standby_names_its_clock_as_before_after_a_restart() {
    let primary = builder().start_with_extension();
    let standby = primary.standby();
    standby.kill9(backend_pid(&mut standby.client()));
    standby.wait_until_ready();
    standby.promote();
    standby.execute("SELECT lease_acquire('before', '1 hour')");
    standby.restart();
    standby.execute("SELECT lease_acquire('after', '1 hour')");
    let clocks = "SELECT count(DISTINCT clock) FROM idgen.lease";
    assert_eq!(value::<i64>(&mut standby.client(), clocks), 1);
}
