//! snowflake_observe(): an id that was issued elsewhere is not issued here.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use idgen_testkit::Cluster;
use idgen_testkit::high_water::{bytes, directory, mark_ms};
use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::{backend_pid, expect_error, ids, value};
use postgres::Client;

use super::{NEXT, clock_ms, next, start, time_ms};

const MINUTE_MS: i64 = 60_000;
const DAY_MS: i64 = 24 * 60 * MINUTE_MS;
const OTHERS: [&str; 4] =
    ["js53", "pgedge", "sonyflake", "time:41 tag:4=2 worker:4 sequence:10 unit:1s epoch:2020-01-01"];

/// An id of another server this far ahead of the clock.
fn id_ahead(client: &mut Client, ms: i64) -> i64 {
    let sql = format!("SELECT snowflake_make(clock_timestamp() + {ms} * interval '1ms', 9, 77)");
    value(client, &sql)
}

/// Calls snowflake_observe and returns its result in milliseconds since 1970.
fn observe(client: &mut Client, arguments: &str) -> i64 {
    value(client, &format!("SELECT round(extract(epoch FROM snowflake_observe({arguments})) * 1000)::bigint"))
}

/// The time of a new id in another layout.
fn time_in(client: &mut Client, layout: &str) -> i64 {
    let time = format!("snowflake_time(snowflake_next('{layout}'), '{layout}')");
    value(client, &format!("SELECT floor(extract(epoch FROM {time}) * 1000)::bigint"))
}

fn assert_all_after(client: &mut Client, observed: i64) {
    assert!(time_ms(next(client)) > time_ms(observed));
    let batch = ids(client, "SELECT snowflake_next_many(100)");
    assert!(time_ms(batch[0]) > time_ms(observed));
    for layout in OTHERS {
        let time = time_in(client, layout);
        assert!(time > time_ms(observed), "{layout}: {time} is not after {}", time_ms(observed));
    }
}

#[test]
fn every_layout_continues_after_an_observed_id() {
    let cluster = start(Cluster::builder());
    let mut old = cluster.client();
    old.batch_execute("CREATE TABLE t (id bigint PRIMARY KEY DEFAULT snowflake_next(), x int)").unwrap();
    let insert = old.prepare("INSERT INTO t (x) VALUES (1) RETURNING id").unwrap();
    let other = old.prepare("SELECT snowflake_next('js53')").unwrap();
    let mut before: Vec<i64> = Vec::new();
    for _ in 0..10 {
        before.push(old.query_one(&insert, &[]).unwrap().get(0));
        old.query_one(&other, &[]).unwrap();
    }
    assert_increasing(&before);
    time_in(&mut old, OTHERS[3]);

    let mut dba = cluster.client();
    let observed = id_ahead(&mut dba, 10 * MINUTE_MS);
    assert_eq!(observe(&mut dba, &observed.to_string()), time_ms(observed) + 1);
    let drawn: i64 = old.query_one(&insert, &[]).unwrap().get(0);
    assert!(time_ms(drawn) > time_ms(observed));
    let js53: i64 = old.query_one(&other, &[]).unwrap().get(0);
    let js53_ms = value::<i64>(
        &mut dba,
        &format!("SELECT floor(extract(epoch FROM snowflake_time({js53}, 'js53')) * 1000)::bigint"),
    );
    assert!(js53_ms > time_ms(observed));
    assert_all_after(&mut old, observed);
    assert_all_after(&mut dba, observed);
    assert_all_after(&mut cluster.client(), observed);
    // At most the borrowed tick of the longest unit further ahead.
    let last = next(&mut old);
    assert!(time_ms(last) < time_ms(observed) + MINUTE_MS, "{last}");

    // An id in another layout, by its own unit.
    let ts = "clock_timestamp() + interval '20min'";
    let sonyflake: i64 = value(&mut dba, &format!("SELECT snowflake_make({ts}, 9, 77, layout => 'sonyflake')"));
    let floor_ms = observe(&mut dba, &format!("{sonyflake}, 'sonyflake'"));
    let id_ms: i64 = value(
        &mut dba,
        &format!("SELECT round(extract(epoch FROM snowflake_time({sonyflake}, 'sonyflake')) * 1000)::bigint"),
    );
    assert_eq!(floor_ms, id_ms + 10);
    assert!(time_ms(old.query_one(&insert, &[]).unwrap().get(0)) >= floor_ms);
    assert!(time_in(&mut old, "sonyflake") >= floor_ms);
}

