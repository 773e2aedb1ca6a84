//! Rows written under another clock: before a reboot, or in another container. Their terms last the full ttl from the time
//! when this server began to write, whatever their times look like.

use idgen_testkit::Stop;
use idgen_testkit::lease::{acquire, assert_held, take_if_free, term};
use idgen_testkit::sql::{backend_pid, execute, value};

use super::{SECOND_US, TICK_US, assert_free_between, builder, by_another_clock, wait_for_walwriter};
use crate::boot_us;

/// The names, and the ends in their rows: long ago, and never.
const ENDS: [(&str, i64); 2] = [("early", 0), ("late", i64::MAX)];

#[test]
fn term_of_another_clock_lasts_its_ttl_from_the_start_of_the_server() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    for (name, ends_us) in ENDS {
        acquire(&mut client, &format!("'{name}', ttl => '3 s'"));
        by_another_clock(&mut client, name, ends_us);
        acquire(&mut client, &format!("'bound {name}', ttl => '3 s', bind_session => true"));
        by_another_clock(&mut client, &format!("bound {name}"), ends_us);
    }
    acquire(&mut client, "'long', ttl => '1 hour'");
    by_another_clock(&mut client, "long", 0);
    drop(client);
    cluster.kill9_postmaster();
    let before_us = boot_us();
    cluster.start_again();
    wait_for_walwriter(&cluster);
    let latest_us = boot_us() + 3 * SECOND_US + TICK_US;
    let earliest_us = before_us + 3 * SECOND_US;
    let mut client = cluster.client();
    assert_held(&mut client, "long");
    for (name, _) in ENDS {
        assert_free_between(&cluster, name, earliest_us, latest_us);
        assert_free_between(&cluster, &format!("bound {name}"), earliest_us, latest_us);
    }
    // The holder's renewal uses this clock.
    let token = term(&mut client, "long").token;
    let before_us = boot_us();
    execute(&mut client, &format!("SELECT lease_renew('long', {token}, ttl => '1 min')"));
    assert!((before_us..=boot_us()).contains(&term(&mut client, "long").began_us()));
}

/// A backend's crash restarts the server's processes but no clock: the terms do not get shorter.
#[test]
fn term_of_another_clock_begins_again_when_a_backend_crashes() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    acquire(&mut client, "'early', ttl => '2 s'");
    by_another_clock(&mut client, "early", 0);
    let before_us = boot_us();
    cluster.kill9(backend_pid(&mut client));
    cluster.wait_until_ready();
    wait_for_walwriter(&cluster);
    let ttl_us = 2 * SECOND_US;
    assert_free_between(&cluster, "early", before_us + ttl_us, boot_us() + ttl_us + TICK_US);
}

/// A free slot stays free. The lock delay of a revoked one begins with the server.
#[test]
fn free_slot_of_another_clock_is_free() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, "SELECT lease_define('free'), lease_define('resting', lock_delay => '1 hour')");
    for name in ["free", "resting"] {
        let token = acquire(&mut client, &format!("'{name}', ttl => '1 hour'")).token;
        let end =
            if name == "free" { format!("lease_release('free', {token})") } else { "lease_revoke('resting')".into() };
        assert!(value::<bool>(&mut client, &format!("SELECT {end}")));
        by_another_clock(&mut client, name, i64::MAX);
    }
    assert!(take_if_free(&mut client, "free").is_some());
    assert_eq!(take_if_free(&mut client, "resting"), None);
    assert_eq!(value::<String>(&mut client, "SELECT state FROM idgen.leases WHERE name = 'resting'"), "resting");
}

/// Its holder may have renewed it after the backup. No file of the data says that they are older ones, but the control file is
/// another one.
#[test]
fn term_of_a_cold_backup_that_is_restored_in_place_lasts_its_ttl() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    let token = acquire(&mut client, "'a', ttl => '1 hour'").token;
    // Its time is over, unless it was renewed.
    execute(&mut client, &format!("UPDATE idgen.lease SET ends_us = {}", boot_us() - SECOND_US));
    drop(client);
    cluster.stop(Stop::Fast);
    let backup = cluster.cold_backup();
    cluster.start_again();
    let mut client = cluster.client();
    execute(&mut client, &format!("SELECT lease_renew('a', {token})"));
    drop(client);
    cluster.stop(Stop::Fast);
    cluster.restore_in_place(&backup);
    cluster.start_again();
    let mut client = cluster.client();
    assert_held(&mut client, "a");
    execute(&mut client, &format!("SELECT lease_renew('a', {token})"));
}

/// Its holder was told an end that is further away than the shorter ttl.
#[test]
fn term_that_is_acquired_once_more_for_less_keeps_its_ttl_under_another_clock() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    let deepen = |name: &str, token| format!("SELECT lease_acquire('{name}', token => {token}, ttl => '1 s')");
    let before = acquire(&mut client, "'before', ttl => '1 hour'").token;
    let after = acquire(&mut client, "'after', ttl => '1 hour'").token;
    execute(&mut client, &deepen("before", before));
    for name in ["before", "after"] {
        by_another_clock(&mut client, name, 0);
    }
    execute(&mut client, &deepen("after", after));
    for name in ["before", "after"] {
        let ends_late = format!("SELECT expires_at > now() + '30 min' FROM idgen.leases WHERE name = '{name}'");
        assert!(value::<bool>(&mut client, &ends_late), "{name}");
    }
}
