//! The ends of shared terms: by their time, with their session, over crashes.

use idgen_testkit::lease::{acquire, take_if_free};
use idgen_testkit::sql::{backend_pid, execute, row};
use idgen_testkit::{Cluster, Stop};
use postgres::Client;

use super::{NAMES, for_each_name, read, start, write};
use crate::{boot_us, release, renew, scenario, states};

#[test]
fn writer_gets_in_at_the_end_of_the_last_reader() {
    let cluster = start();
    for name in NAMES {
        let [mut reader, mut writer] = [cluster.client(), cluster.client()];
        for ttl in ["100 ms", "300 ms", "200 ms"] {
            acquire(&mut reader, &format!("'{name}', '{ttl}', shared => true"));
        }
        let latest: i64 =
            row(&mut reader, &format!("SELECT max(ends_us) FROM idgen.lease WHERE name = '{name}'")).get(0);
        let written = write(&mut writer, name);
        let ends_us: i64 =
            row(&mut writer, &format!("SELECT ends_us - ttl_us FROM idgen.lease WHERE token = {written}")).get(0);
        assert!(ends_us >= latest, "{} us early", latest - ends_us);
        assert_eq!(states(&mut writer, name), ["0 held"]);
    }
}

/// Of two readers, the one that is bound goes with its session.
#[test]
fn bound_reader_ends_with_its_session() {
    for_each_name(
        "bound: SELECT lease_acquire('NAME', '100 ms', shared => true, bind_session => true)
         other: READ -> $unbound
         writer waits for Extension: WRITE
         other: SELECT lease_release('NAME', $unbound) -> t
         -- Past its ttl, the bound one still holds.
         until: SELECT now() > acquired_at + interval '100 ms' FROM idgen.leases WHERE name = 'NAME' -> t
         other: SELECT state, bound FROM idgen.leases WHERE name = 'NAME' -> held|t
         writer waits for Extension
         bound leaves
         writer ends",
    );
}

/// A revoked or expired reader counts until the lock delay is over.
#[test]
fn writer_waits_for_the_lock_delay_of_a_reader() {
    scenario(
        "other: SELECT lease_define('a', lock_delay => '1 day')
         reader: SELECT slot FROM lease_acquire('a', '1 day', shared => true) -> $slot > 65535
         other: SELECT lease_revoke('a', $slot)
         other: SELECT slot = $slot, state FROM idgen.leases -> t|resting
         other: SELECT lease_try_acquire('a') -> nothing
         -- Readers do not exclude each other.
         other: SELECT lease_release('a', token) FROM lease_acquire('a', '1 day', shared => true) -> t
         other: SELECT lease_define('a')
         other: SELECT slot FROM lease_try_acquire('a') -> 0",
    );
}

/// Shared memory has places for 256 sessions that have ended.
#[test]
fn writer_waits_for_the_lock_delays_of_many_readers() {
    scenario(
        "other: SELECT lease_define('a', lock_delay => '100 ms')
         reader: SELECT count(lease_acquire('a', '1 day', shared => true, bind_session => true)) FROM generate_series(1, 300) -> 300
         reader leaves
         writer: SET lock_timeout = '30 s'; SELECT slot FROM lease_acquire('a') -> 0",
    );
}

/// Acquires shared terms, and crashes the server. Returns tokens: unbound and bound.
fn crash(cluster: &Cluster, how: impl FnOnce(&Cluster, &mut Client)) -> (i64, i64) {
    let mut reader = cluster.client();
    let unbound = read(&mut reader, "unbound").token;
    let bound = acquire(&mut reader, "'bound', '1 day', shared => true, bind_session => true").token;
    how(cluster, &mut cluster.client());
    (unbound, bound)
}

#[test]
fn shared_terms_survive_a_crash_of_the_server() {
    let cluster = Cluster::builder().conf("statement_timeout", "1min").start_with_extension();
    let (unbound, bound) = crash(&cluster, |cluster, _| cluster.stop(Stop::Immediate));
    let stopped_us = boot_us();
    cluster.start_again();
    let mut client = cluster.client();
    assert_eq!(take_if_free(&mut client, "unbound"), None);
    renew(&mut client, "unbound", unbound);
    assert!(release(&mut client, "unbound", unbound));
    assert!(take_if_free(&mut client, "unbound").is_some());
    // The session is gone, but the server does not know since when: the term lasts its ttl.
    assert_eq!(take_if_free(&mut client, "bound"), None);
    execute(&mut client, &format!("SELECT lease_renew('bound', {bound}, '100 ms')"));
    let written = write(&mut client, "bound");
    assert!(written > bound && boot_us() >= stopped_us + 100_000);
}

#[test]
fn shared_terms_survive_a_crash_of_a_backend() {
    let cluster = start();
    let (unbound, _) = crash(&cluster, |cluster, victim| {
        cluster.kill9(backend_pid(victim));
        cluster.wait_until_ready();
    });
    let mut client = cluster.client();
    assert_eq!(take_if_free(&mut client, "unbound"), None);
    renew(&mut client, "unbound", unbound);
    // The postmaster survived, so the server knows that the session has ended.
    assert!(take_if_free(&mut client, "bound").is_some());
}
