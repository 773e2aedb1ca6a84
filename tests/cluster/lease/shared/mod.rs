//! Shared terms of leases: many readers or one writer, in the order of the queue.

mod ends;
mod fences;
mod snapshots;
mod transactions;

use idgen_testkit::Cluster;
use idgen_testkit::lease::{Grant, acquire, take_if_free, try_acquire};
use idgen_testkit::script::{filled_in, play};
use idgen_testkit::sql::{column, execute, expect_error, value};
use postgres::Client;

use crate::{boot_us, builder, release, renew, scenario, states};

const FIRST_SHARED: i32 = 65_536;

/// Acquires a shared term for a day.
fn read(client: &mut Client, name: &str) -> Grant {
    let grant = acquire(client, &format!("'{name}', '1 day', shared => true"));
    assert!(grant.slot >= FIRST_SHARED, "{grant:?}");
    grant
}

/// Acquires a shared term for a day if that needs no wait.
fn read_if_free(client: &mut Client, name: &str) -> Option<Grant> {
    try_acquire(client, &format!("'{name}', ttl => '1 day', shared => true"))
}

/// Waits for an exclusive term of a day.
fn write(client: &mut Client, name: &str) -> i64 {
    acquire(client, &format!("'{name}', '1 day'")).token
}

/// Makes a term expire now. Its holder may still renew it.
fn expire(client: &mut Client, token: i64) {
    let now_us = boot_us();
    execute(client, &format!("UPDATE idgen.lease SET ends_us = {now_us} WHERE token = {token}"));
}

/// A server, with one lease that is defined and one that is not.
fn start() -> Cluster {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('defined')");
    cluster
}

const NAMES: [&str; 2] = ["defined", "undefined"];

/// Runs a script for each name. `READ` and `WRITE` acquire a term of a day and return its token, and `NAME` stands for the
/// name.
fn for_each_name(script: &str) {
    for_each_name_and(script, [], &[[]]);
}

/// The same for each case.
fn for_each_name_and<const N: usize>(script: &str, names: [&str; N], cases: &[[&str; N]]) {
    let cluster = start();
    cluster.execute("CREATE TABLE t (n int)");
    for (name, case) in NAMES.into_iter().flat_map(|name| cases.iter().map(move |case| (name, case))) {
        let script = filled_in(script, names, case)
            .replace("READ", "SELECT token FROM lease_acquire('NAME', '1 day', shared => true) WHERE slot >= 65536")
            .replace("WRITE", "SELECT token FROM lease_acquire('NAME', '1 day')")
            .replace("NAME", name);
        play(&cluster, &script);
        cluster.execute("DELETE FROM idgen.lease");
    }
}

#[test]
fn many_readers_hold_at_once_and_no_writer_beside_them_smoke() {
    let cluster = start();
    for name in NAMES {
        let mut clients: Vec<Client> = (0..8).map(|_| cluster.client()).collect();
        let mut other = cluster.client();
        // After an exclusive term too, which leaves a row of its slot.
        for _ in 0..2 {
            let grants: Vec<Grant> = clients.iter_mut().map(|client| read(client, name)).collect();
            assert!(grants.is_sorted_by(|a, b| a.token < b.token && a.slot != b.slot), "{grants:?}");
            assert_eq!(states(&mut other, name).len(), 8);
            for (client, grant) in clients.iter_mut().zip(&grants) {
                assert_eq!(take_if_free(&mut other, name), None);
                assert!(release(client, name, grant.token));
            }
            let written = take_if_free(&mut other, name).expect("no reader is left");
            assert!(written > grants[7].token);
            assert_eq!(states(&mut other, name), ["0 held"]);
            assert_eq!(read_if_free(&mut clients[0], name), None);
            release(&mut other, name, written);
        }
    }
}

#[test]
fn waiting_writer_goes_before_later_readers() {
    for_each_name(
        "reader: READ -> $first
         writer waits for Extension: WRITE
         later waits for advisory: READ
         -- Neither does one that does not wait overtake, and the term is still shared.
         other: SELECT lease_try_acquire('NAME', ttl => '1 day', shared => true) -> nothing
         other: SELECT count(*) FROM idgen.leases WHERE name = 'NAME' -> 1
         reader: SELECT lease_renew('NAME', $first) IS NOT NULL, lease_release('NAME', $first) -> t|t
         writer ends -> $written > $first
         later waits for Extension
         other: SELECT slot, state FROM idgen.leases WHERE name = 'NAME' -> 0|held
         other: SELECT lease_release('NAME', $written) -> t
         later ends -> $read > $written",
    );
}

