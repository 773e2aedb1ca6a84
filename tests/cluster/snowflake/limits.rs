//! The limits of worker ids, settings and layouts.

use idgen_testkit::ids::assert_increasing;
use idgen_testkit::parallel::{run_in_workers, with_workers};
use idgen_testkit::sql::{check, execute, expect_error, hint, ids, row, value};
use idgen_testkit::{Cluster, Stop};
use postgres::Client;

#[test]
fn worker_id_too_large_for_one_layout_works_in_others() {
    let cluster = Cluster::builder().conf("idgen.worker_id", "8").conf("idgen.layout", "js53").start_with_extension();
    let mut client = cluster.client();
    for sql in
        ["SELECT snowflake_next()", "SELECT snowflake_next('js53')", "SELECT count(*) FROM snowflake_next_many(2)"]
    {
        let error = expect_error(&mut client, sql, "22003");
        assert!(hint(&error).contains("idgen.worker_id"), "{error:?}");
        assert!(error.detail().unwrap().contains("0 to 7"), "{error:?}");
    }
    let (ok, message) = check(&mut client, "worker");
    assert!(!ok && message.contains("worker id \"8\" of this server does not fit"), "{message}");

    let worker: i32 =
        value(&mut client, "SELECT worker FROM snowflake_parts(snowflake_next('snowflake'), 'snowflake')");
    assert_eq!(worker, 8);
    // The worker id matters only to layouts with the field.
    assert!(value::<i64>(&mut client, "SELECT snowflake_next('seconds')") > 0);

    cluster.set_conf("idgen.worker_id", "7");
    cluster.restart();
    let mut client = cluster.client();
    let worker: i32 = value(&mut client, "SELECT worker FROM snowflake_parts(snowflake_next())");
    assert_eq!(worker, 7);
    assert!(check(&mut client, "worker").0);
}

#[test]
fn datacenter_id_is_in_the_ids_and_has_a_limit() {
    let cluster =
        Cluster::builder().conf("idgen.worker_id", "3").conf("idgen.datacenter_id", "31").start_with_extension();
    let mut client = cluster.client();
    let parts =
        row(&mut client, "SELECT datacenter, worker FROM snowflake_parts(snowflake_next('twitter'), 'twitter')");
    assert_eq!((parts.get(0), parts.get(1)), (Some(31), Some(3)));
    let narrow = "time:41 datacenter:4 worker:5 sequence:12 epoch:2020-01-01";
    let error = expect_error(&mut client, &format!("SELECT snowflake_next('{narrow}')"), "22003");
    assert!(hint(&error).contains("idgen.datacenter_id"), "{error:?}");
    let worker: i32 = value(&mut client, "SELECT worker FROM snowflake_parts(snowflake_next())");
    assert_eq!(worker, 3, "the datacenter id matters only to layouts with the field");
}

#[test]
fn setting_out_of_range_prevents_the_start() {
    let cluster = Cluster::builder().start_with_extension();
    cluster.stop(Stop::Fast);
    for (name, bad, good) in [
        ("idgen.layout", "time:41 wroker:10 sequence:12 epoch:2020-01-01", "snowflake"),
        ("idgen.layout", "snowflak", "snowflake"),
        ("idgen.worker_id", "-2", "1"),
        ("idgen.worker_id", "2147483648", "1"),
        ("idgen.datacenter_id", "-2", "0"),
        ("idgen.max_drift", "-1", "1s"),
        ("idgen.max_drift", "2min", "1min"),
        ("idgen.max_generators", "1", "2"),
        ("idgen.max_generators", "1000000", "65536"),
    ] {
        cluster.set_conf(name, bad);
        let Err(report) = cluster.try_start() else { panic!("the server started with {name} = '{bad}'") };
        assert!(report.contains(name), "{name} = '{bad}': {report}");
        if name == "idgen.layout" {
            let word = if bad.contains(' ') { "\"wroker:10\"" } else { "\"snowflak\"" };
            assert!(report.contains(&format!("At {word}")), "the report shows the position: {report}");
        }
        cluster.set_conf(name, good);
    }
    cluster.start_again();
}

/// PostgreSQL removes an unknown setting with a warning, and the check of the worker id fails.
#[test]
fn misspelt_setting_is_reported() {
    let cluster = Cluster::builder().conf("idgen.wroker_id", "1").start_with_extension();
    assert!(cluster.log().contains("\"idgen.wroker_id\""), "{}", cluster.log());
    let (ok, message) = check(&mut cluster.client(), "worker");
    assert!(!ok && message.contains("not set"), "{message}");
}

