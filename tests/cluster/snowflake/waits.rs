//! Waits for the clock: they happen, can be ended, and do not block other sessions.

use idgen_testkit::Cluster;
use idgen_testkit::ids::assert_increasing;
use idgen_testkit::script::play;
use idgen_testkit::sql::{backend_pid, execute, expect_error, ids, row, value, wait_until_waiting};
use postgres::Client;

/// Two ids a millisecond.
const NARROW: &str = "time:41 sequence:1 epoch:2020-01-01";
/// The beginning of the canonical spec of `NARROW`.
const NARROW_PREFIX: &str = "time:41 sequence:1 ";
/// Two ids a second.
const SLOW: &str = "time:31 sequence:1 unit:1s epoch:2020-01-01";

/// Compares ids of `NARROW`, drawn one by one, with the clock. OFFSET 0 keeps the subquery, so that the clock is read after
/// the id is drawn.
fn observe(client: &mut Client, count: i32) -> Observed {
    let before: f64 =
        value(client, "SELECT extract(epoch FROM date_trunc('milliseconds', clock_timestamp()))::float8 * 1000");
    let sql = format!(
        "SELECT array_agg(id), count(DISTINCT id >> 1), max(lead)::float8, max(clock)::float8 * 1000 FROM (
             SELECT id, extract(epoch FROM clock) AS clock,
                    extract(epoch FROM snowflake_time(id, '{NARROW}') - clock) * 1000 AS lead
             FROM (SELECT id, clock_timestamp() AS clock
                   FROM (SELECT snowflake_next('{NARROW}') AS id FROM generate_series(1, {count}) OFFSET 0) AS drawn
                   OFFSET 0) AS timed) AS shown"
    );
    let row = row(client, &sql);
    let ids: Vec<i64> = row.get(0);
    assert_increasing(&ids);
    assert_eq!(ids.len(), count as usize);
    Observed { ticks: row.get(1), lead_ms: row.get(2), took_ms: row.get::<_, f64>(3) - before }
}

struct Observed {
    ticks: i64,
    /// The largest lead of an id over the clock.
    lead_ms: f64,
    /// The duration from the beginning of the first millisecond.
    took_ms: f64,
}

fn counted(client: &mut Client, column: &str, layout: &str) -> i64 {
    value(client, &format!("SELECT {column} FROM idgen.stat_snowflake WHERE layout LIKE '{layout}%'"))
}

#[test]
fn loop_is_throttled_and_ids_stay_within_the_drift() {
    let cluster = Cluster::builder().conf("idgen.max_drift", "0").start_with_extension();
    let mut client = cluster.client();
    let seen = observe(&mut client, 1000);
    assert!(seen.ticks >= 500, "two ids a tick: {}", seen.ticks);
    assert!(seen.lead_ms <= 0.0, "{} ms ahead", seen.lead_ms);
    // 500 ticks have 499 ticks from the beginning of the first to the beginning of the last.
    assert!(seen.took_ms >= 498.99, "{} ms for 500 ticks", seen.took_ms);
    assert_eq!(counted(&mut client, "borrowed", NARROW_PREFIX), 0);
    assert!(counted(&mut client, "waits", NARROW_PREFIX) > 0);

    // The same session and generator with another drift, which the session does not cache.
    cluster.set_conf("idgen.max_drift", "1s");
    cluster.reload();
    let batch = ids(&mut client, &format!("SELECT snowflake_next_many(1500, '{NARROW}')"));
    assert_increasing(&batch);
    // One reservation: 750 ticks, of which all but the first one or two lie ahead.
    assert!(counted(&mut client, "borrowed", NARROW_PREFIX) >= 1400);
    let seen = observe(&mut client, 2500);
    assert!(seen.lead_ms <= 1000.0, "{} ms ahead", seen.lead_ms);

    // Ids that are ahead go on from there, no faster than time passes.
    cluster.set_conf("idgen.max_drift", "0");
    cluster.reload();
    let before = counted(&mut client, "waits", NARROW_PREFIX);
    let seen = observe(&mut client, 100);
    assert!(seen.lead_ms <= 1001.0, "{} ms ahead", seen.lead_ms);
    assert!(counted(&mut client, "waits", NARROW_PREFIX) > before, "the session does not wait");
}

/// A server without a drift.
fn server() -> Cluster {
    Cluster::builder().conf("idgen.max_drift", "0").conf("log_line_prefix", "[%p] %e ").start_with_extension()
}

/// Waits for 49 seconds at least, longer than any of these tests takes.
fn draw_slowly() -> String {
    format!("SELECT count(*) FROM snowflake_next_many(100, '{SLOW}')")
}

/// The log shows that a session was terminated. A slow client sees only the end of the connection.
fn assert_terminated(cluster: &Cluster, pid: i32) {
    let line = format!("[{pid}] 57P01 FATAL: ");
    assert!(cluster.log().contains(&line), "no {line:?} in\n{}", cluster.log());
}

