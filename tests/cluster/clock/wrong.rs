//! A clock that is wrong for a moment leaves no effect if no id was issued under it.

use idgen_core::clock::label::MarkLabel;
use idgen_testkit::high_water::{directory, file, mark_ms, newest_record};
use idgen_testkit::sql::{PATIENCE, backend_pid, check, execute, expect_error, value, wait_for_event};
use idgen_testkit::{Cluster, Stop, chown_to_server, pause};
use postgres::Client;

use crate::{builder, draw_one, wait_for_end_of_worker, wait_until_past_checkpoint};

const DAY_MS: i64 = 86_400_000;
const YEAR_MS: i64 = 365 * DAY_MS;

/// The largest lead after a crash. Drift and one and a half windows are 5.5 s.
const AFTER_CRASH_MS: f64 = 10_000.0;

/// A wrong clock and a call that fails under it.
#[derive(Clone, Copy, Debug)]
struct WrongClock {
    offset_ms: i64,
    sql: &'static str,
    words: &'static str,
}

const WRONG_CLOCKS: [WrongClock; 3] = [
    WrongClock { offset_ms: 73 * YEAR_MS, sql: "SELECT snowflake_next()", words: "time bits" },
    WrongClock { offset_ms: 73 * YEAR_MS, sql: "SELECT count(*) FROM snowflake_next_many(9)", words: "time bits" },
    WrongClock {
        offset_ms: 30 * YEAR_MS,
        sql: "SELECT snowflake_next('time:41 worker:10 sequence:12 epoch:2100-01-01')",
        words: "before the epoch",
    },
];

/// Makes the call under the wrong clock, and sets the clock right.
fn fail_under(wrong: WrongClock, cluster: &Cluster, client: &mut Client) {
    cluster.clock().set_offset_ms(wrong.offset_ms);
    let error = expect_error(client, wrong.sql, "22003");
    assert!(error.message().contains(wrong.words), "{wrong:?}: {error:?}");
    cluster.clock().set_offset_ms(0);
}

fn assert_near_the_clock(cluster: &Cluster, when: &str) {
    let drawn = draw_one(&mut cluster.client(), "snowflake");
    assert!(drawn.lead_ms <= AFTER_CRASH_MS, "{when}: ids are {} ms ahead of the clock", drawn.lead_ms);
}

#[test]
fn failed_call_under_a_wrong_clock_moves_no_mark() {
    for wrong in WRONG_CLOCKS {
        let cluster = builder().start_with_extension();
        fail_under(wrong, &cluster, &mut cluster.client());
        assert!(!directory(&cluster).exists(), "{wrong:?}: the failed call created the file");
        assert_near_the_clock(&cluster, "after the first call ever");
        // The file exists now, and its mark is read again.
        cluster.restart();
        let before_ms = mark_ms(&cluster);
        fail_under(wrong, &cluster, &mut cluster.client());
        assert_eq!(mark_ms(&cluster), before_ms, "{wrong:?}");
        let mut client = cluster.client();
        draw_one(&mut client, "snowflake");
        fail_under(wrong, &cluster, &mut client);
        fail_under(wrong, &cluster, &mut cluster.client());
        cluster.kill9_and_restart();
        assert_near_the_clock(&cluster, &format!("{wrong:?}"));
    }
}

#[test]
fn observed_id_moves_the_mark_past_itself_and_not_past_a_wrong_clock() {
    for has_drawn in [false, true] {
        let cluster = builder().start_with_extension();
        wait_until_past_checkpoint(&cluster);
        if has_drawn {
            draw_one(&mut cluster.client(), "snowflake");
        }
        let mut dba = cluster.client();
        let id: i64 = value(&mut dba, "SELECT snowflake_make(clock_timestamp(), 9, 77)");
        cluster.clock().set_offset_ms(73 * YEAR_MS);
        execute(&mut dba, &format!("SELECT snowflake_observe({id})"));
        cluster.clock().set_offset_ms(0);
        let drawn = draw_one(&mut dba, "snowflake");
        assert!(drawn.id > id && drawn.lead_ms < 1000.0, "{} ms ahead of the clock", drawn.lead_ms);
        cluster.kill9_postmaster();
        cluster.start_again();
        assert_near_the_clock(&cluster, "after a crash");
    }
}

/// The time of the label, `i64::MIN` without one.
fn label_ms(client: &mut Client) -> i64 {
    let text: Option<String> = value(client, "SELECT max(label) FROM pg_shseclabel WHERE provider = 'idgen'");
    text.map_or(i64::MIN, |text| MarkLabel::parse(&text).expect("a label").until_ms)
}