/// What the holder of one token does changes no other term.
#[test]
fn each_reader_holds_a_term_of_its_own() {
    let cluster = start();
    for name in NAMES {
        let [mut client, mut other] = [cluster.client(), cluster.client()];
        let grants: Vec<Grant> = (0..5).map(|_| read(&mut client, name)).collect();
        let ends = |client: &mut Client| -> Vec<i64> {
            column(client, &format!("SELECT ends_us FROM idgen.lease WHERE name = '{name}' ORDER BY token"))
        };
        let before = ends(&mut client);
        execute(&mut other, &format!("SELECT lease_renew('{name}', {}, '2 hours')", grants[0].token));
        let after = ends(&mut client);
        assert!(after[0] < before[0] && after[1..] == before[1..], "{before:?} {after:?}");
        release(&mut other, name, grants[1].token);
        expire(&mut other, grants[2].token);
        assert!(value::<bool>(&mut other, &format!("SELECT lease_revoke('{name}', {})", grants[3].slot)));
        let sql = format!("SELECT state FROM idgen.leases WHERE name = '{name}' ORDER BY acquired_at NULLS LAST");
        assert_eq!(column::<String>(&mut other, &sql), ["held", "expired", "held", "free"]);
        for (lost, code) in [(grants[1], "55000"), (grants[3], "55000")] {
            for call in ["lease_renew", "lease_release", "lease_fence"] {
                expect_error(&mut client, &format!("SELECT {call}('{name}', {})", lost.token), code);
            }
        }
        // The expired one is still that of its holder.
        renew(&mut client, name, grants[2].token);
        assert_eq!(take_if_free(&mut other, name), None);
        for grant in [grants[0], grants[2], grants[4]] {
            assert!(release(&mut client, name, grant.token));
        }
        assert!(take_if_free(&mut other, name).is_some(), "{:?}", states(&mut other, name));
    }
}

/// Readers must end first: then there are as many slots as defined.
#[test]
fn several_slots_are_granted_once_all_readers_have_ended() {
    scenario(
        "reader: SELECT token FROM lease_acquire('a', '1 day', shared => true) -> $one
         reader: SELECT token FROM lease_acquire('a', '1 day', shared => true) -> $two
         other: SELECT lease_define('a', 2)
         other: SELECT lease_try_acquire('a') -> nothing
         other: SELECT lease_acquire('a', shared => true) -> error 22023
         reader: SELECT lease_renew('a', $one) IS NOT NULL, lease_release('a', $one) -> t|t
         other: SELECT lease_try_acquire('a') -> nothing
         other: SELECT lease_acquire('a', shared => true) -> error 22023
         reader: SELECT lease_renew('a', $two) IS NOT NULL, lease_release('a', $two) -> t|t
         other: SELECT token FROM lease_try_acquire('a', ttl => '1 hour') -> $one > $two
         reader: SELECT token FROM lease_try_acquire('a', ttl => '1 hour') -> $two > $one
         other: SELECT slot, state FROM idgen.leases ORDER BY slot -> 0|held, 1|held
         -- A call that can only fail does not wait behind others.
         waiter waits for Extension: SELECT lease_acquire('a')
         third: SET lock_timeout = '10 s'
         third: SELECT lease_acquire('a', shared => true) -> error 22023
         third: SELECT pg_cancel_backend($waiter_pid)
         waiter ends -> error 57014
         -- And back: all slots must be free.
         other: SELECT lease_define('a', force => true)
         third: SELECT lease_try_acquire('a', shared => true) -> nothing
         other: SELECT lease_release('a', $one) -> t
         third: SELECT lease_try_acquire('a', shared => true) -> nothing
         other: SELECT lease_release('a', $two) -> t
         third: SELECT slot >= 65536 FROM lease_try_acquire('a', shared => true) -> t",
    );
}

#[test]
fn paused_reader_that_has_expired_lets_a_writer_in_and_cannot_fence() {
    for_each_name(
        "reader: SELECT token FROM lease_acquire('NAME', '200 ms', shared => true) -> $token
         reader is paused
         writer: WRITE -> $written > $token
         reader resumes
         reader: BEGIN; SELECT lease_fence('NAME', $token) -> error 55000
         reader: ROLLBACK
         reader: SELECT lease_renew('NAME', $token) -> error 55000
         writer: SELECT lease_release('NAME', $written) -> t",
    );
}