#[test]
fn clock_before_the_epoch_is_an_error() {
    let cluster = Cluster::builder().fake_clock().start_with_extension();
    let mut client = cluster.client();
    let future = "time:41 worker:10 sequence:12 epoch:2100-01-01";
    for sql in [format!("SELECT snowflake_next('{future}')"), format!("SELECT snowflake_next_many(3, '{future}')")] {
        let error = expect_error(&mut client, &sql, "22003");
        assert!(error.message().contains("before the epoch"), "{error:?}");
        assert!(error.detail().unwrap().contains("2100-01-01"), "{error:?}");
    }
    cluster.clock().set_offset_ms(80 * 366 * 86_400_000);
    let first: i64 = value(&mut client, &format!("SELECT snowflake_next('{future}')"));
    assert!(first > 0);
    // After the step back the ids of the layout continue where they were.
    cluster.clock().set_offset_ms(0);
    let next = ids(&mut client, &format!("SELECT snowflake_next('{future}') FROM generate_series(1, 100)"));
    assert!(next[0] > first, "{} after {first}", next[0]);
    assert_increasing(&next);
}

/// A layout of 2^20 one-second ticks that ends this many seconds from now, by the server's clock.
fn ending_in(client: &mut Client, seconds: i64, sequence: u32) -> (i64, String) {
    let now: i64 = value(client, "SELECT extract(epoch FROM clock_timestamp())::bigint");
    let end_ms = (now + seconds) * 1000;
    (end_ms, format!("time:20 sequence:{sequence} unit:1s epoch:{}ms", end_ms - (1000 << 20)))
}

/// Draws continuously from before the last tick until after it. A draw inside the last tick must return an id of it, and a
/// draw after it must fail.
#[test]
fn layout_issues_ids_in_its_last_tick_and_fails_after_it() {
    let cluster = Cluster::builder().fake_clock().conf("idgen.max_drift", "0").start_with_extension();
    let mut client = cluster.client();
    let (end_ms, layout) = ending_in(&mut client, 3600, 32);
    cluster.clock().set_offset_ms((3600 - 2) * 1000);
    let sql = format!(
        "DO $$
         DECLARE
             finish timestamptz := to_timestamp({end_ms} / 1000);
             before timestamptz; id bigint; in_last int := 0; too_late int := 0;
         BEGIN
             LOOP
                 before := clock_timestamp();
                 BEGIN
                     id := snowflake_next('{layout}');
                     IF before >= finish THEN
                         RAISE 'id % at %, after the end', id, before USING ERRCODE = 'XX900';
                     END IF;
                     IF before >= finish - interval '1s' THEN
                         in_last := in_last + 1;
                         IF id >> 32 <> (1 << 20) - 1 THEN
                             RAISE 'id % in the last tick', id USING ERRCODE = 'XX900';
                         END IF;
                     END IF;
                 EXCEPTION WHEN numeric_value_out_of_range THEN
                     IF clock_timestamp() < finish THEN
                         RAISE 'ended at %, before the end', clock_timestamp() USING ERRCODE = 'XX900';
                     END IF;
                     too_late := too_late + 1;
                     EXIT WHEN too_late >= 10;
                 END;
             END LOOP;
             ASSERT in_last > 0, 'the last tick was seen';
         END $$"
    );
    execute(&mut client, &sql);
    let error = expect_error(&mut client, &format!("SELECT snowflake_next('{layout}')"), "22003");
    assert!(error.message().contains("time bits"), "{error:?}");
    assert!(hint(&error).contains("more time bits"), "{error:?}");
}

/// Borrowed ids end with the last id of the last tick.
#[test]
fn borrowing_ends_with_the_last_tick_of_the_layout() {
    let cluster = Cluster::builder().fake_clock().conf("idgen.max_drift", "1min").start_with_extension();
    let mut client = cluster.client();
    let (end_ms, layout) = ending_in(&mut client, 3600, 2);
    cluster.clock().set_offset_ms((3600 - 50) * 1000);
    let drawn = ids(&mut client, &format!("SELECT snowflake_next_many(100, '{layout}')"));
    assert_increasing(&drawn);
    let last_id = (1_i64 << 22) - 1;
    let mut last = drawn[99];
    // About 200 ids are left in all: 50 seconds of 4 each.
    for _ in 0..120 {
        let next = client.query_one(&format!("SELECT snowflake_next('{layout}')"), &[]);
        match next {
            Ok(row) => {
                let id: i64 = row.get(0);
                assert!(id > last && id <= last_id, "{id} after {last}");
                last = id;
            }
            Err(error) => {
                let error = error.as_db_error().unwrap();
                assert_eq!(error.code().code(), "22003", "{error:?}");
                break;
            }
        }
    }
    assert_eq!(last, last_id, "the last id of the layout comes before the error");
    let sql = format!("SELECT (extract(epoch FROM snowflake_time({last}, '{layout}')) * 1000)::bigint");
    assert_eq!(value::<i64>(&mut client, &sql), end_ms - 1000);
    expect_error(&mut client, &format!("SELECT snowflake_next_many(5, '{layout}')"), "22003");

    // Other layouts continue.
    assert!(value::<i64>(&mut client, "SELECT snowflake_next()") > 0);
    assert!(cluster.log().contains("has no ids from"), "the end was announced");
    let (ok, message) = check(&mut client, "layouts");
    assert!(!ok && message.contains(&layout[..18]), "{message}");
}