/// The waits ended early: most ids were not drawn.
fn assert_early(client: &mut Client) {
    let issued = counted(client, "issued", "time:31");
    assert!(issued < 80, "{issued} ids were drawn");
}

#[test]
fn wait_for_the_clock_can_be_ended_and_the_next_call_works_smoke() {
    let cluster = server();
    let mut client = cluster.client();
    let mut observer = cluster.client();
    let waits = |observer: &mut Client| counted(observer, "waits", "time:31");

    execute(&mut client, "SET statement_timeout = '200ms'");
    expect_error(&mut client, &draw_slowly(), "57014");
    execute(&mut client, "RESET statement_timeout");
    assert_early(&mut observer);
    assert!(waits(&mut observer) > 0, "an ended wait counts");
    assert!(value::<i64>(&mut client, "SELECT snowflake_next()") > 0);
    // Inside a transaction that continues.
    execute(&mut client, "BEGIN; SAVEPOINT s; SET LOCAL statement_timeout = '200ms'");
    expect_error(&mut client, &draw_slowly(), "57014");
    execute(&mut client, "ROLLBACK TO s");
    assert!(value::<i64>(&mut client, "SELECT snowflake_next()") > 0);
    execute(&mut client, "COMMIT");

    let pid = backend_pid(&mut client);
    let mut end_by = |signal: &str, client: &mut Client| {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| client.simple_query(&draw_slowly()).expect_err("the wait is ended"));
            wait_until_waiting(&cluster, pid);
            assert!(value::<bool>(&mut observer, &format!("SELECT {signal}({pid})")));
            let error = waiter.join().unwrap();
            assert_early(&mut observer);
            error
        })
    };
    let error = end_by("pg_cancel_backend", &mut client);
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error:?}");
    assert!(value::<i64>(&mut client, "SELECT snowflake_next()") > 0);
    end_by("pg_terminate_backend", &mut client);
    assert_terminated(&cluster, pid);
    assert!(client.simple_query("SELECT 1").is_err(), "the session was terminated");
    let waited = waits(&mut observer);
    assert!(value::<i64>(&mut cluster.client(), "SELECT snowflake_next()") > 0);

    // With a large enough drift there is no wait.
    cluster.set_conf("idgen.max_drift", "1min");
    cluster.reload();
    assert_eq!(value::<i64>(&mut cluster.client(), &draw_slowly()), 100);
    assert_eq!(waits(&mut observer), waited);

    execute(&mut observer, "SELECT idgen.reset_stats()");
    let left = "SELECT sum(issued + batches + borrowed + waits)::bigint + extract(epoch FROM sum(wait_time))::bigint
                FROM idgen.stat_snowflake";
    assert_eq!(value::<i64>(&mut observer, left), 0);
}

#[test]
fn waiting_session_blocks_no_other_session() {
    let script = "client waits for Extension: SLOWLY
        -- A layout in use, one new to this session, one new to the server, and a view of all of them.
        other: SELECT count(snowflake_next()) FROM generate_series(1, 100) -> 100
        other: SELECT snowflake_next('js53') > 0 -> t
        other: SELECT snowflake_next('time:41 tag:4=9 sequence:12 epoch:2020-01-01') > 0 -> t
        other: SELECT count(*), idgen.status() IS NOT NULL FROM idgen.stat_snowflake -> 4|t
        -- All of that happened while it waited.
        client waits for Extension
        other: SELECT issued < 80 FROM idgen.stat_snowflake WHERE layout LIKE 'time:31%' -> t
        other: SELECT pg_cancel_backend($client_pid) -> t
        client ends -> error 57014";
    play(&server(), &script.replace("SLOWLY", &draw_slowly()));
}

/// A wait ends when the server stops or its postmaster dies.
#[test]
fn wait_for_the_clock_does_not_delay_a_stop() {
    let cluster = server();
    std::thread::scope(|scope| {
        let mut client = cluster.client();
        let pid = backend_pid(&mut client);
        let waiter = scope.spawn(move || client.simple_query(&draw_slowly()).is_err());
        wait_until_waiting(&cluster, pid);
        // Returns when all children have exited.
        cluster.kill9_postmaster();
        assert!(waiter.join().unwrap());
    });

    let cluster = server();
    let mut client = cluster.client();
    let pid = backend_pid(&mut client);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.simple_query(&draw_slowly()).is_err());
        wait_until_waiting(&cluster, pid);
        assert_early(&mut cluster.client());
        cluster.restart();
        assert!(waiter.join().unwrap());
    });
    assert_terminated(&cluster, pid);
    assert!(value::<i64>(&mut cluster.client(), "SELECT snowflake_next()") > 0);
}