/// Under continuous draws, every statement that begins after the observe returns ids above the observed one.
#[test]
fn observed_id_takes_effect_at_once_in_drawing_sessions() {
    let cluster = start(Cluster::builder());
    let observed_ms = AtomicI64::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for sql in [NEXT, "SELECT snowflake_next_many(3)", "SELECT snowflake_next() FROM generate_series(1, 50)"] {
            let (cluster, observed_ms, done) = (&cluster, &observed_ms, &done);
            scope.spawn(move || {
                let mut client = cluster.client();
                let mut last = 0;
                while !done.load(Ordering::SeqCst) {
                    let least_ms = observed_ms.load(Ordering::SeqCst);
                    let drawn = ids(&mut client, sql);
                    assert_increasing(&drawn);
                    assert!(drawn[0] > last);
                    last = *drawn.last().unwrap();
                    assert!(time_ms(drawn[0]) > least_ms, "{} was drawn after {least_ms} was observed", drawn[0]);
                }
            });
        }
        let mut dba = cluster.client();
        for minute in 1..=60 {
            let observed = id_ahead(&mut dba, minute * MINUTE_MS);
            observe(&mut dba, &observed.to_string());
            observed_ms.store(time_ms(observed), Ordering::SeqCst);
            assert!(time_ms(next(&mut dba)) > time_ms(observed));
            assert!(mark_ms(&cluster) > time_ms(observed));
        }
        done.store(true, Ordering::SeqCst);
    });
}

/// The first call comes before the first draw of the server, as of a DBA for a table with ids from elsewhere.
#[test]
fn observed_id_survives_a_crash_right_after_the_call() {
    let cluster = start(Cluster::builder());
    for round in 1..=3 {
        let mut dba = cluster.client();
        let observed = id_ahead(&mut dba, round * 10 * MINUTE_MS);
        observe(&mut dba, &observed.to_string());
        cluster.kill9_postmaster();
        assert!(mark_ms(&cluster) > time_ms(observed));
        cluster.start_again();
        assert_all_after(&mut cluster.client(), observed);
    }
    // Also as the first call after a start, and with a clean stop before the first draw.
    cluster.restart();
    let mut dba = cluster.client();
    let observed = id_ahead(&mut dba, 60 * MINUTE_MS);
    observe(&mut dba, &observed.to_string());
    drop(dba);
    cluster.restart();
    assert!(time_ms(next(&mut cluster.client())) > time_ms(observed));
    // The crash of one backend is a start too.
    let mut dba = cluster.client();
    let observed = id_ahead(&mut dba, 70 * MINUTE_MS);
    observe(&mut dba, &observed.to_string());
    cluster.kill9(backend_pid(&mut dba));
    cluster.wait_until_ready();
    assert_all_after(&mut cluster.client(), observed);
}

#[test]
fn observing_a_lower_id_changes_nothing() {
    let cluster = start(Cluster::builder().conf("idgen.clock_window", "1min"));
    let mut dba = cluster.client();
    let observed = id_ahead(&mut dba, 10 * MINUTE_MS);
    observe(&mut dba, &observed.to_string());
    let last = next(&mut dba);
    let before = bytes(&cluster);
    for lower in [0, 1, 1 << 40, observed - (1 << 30), id_ahead(&mut dba, -DAY_MS)] {
        assert_eq!(observe(&mut dba, &lower.to_string()), time_ms(lower) + 1);
    }
    assert_eq!(bytes(&cluster), before, "nothing was written");
    let after = next(&mut dba);
    assert!(after > last && time_ms(after) < time_ms(last) + MINUTE_MS, "{after} after {last}");
    assert_eq!(observe(&mut dba, &observed.to_string()), time_ms(observed) + 1);
    let again = next(&mut dba);
    assert!(again > after && time_ms(again) < time_ms(last) + MINUTE_MS, "{again} after {last}");
}

#[test]
fn observing_more_than_a_day_ahead_requires_force() {
    let cluster = start(Cluster::builder());
    let mut dba = cluster.client();
    let near = id_ahead(&mut dba, DAY_MS - MINUTE_MS);
    let far = id_ahead(&mut dba, DAY_MS + MINUTE_MS);
    let before = next(&mut dba);
    for arguments in [format!("{far}"), format!("{far}, 'snowflake'"), format!("{far}, false")] {
        let error = expect_error(&mut dba, &format!("SELECT snowflake_observe({arguments})"), "22023");
        assert!(error.message().contains(&far.to_string()), "{error:?}");
        assert!(error.hint().unwrap().contains("force => true"), "{error:?}");
    }
    let after = next(&mut dba);
    assert!(after > before && time_ms(after) < time_ms(before) + MINUTE_MS, "the rejected call had an effect");
    observe(&mut dba, &near.to_string());
    assert!(time_ms(next(&mut dba)) > time_ms(near));
    observe(&mut dba, &format!("{far}, force => true"));
    assert_all_after(&mut dba, far);
    let farther = id_ahead(&mut dba, 400 * DAY_MS);
    observe(&mut dba, &format!("{farther}, 'snowflake', true"));
    cluster.kill9_postmaster();
    cluster.start_again();
    assert_all_after(&mut cluster.client(), farther);
}