/// A layout of about four years in one-second ticks that ends this many days from now, by the server's clock.
fn ending_in_days(client: &mut Client, days: i64, sequence: u32) -> String {
    let now: i64 = value(client, "SELECT extract(epoch FROM clock_timestamp())::bigint");
    format!("time:27 sequence:{sequence} unit:1s epoch:{}ms", (now + days * 86_400 - (1 << 27)) * 1000)
}

/// The number of announcements of the end of a layout, in all sessions.
fn announced(cluster: &Cluster) -> usize {
    cluster.log().lines().filter(|line| line.contains("WARNING") && line.contains("has no ids from")).count()
}

#[test]
fn last_year_is_announced_once_a_session_also_if_it_begins_in_an_open_session() {
    let builder = Cluster::builder().fake_clock().conf("idgen.clock_window", "100ms").conf("idgen.max_drift", "0");
    let cluster = builder.start_with_extension();
    let mut old = cluster.client();
    let layout = ending_in_days(&mut old, 400, 12);
    let draw = |client: &mut Client| {
        value::<i64>(client, &format!("SELECT max(snowflake_next('{layout}')) FROM generate_series(1, 5)"))
    };
    let prepared = old.prepare(&format!("SELECT snowflake_next('{layout}')")).unwrap();
    draw(&mut old);
    old.query_one(&prepared, &[]).unwrap();
    assert_eq!(announced(&cluster), 0);
    cluster.clock().set_offset_ms(40 * 86_400_000);
    for _ in 0..20 {
        old.query_one(&prepared, &[]).unwrap();
        draw(&mut old);
    }
    assert_eq!(announced(&cluster), 1, "announced to the session that drew before");
    for sessions in 2..=4 {
        let mut client = cluster.client();
        for days in [41, 42] {
            cluster.clock().set_offset_ms((days + 3 * sessions) * 86_400_000);
            draw(&mut client);
            // The same layout in another spelling.
            value::<i64>(
                &mut client,
                &format!("SELECT snowflake_next('{}')", layout.replace("unit:1s ", "unit:1000ms ")),
            );
        }
        assert_eq!(announced(&cluster), sessions as usize);
    }
    // Another layout is announced separately.
    let other = ending_in_days(&mut old, 100, 10);
    value::<i64>(&mut old, &format!("SELECT snowflake_next('{other}')"));
    assert_eq!(announced(&cluster), 5);
}

/// The mark moves once, for the first session. The others draw below it: one in a long transaction, and one in short ones.
#[test]
fn last_year_is_announced_also_to_sessions_for_which_the_mark_does_not_move() {
    let builder = Cluster::builder().fake_clock().conf("idgen.clock_window", "1min").conf("idgen.max_drift", "0");
    let cluster = builder.start_with_extension();
    let [mut mover, mut long, mut quiet] = [cluster.client(), cluster.client(), cluster.client()];
    let layout = ending_in_days(&mut mover, 400, 20);
    let next = format!("SELECT snowflake_next('{layout}')");
    let draws = [&mut mover, &mut long, &mut quiet].map(|client| client.prepare(&next).unwrap());
    let loops = "DO $$ BEGIN FOR n IN 1..10000 LOOP PERFORM snowflake_next('LAYOUT'); END LOOP; END $$";
    mover.query_one(&draws[0], &[]).unwrap();
    quiet.query_one(&draws[2], &[]).unwrap();
    execute(&mut long, "BEGIN");
    long.query_one(&draws[1], &[]).unwrap();
    assert_eq!(announced(&cluster), 0);

    cluster.clock().set_offset_ms(40 * 86_400_000);
    mover.query_one(&draws[0], &[]).unwrap();
    assert_eq!(announced(&cluster), 1);
    for _ in 0..2 {
        execute(&mut long, &loops.replace("LAYOUT", &layout));
        assert_eq!(announced(&cluster), 2, "announced to the long transaction");
    }
    for _ in 0..2 {
        quiet.query_one(&draws[2], &[]).unwrap();
        assert_eq!(announced(&cluster), 3, "announced to the quiet session");
    }
    execute(&mut long, "COMMIT");
    mover.query_one(&draws[0], &[]).unwrap();
    long.query_one(&draws[1], &[]).unwrap();
    assert_eq!(announced(&cluster), 3);
}

#[test]
fn parallel_worker_does_not_announce_the_last_year() {
    let cluster = Cluster::start();
    cluster.execute("CREATE EXTENSION idgen");
    let mut client = cluster.client();
    with_workers(&mut client, "rows", 20_000);
    let layout = ending_in_days(&mut client, 100, 12);
    value::<i64>(&mut client, &format!("SELECT snowflake_next('{layout}')"));
    run_in_workers(&mut client, &format!("SELECT count(*) FROM rows WHERE snowflake_next('{layout}') > 0"));
    assert_eq!(announced(&cluster), 1);
}