/// A draw waits for the label of the wrong time and is cancelled right after the label was written. The label is taken back,
/// so that neither this server nor a standby begins there; also where the transaction goes on from a savepoint.
#[test]
fn label_of_a_cancelled_draw_under_a_wrong_clock_is_taken_back() {
    let (cancel, terminate) = ("pg_cancel_backend", "pg_terminate_backend");
    for (end, before, after) in [(cancel, "", ""), (terminate, "", ""), (cancel, "BEGIN; SAVEPOINT s", "ROLLBACK TO s")]
    {
        let server = builder().start_with_extension();
        let standby = server.standby();
        let mut dba = server.client();
        draw_one(&mut dba, "snowflake");
        wait_for_end_of_worker(&server, &mut dba);
        let (before_ms, mark_before_ms) = (label_ms(&mut dba), mark_ms(&server));

        let mut holder = server.client();
        execute(&mut holder, "BEGIN; LOCK TABLE pg_shseclabel IN SHARE MODE");
        server.clock().set_offset_ms(YEAR_MS);
        let mut client = server.client();
        let pid = backend_pid(&mut client);
        let _open = std::thread::scope(|scope| {
            let drawing = scope.spawn(move || {
                execute(&mut client, before);
                client.simple_query("SELECT snowflake_next()").expect_err("no id");
                let is_connected = client.simple_query(after).is_ok();
                is_connected.then_some(client)
            });
            wait_for_event(&server, pid, "Extension");
            let paused = pause(pid);
            execute(&mut holder, "COMMIT");
            server.wait_for(PATIENCE, "the label of the wrong time", || label_ms(&mut dba) > before_ms + YEAR_MS / 2);
            server.clock().set_offset_ms(0);
            execute(&mut dba, &format!("SELECT {end}({pid})"));
            drop(paused);
            drawing.join().expect("a session")
        });
        // No session draws.
        server.wait_for(PATIENCE, "the label of the right time", || label_ms(&mut dba) <= before_ms);
        assert_eq!(mark_ms(&server), mark_before_ms);
        let first = draw_one(&mut dba, "snowflake");
        assert!(first.lead_ms <= AFTER_CRASH_MS, "{} ms ahead of the clock", first.lead_ms);
        standby.wait_until_replayed(&server);
        server.kill9_postmaster();
        standby.promote();
        let second = draw_one(&mut standby.client(), "snowflake");
        assert!(second.id > first.id && second.lead_ms <= 20_000.0, "the standby is {} ms ahead", second.lead_ms);
    }
}

/// The first draw of a server, which has no file yet.
#[test]
fn cancelled_first_draw_under_a_wrong_clock_leaves_nothing_and_starts_one_worker() {
    let server = builder().start_with_extension();
    let mut dba = server.client();
    let mut holder = server.client();
    execute(&mut holder, "BEGIN; LOCK TABLE pg_shseclabel IN SHARE MODE");
    server.clock().set_offset_ms(YEAR_MS);
    let mut client = server.client();
    let pid = backend_pid(&mut client);
    std::thread::scope(|scope| {
        let drawing = scope.spawn(|| expect_error(&mut client, "SELECT snowflake_next()", "57014"));
        wait_for_event(&server, pid, "Extension");
        execute(&mut dba, &format!("SELECT pg_cancel_backend({pid})"));
        drawing.join().expect("a session");
    });
    execute(&mut holder, "COMMIT");
    server.clock().set_offset_ms(0);
    wait_for_end_of_worker(&server, &mut dba);
    // A worker that starts the next one at its end would write on and on.
    let first = draw_one(&mut dba, "snowflake");
    assert!(first.lead_ms <= AFTER_CRASH_MS, "{} ms ahead of the clock", first.lead_ms);
    wait_for_end_of_worker(&server, &mut dba);
    let writes = "SELECT n_tup_ins + n_tup_upd FROM pg_stat_all_tables WHERE relname = 'pg_shseclabel'";
    let writes: i64 = value(&mut dba, writes);
    assert!(writes <= 5, "the label was written {writes} times");
    drop(dba);
    server.kill9_postmaster();
    server.start_again();
    assert_near_the_clock(&server, "after a crash");
}

/// The steps of the page on operations, on a primary and its standby.
#[test]
fn wrong_ids_and_their_time_are_removed_by_the_steps_of_the_page() {
    let server = builder().start_with_extension();
    server.execute("CREATE TABLE t (id bigint PRIMARY KEY DEFAULT snowflake_next())");
    server.execute("INSERT INTO t DEFAULT VALUES");
    let standby = server.standby();
    server.clock().set_offset_ms(YEAR_MS);
    server.execute("INSERT INTO t DEFAULT VALUES");
    server.clock().set_offset_ms(0);
    server.execute("DELETE FROM t WHERE snowflake_time(id) > now() + interval '1 day'");
    let mut dba = server.client();
    wait_for_end_of_worker(&server, &mut dba);
    execute(&mut dba, "DELETE FROM pg_shseclabel WHERE provider = 'idgen'");
    drop(dba);
    standby.wait_until_replayed(&server);
    for stopped in [&server, &standby] {
        stopped.stop(Stop::Fast);
        std::fs::remove_dir_all(directory(stopped)).expect("a directory of the server");
    }
    server.start_again();
    standby.start_again();
    let mut client = server.client();
    let first = draw_one(&mut client, "snowflake");
    assert!(first.lead_ms <= AFTER_CRASH_MS, "{} ms ahead of the clock", first.lead_ms);
    standby.wait_until_replayed(&server);
    server.kill9_postmaster();
    standby.promote();
    let second = draw_one(&mut standby.client(), "snowflake");
    assert!(second.id > first.id && second.lead_ms <= 20_000.0, "the standby is {} ms ahead", second.lead_ms);
}

