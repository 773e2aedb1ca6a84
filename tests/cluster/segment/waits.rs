//! Waits for a refill: they can be ended in every way, leave nothing behind, and have a timeout.

use idgen_testkit::Cluster;
use idgen_testkit::segment::{draw, next};
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, ids, value, wait_until_waiting, while_waiting};
use postgres::Client;

use crate::refill::{wait_for_report, worker};
use crate::{COMMITS_WAIT_FOR_LOCK, HOLD_COMMITS, RELEASE_COMMITS, draw_dry, singly, with_segment};

/// A server with an empty ring, and the session that blocks the refill.
fn with_nothing_left() -> (Cluster, Client) {
    let cluster = with_segment(Cluster::builder().conf("log_line_prefix", "[%p] %e "), 100);
    // Longer than any wait of these tests.
    cluster.execute(
        "ALTER DATABASE postgres SET idgen.segment_timeout = '2min';
         ALTER DATABASE postgres SET statement_timeout = 0",
    );
    let mut holder = cluster.client();
    next(&mut holder, "t");
    execute(&mut holder, "BEGIN; SELECT FROM idgen.segment WHERE tag = 't' FOR UPDATE");
    let (drawn, _) = draw_dry(&mut cluster.client());
    assert_eq!(drawn, (2..=100).collect::<Vec<_>>());
    (cluster, holder)
}

/// Ends a session's wait with this signalling function.
fn end_by(cluster: &Cluster, client: &mut Client, signal: &str) -> postgres::Error {
    let draw = |client: &mut Client| client.simple_query("SELECT segment_next('t')").expect_err("the wait is ended");
    while_waiting(cluster, client, draw, |pid| cluster.execute(&format!("SELECT {signal}({pid})")))
}

#[test]
fn wait_for_a_refill_can_be_cancelled_timed_out_and_terminated_smoke() {
    let (cluster, mut holder) = with_nothing_left();
    let mut client = cluster.client();
    let error = end_by(&cluster, &mut client, "pg_cancel_backend");
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error:?}");

    execute(&mut client, "SET statement_timeout = '100ms'");
    expect_error(&mut client, "SELECT segment_next('t')", "57014");
    execute(&mut client, "RESET statement_timeout");

    // Inside a transaction that continues.
    execute(&mut client, "BEGIN; SAVEPOINT s");
    let error = end_by(&cluster, &mut client, "pg_cancel_backend");
    assert_eq!(error.code().map(|code| code.code()), Some("57014"), "{error:?}");
    execute(&mut client, "ROLLBACK TO s");

    let mut other = cluster.client();
    let pid = backend_pid(&mut other);
    end_by(&cluster, &mut other, "pg_terminate_backend");
    let line = format!("[{pid}] 57P01 FATAL: ");
    assert!(cluster.log().contains(&line), "no {line:?} in\n{}", cluster.log());

    // None of them used a value, and the cancelled session works.
    execute(&mut holder, "ROLLBACK");
    assert_eq!(next(&mut client, "t"), 101);
    execute(&mut client, "COMMIT");
    assert_eq!(next(&mut cluster.client(), "t"), 102);
}

#[test]
fn timed_out_wait_reports_the_last_error_of_the_worker() {
    let (cluster, mut holder) = with_nothing_left();
    let mut client = cluster.client();
    let mut reported = |report: &str| {
        wait_for_report(&cluster, "t", report);
        let (drawn, error) = draw_dry(&mut client);
        assert_eq!(drawn, []);
        assert_eq!(error.detail(), Some(report));
    };
    reported("A transaction that has not ended holds a lock on the segment's row in idgen.segment.");
    execute(&mut holder, "LOCK TABLE idgen.segment IN EXCLUSIVE MODE");
    reported("canceling statement due to lock timeout");
    execute(&mut holder, "ROLLBACK");
    let rest = ids(&mut client, &singly(300));
    assert_eq!(rest, (101..=400).collect::<Vec<_>>());
}

