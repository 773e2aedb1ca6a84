//! A locked row of a tag: draws continue while the ring lasts, and then fail with a clear error.

use idgen_testkit::Cluster;
use idgen_testkit::ids::last;
use idgen_testkit::segment::{create, next};
use idgen_testkit::sql::{execute, expect_error, hint, ids, row, value};

use crate::refill::wait_for_report;
use crate::{draw_dry, fixed, max_id, remaining, singly, with_segment};

const LOCKED: &str = "A transaction that has not ended holds a lock on the segment's row in idgen.segment.";

#[test]
fn locked_row_blocks_no_draw_while_the_ring_lasts() {
    let cluster = with_segment(Cluster::builder(), 1000);
    let [mut client, mut other, mut holder] = [cluster.client(), cluster.client(), cluster.client()];
    let mut seen = ids(&mut client, &singly(10));
    execute(&mut holder, "BEGIN; SELECT FROM idgen.segment WHERE tag = 't' FOR UPDATE");
    assert_eq!(remaining(&mut client), 990);
    // Down to the last value, in two sessions, without waits.
    for session in [&mut client, &mut other] {
        execute(session, "SET idgen.segment_timeout = 0");
        seen.extend(ids(session, &singly(495)));
    }
    assert_eq!(seen, (1..=1000).collect::<Vec<_>>());
    assert_eq!(
        value::<i64>(&mut client, "SELECT waits FROM idgen.stat_segment WHERE tag = 't'"),
        1,
        "only the first draw waited"
    );

    wait_for_report(&cluster, "t", LOCKED);
    for _ in 0..3 {
        let error = expect_error(&mut client, "SELECT segment_next('t')", "55P03");
        assert_eq!(error.message(), "no values of segment \"t\" within idgen.segment_timeout");
        assert_eq!(error.detail(), Some(LOCKED));
        assert_eq!(hint(&error), "Remove the cause, then repeat the call.");
    }
    // The other ways to draw fail likewise.
    for sql in ["SELECT segment_next_many('t', 5)", "SELECT * FROM segment_reserve('t', 5)"] {
        assert_eq!(expect_error(&mut client, sql, "55P03").detail(), Some(LOCKED), "{sql}");
    }
    execute(&mut holder, "ROLLBACK");
    for session in [&mut client, &mut other] {
        execute(session, "RESET idgen.segment_timeout");
        let new = ids(session, &singly(1500));
        assert_eq!(new, (last(&seen) + 1..=last(&seen) + 1500).collect::<Vec<_>>());
        seen.extend(new);
    }
    let report = row(&mut client, "SELECT last_error FROM idgen.stat_segment WHERE tag = 't'");
    assert_eq!(report.get::<_, Option<String>>(0), None);
}

/// Sessions already wait when the lock on the row is released.
#[test]
fn waiting_draws_continue_when_the_row_is_unlocked() {
    let cluster = with_segment(Cluster::builder(), 100);
    let [mut client, mut holder] = [cluster.client(), cluster.client()];
    next(&mut client, "t");
    execute(&mut holder, "BEGIN; UPDATE idgen.segment SET step = step WHERE tag = 't'");
    let (drawn, _) = draw_dry(&mut client);
    assert_eq!(last(&drawn), 100);
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let mut client = cluster.client();
                execute(&mut client, "SET idgen.segment_timeout = '60s'");
                scope.spawn(move || next(&mut client, "t"))
            })
            .collect();
        let sql = "SELECT waits = 6 FROM idgen.stat_segment WHERE tag = 't'";
        cluster.wait_for(idgen_testkit::sql::PATIENCE, "four waiting sessions", || value(&mut holder, sql));
        execute(&mut holder, "ROLLBACK");
        let mut served: Vec<i64> = waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect();
        served.sort_unstable();
        assert_eq!(served, [101, 102, 103, 104]);
    });
}

/// The worker serves all tags of its database and skips one that it cannot serve.
#[test]
fn locked_row_blocks_no_other_tag() {
    let cluster = with_segment(Cluster::builder(), 100);
    create(&mut cluster.client(), "u", &fixed(100));
    let [mut client, mut holder] = [cluster.client(), cluster.client()];
    next(&mut client, "t");
    execute(&mut holder, "BEGIN; SELECT FROM idgen.segment WHERE tag = 't' FOR UPDATE");
    assert_eq!(last(&draw_dry(&mut client).0), 100);
    wait_for_report(&cluster, "t", LOCKED);
    let others = ids(&mut client, "SELECT segment_next('u') FROM generate_series(1, 2000)");
    assert_eq!(others, (1..=2000).collect::<Vec<_>>());
    assert_eq!(max_id(&mut client, "t"), 100, "the row was locked all the time");
}
