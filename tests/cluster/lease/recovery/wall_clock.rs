//! Steps of the wall clock and days of 23 and 25 hours do not affect leases.

use idgen_testkit::lease::{acquire, assert_held, term};
use idgen_testkit::sql::{execute, row, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;

use super::{HOUR_US, SECOND_US, assert_free_between, builder};
use crate::boot_us;

const HOUR_MS: i64 = 3_600_000;

fn with_fake_clock() -> Builder {
    builder().fake_clock()
}

/// The time of the server's wall clock.
fn wall_us(client: &mut Client) -> i64 {
    value(client, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
}

#[test]
fn step_of_the_wall_clock_ends_no_term_early_or_late() {
    let cluster = with_fake_clock().start_with_extension();
    for step_ms in [HOUR_MS, -HOUR_MS] {
        cluster.clock().set_offset_ms(0);
        let mut client = cluster.client();
        acquire(&mut client, "'half an hour', ttl => '30 min'");
        acquire(&mut client, "'waited for', ttl => '2 s'");
        acquire(&mut client, "'tried', ttl => '2 s'");
        let (long, waited, tried) =
            (term(&mut client, "half an hour"), term(&mut client, "waited for"), term(&mut client, "tried"));
        let before_us = wall_us(&mut client);
        let taken = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let mut client = cluster.client();
                acquire(&mut client, "'waited for', ttl => '1 hour'");
                term(&mut client, "waited for")
            });
            cluster.clock().set_offset_ms(step_ms);
            let stepped_us = wall_us(&mut client) - before_us;
            assert!(stepped_us.abs_diff(step_ms * 1000) < HOUR_US as u64 / 2, "the clock stepped by {stepped_us} us");
            // This session, a new one, and one that waits.
            assert_held(&mut client, "half an hour");
            assert_held(&mut cluster.client(), "half an hour");
            assert_free_between(&cluster, "tried", tried.ends_us, tried.ends_us);
            waiter.join().unwrap()
        });
        assert!(taken.began_us() >= waited.ends_us, "{taken:?} after {waited:?}");
        // The view shows times by the current wall clock.
        let left_us: i64 = value(
            &mut client,
            "SELECT (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint
             FROM idgen.leases WHERE name = 'half an hour'",
        );
        assert!((1..=30 * 60 * SECOND_US).contains(&left_us), "{left_us} us left");
        // A renewal lasts from now on, by the clock that was not stepped.
        let begun_us = boot_us();
        execute(&mut client, &format!("SELECT lease_renew('half an hour', {})", long.token));
        assert!((begun_us..=boot_us()).contains(&term(&mut client, "half an hour").began_us()));
        execute(&mut client, "DELETE FROM idgen.lease");
    }
}

/// Sets the wall clock of a server to this time.
fn set_clock(cluster: &Cluster, time: &str) {
    cluster.clock().set_offset_ms(0);
    let offset_ms = format!("SELECT (extract(epoch FROM '{time}'::timestamptz - clock_timestamp()) * 1000)::bigint");
    let offset_ms: i64 = value(&mut cluster.client(), &offset_ms);
    cluster.clock().set_offset_ms(offset_ms);
}

/// Starts twelve hours before a change of daylight saving time: the next calendar day has 23 or 25 hours.
#[test]
fn ttl_of_a_day_is_24_hours_in_every_time_zone() {
    let cluster = with_fake_clock().start_with_extension();
    for (time, calendar_hours) in [("2033-03-26 12:00+01", 23.0), ("2033-10-29 12:00+02", 25.0)] {
        set_clock(&cluster, time);
        let mut client = cluster.client();
        execute(&mut client, "SET TimeZone = 'Europe/Berlin'; SELECT lease_define('defined', ttl => '1 day')");
        for args in ["'given', ttl => '1 day'", "'defined'"] {
            let before_us = boot_us();
            let sql = format!(
                "SELECT name, (extract(epoch FROM expires_at - acquired_at) / 3600)::float8,
                        (extract(epoch FROM acquired_at + '1 day' - acquired_at) / 3600)::float8
                 FROM lease_acquire({args})"
            );
            let row = row(&mut client, &sql);
            let (name, hours, calendar_day): (String, f64, f64) = (row.get(0), row.get(1), row.get(2));
            assert_eq!(calendar_day, calendar_hours, "the zone has no change on that day, so the test proves nothing");
            assert_eq!(hours.round(), 24.0, "{args}");
            let term = term(&mut client, &name);
            assert_eq!(term.ttl_us, 24 * HOUR_US, "{args}");
            assert!((before_us..=boot_us()).contains(&term.began_us()), "{args}");
            let shown = format!(
                "SELECT (extract(epoch FROM expires_at - acquired_at) / 3600)::float8 FROM idgen.leases WHERE name = '{name}'"
            );
            assert_eq!(value::<f64>(&mut client, &shown).round(), 24.0, "{args}");
            let renewed = format!(
                "SELECT (extract(epoch FROM lease_renew('{name}', {}, '1 day') - clock_timestamp()) / 3600)::float8",
                term.token
            );
            assert_eq!(value::<f64>(&mut client, &renewed).round(), 24.0, "{args}");
        }
        execute(&mut client, "DELETE FROM idgen.lease");
    }
}

/// now() returns the start of the transaction, which may be long ago.
#[test]
fn lease_acquired_late_in_a_long_transaction_has_its_full_ttl() {
    let cluster = with_fake_clock().start_with_extension();
    let mut client = cluster.client();
    execute(&mut client, "BEGIN; SELECT now()");
    // For now() and similar functions the step is a long time.
    cluster.clock().set_offset_ms(HOUR_MS);
    let before_us = boot_us();
    let sql = "SELECT (extract(epoch FROM expires_at - now()) / 60)::float8,
                      (extract(epoch FROM acquired_at - now()) / 60)::float8 FROM lease_acquire('a', ttl => '10 min')";
    let row = row(&mut client, sql);
    let (expires_min, acquired_min): (f64, f64) = (row.get(0), row.get(1));
    assert_eq!((expires_min.round(), acquired_min.round()), (70.0, 60.0));
    execute(&mut client, "COMMIT");
    assert!((before_us..=boot_us()).contains(&term(&mut client, "a").began_us()));
}