/// Observed by an earlier release, which let ids get past the end of 64-bit nanoseconds.
#[test]
fn mark_beyond_the_end_of_clocks_stops_no_draw_and_draws_can_be_ended() {
    const LONG: &str = "time:45 sequence:12 epoch:2020-01-01";
    const YEAR_2300_MS: i64 = 10_413_792_000_000;
    let server = builder().start_with_extension();
    draw_one(&mut server.client(), LONG);
    server.stop(Stop::Fast);
    let record = newest_record(&server).record;
    let record = idgen_core::clock::record::Record { turn: record.turn + 1, mark_ms: YEAR_2300_MS, ..record };
    let mut bytes = std::fs::read(file(&server)).expect("the file");
    for at in record.offsets() {
        bytes[at as usize..][..512].copy_from_slice(&record.encode());
    }
    std::fs::write(file(&server), bytes).expect("the file");
    chown_to_server(&file(&server));
    server.start_again();
    let mut client = server.client();
    execute(&mut client, "SET statement_timeout = '20 s'");
    for _ in 0..100 {
        assert!(draw_one(&mut client, LONG).time_ms >= YEAR_2300_MS);
    }
    execute(&mut client, "SET statement_timeout = '100 ms'");
    expect_error(&mut client, &format!("SELECT count(*) FROM snowflake_next_many(2000000000, '{LONG}')"), "57014");
    // And none gets there any more.
    execute(&mut client, "RESET statement_timeout");
    let error = expect_error(
        &mut client,
        &format!("SELECT snowflake_observe(snowflake_floor('2263-01-01Z', '{LONG}'), '{LONG}', true)"),
        "22003",
    );
    assert!(error.detail().is_some_and(|detail| detail.contains("2262-04-11")), "{error:?}");
}

#[test]
fn clock_past_2262_is_named_as_it_is() {
    let server = builder().start_with_extension();
    server.clock().set_offset_ms(300 * YEAR_MS);
    let mut client = server.client();
    expect_error(&mut client, "SELECT snowflake_next()", "22003");
    let future = "time:41 sequence:12 epoch:2600-01-01";
    let error = expect_error(&mut client, &format!("SELECT snowflake_next('{future}')"), "22003");
    assert!(error.detail().is_some_and(|detail| detail.contains("The server's clock is at 2326-")), "{error:?}");
}

/// The log lines about steps forward.
fn steps_forward_logged(cluster: &Cluster) -> Vec<String> {
    cluster.log().lines().filter(|line| line.contains("stepped forward")).map(str::to_owned).collect()
}

#[test]
fn step_forward_beyond_a_day_is_reported_until_the_clock_is_right() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    draw_one(&mut client, "snowflake");
    // A step of less than a day is not reported.
    cluster.clock().set_offset_ms(DAY_MS - 60_000);
    draw_one(&mut client, "snowflake");
    assert_eq!(steps_forward_logged(&cluster), Vec::<String>::new());
    assert!(check(&mut client, "clock").0);

    cluster.clock().set_offset_ms(74 * YEAR_MS);
    for _ in 0..3 {
        expect_error(&mut client, "SELECT snowflake_next()", "22003");
    }
    let lines = steps_forward_logged(&cluster);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("27009 days"), "{lines:?}");
    let (ok, message) = check(&mut client, "clock");
    assert!(!ok && message.contains("forward") && message.contains("27009 days"), "{message}");
    assert!(message.contains("reset_stats"), "{message}");

    // The check is ok at once, before the next id.
    cluster.clock().set_offset_ms(DAY_MS - 60_000);
    let (ok, message) = check(&mut client, "clock");
    assert!(ok, "{message}");
    draw_one(&mut client, "snowflake");
    assert!(check(&mut client, "clock").0);
}

#[test]
fn reset_stats_acknowledges_a_correct_step_forward() {
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    draw_one(&mut client, "snowflake");
    for times in 1..=2 {
        cluster.clock().set_offset_ms(times * 3 * DAY_MS);
        draw_one(&mut client, "snowflake");
        let (ok, message) = check(&mut client, "clock");
        assert!(!ok && message.contains(&format!("in {times} step")), "{message}");
    }
    assert_eq!(steps_forward_logged(&cluster).len(), 2);
    execute(&mut client, "SELECT idgen.reset_stats()");
    let (ok, message) = check(&mut client, "clock");
    assert!(ok, "{message}");
    assert!(draw_one(&mut client, "snowflake").lead_ms <= 1.0, "ids follow the clock");
}