#[test]
fn observe_rejects_invalid_ids() {
    let cluster = start(Cluster::builder());
    let mut dba = cluster.client();
    for sql in [
        "SELECT snowflake_observe(NULL) IS NULL",
        "SELECT snowflake_observe(NULL, force => true) IS NULL",
        "SELECT snowflake_observe(NULL, 'js53') IS NULL",
        "SELECT snowflake_observe(5, NULL::text) IS NULL",
        "SELECT snowflake_observe(5, force => NULL) IS NULL",
    ] {
        assert!(value::<bool>(&mut dba, sql), "{sql}");
    }
    assert!(!directory(&cluster).exists(), "NULL does nothing");
    for arguments in ["-1", "-9223372036854775808, force => true", "-1, 'js53'", "1::bigint << 53, 'js53', true"] {
        expect_error(&mut dba, &format!("SELECT snowflake_observe({arguments})"), "22003");
    }
    expect_error(&mut dba, "SELECT snowflake_observe(1, 'nonsense')", "22023");

    cluster.execute("CREATE ROLE app LOGIN");
    let mut app = cluster.client_as("postgres", "app");
    expect_error(&mut app, "SELECT snowflake_observe(1)", "42501");
    expect_error(&mut app, "SELECT snowflake_observe(1, 'js53', true)", "42501");
    assert!(!directory(&cluster).exists(), "a rejected call creates nothing");
    cluster.execute("GRANT EXECUTE ON FUNCTION snowflake_observe(bigint, boolean) TO app");
    let observed = id_ahead(&mut app, MINUTE_MS);
    observe(&mut app, &observed.to_string());
    assert!(time_ms(next(&mut app)) > time_ms(observed));
    // After the last possible id this layout is exhausted, and other layouts continue.
    observe(&mut dba, "9223372036854775807, force => true");
    expect_error(&mut dba, NEXT, "22003");
    assert!(value::<i64>(&mut dba, "SELECT snowflake_next('pgedge')") > 0);
}

#[test]
fn observe_fails_where_ids_cannot_be_generated() {
    let primary = start(Cluster::builder());
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    for call in ["snowflake_observe(1)", "snowflake_observe(1, 'js53')"] {
        let error = expect_error(&mut standby.client(), &format!("SELECT {call}"), "25006");
        assert_eq!(error.message(), "cannot observe an id during recovery");
    }
    drop(standby);

    primary.set_conf("shared_preload_libraries", "");
    primary.restart();
    let error = expect_error(&mut primary.client(), "SELECT snowflake_observe(1)", "55000");
    assert!(error.hint().unwrap().contains("shared_preload_libraries"), "{error:?}");
}

#[test]
fn ids_continue_without_waiting_after_an_observed_id_ten_minutes_ahead() {
    let cluster = start(Cluster::builder());
    let mut client = cluster.client();
    next(&mut client);
    let observed = id_ahead(&mut client, 10 * MINUTE_MS);
    observe(&mut client, &observed.to_string());
    let began_ms = clock_ms(&mut client);
    let drawn: Vec<i64> = (0..1000).map(|_| next(&mut client)).collect();
    let took_ms = clock_ms(&mut client) - began_ms;
    assert_increasing(&drawn);
    assert_eq!(value::<i64>(&mut client, "SELECT sum(waits)::bigint FROM idgen.stat_snowflake"), 0);
    // The lead does not grow.
    let grown_ms = time_ms(drawn[999]) - time_ms(observed) - took_ms;
    assert!(grown_ms <= 50, "the lead has grown by {grown_ms} ms");
    // The same for other layouts.
    for layout in OTHERS {
        time_in(&mut client, layout);
    }
    // A burst does not increase the lead.
    assert_eq!(ids(&mut client, "SELECT snowflake_next_many(100000)").len(), 100_000);
    let lead_ms: f64 = value(&mut client, "SELECT (extract(epoch FROM lead) * 1000)::float8 FROM idgen.stat_clock");
    // One layout has ticks of a second, and has begun one.
    assert!(lead_ms <= 10.0 * 60_000.0 + 1000.0, "{lead_ms}");
}