/// The timeout is per session, and 0 means no wait.
#[test]
fn segment_timeout_applies_per_session() {
    let (cluster, mut holder) = with_nothing_left();
    let mut patient = cluster.client();
    let draw = |client: &mut Client| next(client, "t");
    let drawn = while_waiting(&cluster, &mut patient, draw, |pid| {
        let mut client = cluster.client();
        for timeout in ["0", "1ms", "50ms"] {
            execute(&mut client, &format!("SET idgen.segment_timeout = '{timeout}'"));
            expect_error(&mut client, "SELECT segment_next('t')", "55P03");
        }
        execute(&mut client, "BEGIN; SET LOCAL idgen.segment_timeout = 0");
        expect_error(&mut client, "SELECT segment_next_many('t', 10)", "55P03");
        wait_until_waiting(&cluster, pid);
        execute(&mut holder, "ROLLBACK");
    });
    assert_eq!(drawn, 101);
}

/// Waiting sessions start a new worker.
#[test]
fn wait_survives_the_end_of_the_worker() {
    let cluster = with_segment(Cluster::builder(), 100);
    let [mut patient, mut client, mut holder] = [(); 3].map(|()| cluster.client());
    assert_eq!(next(&mut patient, "t"), 1);
    execute(&mut client, COMMITS_WAIT_FOR_LOCK);
    execute(&mut holder, HOLD_COMMITS);
    draw_dry(&mut client);
    execute(&mut patient, "SET idgen.segment_timeout = '2min'");
    let draw = |client: &mut Client| next(client, "t");
    let drawn = while_waiting(&cluster, &mut patient, draw, |_| {
        for _ in 0..3 {
            let mut ended = 0;
            cluster.wait_for(PATIENCE, "a worker", || {
                ended = worker(&mut client, "postgres").unwrap_or(0);
                ended != 0
            });
            execute(&mut client, &format!("SELECT pg_terminate_backend({ended})"));
            cluster.wait_for(PATIENCE, "another worker", || {
                worker(&mut client, "postgres").is_some_and(|pid| pid != ended)
            });
        }
        assert!(value::<bool>(&mut client, "SELECT max_id = 100 FROM idgen.segment WHERE tag = 't'"));
        execute(&mut holder, RELEASE_COMMITS);
    });
    assert_eq!(drawn, 101);
}

/// The session waits for the old row, and the worker finds the new one exhausted. COMMIT PREPARED leaves the ring to the old
/// row until the worker reads the new one.
#[test]
fn waiting_draw_fails_at_once_if_the_new_row_is_exhausted() {
    let cluster = with_segment(Cluster::builder().conf("max_prepared_transactions", "1"), 100);
    cluster.execute("ALTER DATABASE postgres SET idgen.segment_timeout = '40s'");
    let mut changer = cluster.client();
    next(&mut changer, "t");
    execute(&mut changer, "BEGIN; SELECT segment_alter('t', upper_bound => max_id) FROM idgen.segment");
    let (drawn, _) = draw_dry(&mut cluster.client());
    assert_eq!(drawn, (2..=100).collect::<Vec<_>>());
    let draw = |client: &mut Client| expect_error(client, "SELECT segment_next('t')", "2200H");
    let refusal = while_waiting(&cluster, &mut cluster.client(), draw, |_| {
        execute(&mut changer, "PREPARE TRANSACTION 'bound'");
        execute(&mut changer, "COMMIT PREPARED 'bound'");
    });
    assert!(refusal.detail().is_some_and(|detail| detail.starts_with("Its values end at 100,")), "{refusal:?}");
}

/// A call that may not wait still asks for values, so that a later one finds them.
#[test]
fn call_without_a_wait_requests_the_refill() {
    let cluster = with_segment(Cluster::builder().conf("idgen.segment_timeout", "0"), 100);
    let mut client = cluster.client();
    for sql in [draw("t"), "SELECT segment_next_many('t', 5)".to_owned(), "SELECT segment_reserve('t', 150)".to_owned()]
    {
        for _ in 0..2 {
            if let Err(error) = client.query(&sql, &[]) {
                assert_eq!(error.code().map(|code| code.code()), Some("55P03"), "{sql}: {error:?}");
            }
            cluster.wait_for(PATIENCE, &format!("values for {sql}"), || client.query(&sql, &[]).is_ok());
        }
    }
}
