//! The ends of shared terms: by their time, with their session, over crashes.

use idgen_testkit::lease::{acquire, take_if_free};
use idgen_testkit::sql::{backend_pid, column, execute, row};
use idgen_testkit::{Cluster, Stop};
use postgres::Client;

use super::{NAMES, read, start, write};
use crate::{boot_us, builder, release, renew, states, wait_until_head};

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
    let cluster = start();
    for name in NAMES {
        let [mut bound, mut other, mut writer] = [(); 3].map(|()| cluster.client());
        let pid = backend_pid(&mut writer);
        acquire(&mut bound, &format!("'{name}', '100 ms', shared => true, bind_session => true"));
        let unbound = read(&mut other, name).token;
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| write(&mut writer, name));
            wait_until_head(&cluster, pid);
            release(&mut other, name, unbound);
            // Past its ttl, the bound one still holds.
            let sql = format!("SELECT state || ' ' || bound FROM idgen.leases WHERE name = '{name}'");
            assert_eq!(column::<String>(&mut other, &sql), ["held true"]);
            wait_until_head(&cluster, pid);
            drop(bound);
            writing.join().unwrap();
        });
    }
}

/// A revoked or expired reader counts until the lock delay is over.
#[test]
fn writer_waits_for_the_lock_delay_of_a_reader() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('a', lock_delay => '1 day')");
    let [mut reader, mut other] = [cluster.client(), cluster.client()];
    let grant = read(&mut reader, "a");
    execute(&mut other, &format!("SELECT lease_revoke('a', {})", grant.slot));
    assert_eq!(states(&mut other, "a"), [format!("{} resting", grant.slot)]);
    assert_eq!(take_if_free(&mut other, "a"), None);
    // Readers do not exclude each other.
    let token = read(&mut other, "a").token;
    release(&mut other, "a", token);
    execute(&mut other, "SELECT lease_define('a')");
    assert!(take_if_free(&mut other, "a").is_some());
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
