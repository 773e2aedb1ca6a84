//! A locked row of a tag: draws continue while the ring lasts, and then fail with a clear error.

use idgen_testkit::Cluster;
use idgen_testkit::ids::last;
use idgen_testkit::segment::{create, draw, next};
use idgen_testkit::sql::{execute, expect_error, hint, ids, row, value};
use postgres::error::SqlState;

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

/// It would wait for itself. No other session is an obstacle.
#[test]
fn transaction_that_keeps_the_worker_from_the_row_is_refused() {
    let (_cluster, [mut client]) = Cluster::builder().start_with_clients();
    execute(&mut client, "CREATE ROLE app");
    for (index, block) in [
        "SELECT segment_grant('TAG', 'app')",
        "SAVEPOINT s; SELECT segment_revoke('TAG', 'app', server => true); RELEASE s",
        "SELECT segment_resume('TAG', 0)",
        "SELECT segment_request('TAG', 1, 'one', 0, 5)",
        "SELECT FROM idgen.segment FOR SHARE",
        "LOCK TABLE idgen.segment IN SHARE MODE",
    ]
    .iter()
    .enumerate()
    {
        let tag = format!("t{index}");
        execute(&mut client, &format!("SELECT segment_create('{tag}'); SELECT segment_grant('{tag}', 'app')"));
        // Without values in memory.
        execute(&mut client, &format!("BEGIN; {}", block.replace("TAG", &tag)));
        let error = expect_error(&mut client, &draw(&tag), "55000");
        assert_eq!(error.message(), format!("segment \"{tag}\" was changed in this transaction"), "{block}");
        execute(&mut client, "ROLLBACK");
        // A lock that keeps nothing out.
        execute(
            &mut client,
            "BEGIN; SELECT FROM idgen.segment FOR KEY SHARE; LOCK TABLE idgen.segment IN ROW SHARE MODE",
        );
        assert_eq!(next(&mut client, &tag), 1, "{block}");
        execute(&mut client, "COMMIT");
    }
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

/// A transaction keeps values from the segment by `block`, and then wants the table that the waiting transaction has locked.
/// PostgreSQL ends one of the two. The segment has no values left after `drain`.
pub(crate) fn assert_deadlock_is_detected(cluster: &Cluster, block: &str, drain: impl Fn()) {
    let [mut changer, mut inserter] = [cluster.client(), cluster.client()];
    execute(&mut inserter, "SET idgen.segment_timeout = '20s'; CREATE TABLE IF NOT EXISTS item (id bigint)");
    // The session knows the segment: the transaction has no lock on its table.
    next(&mut inserter, "t");
    execute(&mut inserter, "BEGIN; INSERT INTO item VALUES (segment_next('t'))");
    execute(&mut changer, "BEGIN");
    execute(&mut changer, block);
    drain();
    let ended = std::thread::scope(|scope| {
        let insert = scope.spawn(|| {
            let drawn = inserter.batch_execute(&draw("t"));
            execute(&mut inserter, "ROLLBACK");
            drawn
        });
        let altered = changer.batch_execute("ALTER TABLE item ALTER id TYPE numeric");
        execute(&mut changer, "ROLLBACK");
        [altered, insert.join().unwrap()]
    });
    let codes = ended.map(|result| result.err().and_then(|error| error.code().cloned()));
    let is_deadlock = |code: &Option<SqlState>| *code == Some(SqlState::T_R_DEADLOCK_DETECTED);
    assert!(codes.iter().any(is_deadlock), "{block}: {codes:?}");
    assert!(codes.iter().all(|code| is_deadlock(code) || code.is_none()), "{block}: {codes:?}");
}

#[test]
fn deadlock_of_a_draw_with_a_transaction_that_locks_the_segment_is_detected_smoke() {
    let builder = Cluster::builder().conf("deadlock_timeout", "100ms");
    let cluster = with_segment(builder, 100);
    // A key share of another session is no obstacle, but makes the locks of the row a multixact.
    let key_share = "BEGIN; SELECT FROM idgen.segment WHERE tag = 't' FOR KEY SHARE";
    for (block, beside) in [
        ("SELECT segment_alter('t', target_duration => '2 s')", ""),
        ("SELECT segment_alter('t', target_duration => '3 s')", key_share),
        ("SAVEPOINT s; SELECT FROM idgen.segment WHERE tag = 't' FOR SHARE; RELEASE s", key_share),
        ("SELECT FROM idgen.segment WHERE tag = 't' FOR UPDATE", ""),
        ("LOCK TABLE idgen.segment IN EXCLUSIVE MODE", ""),
        ("DROP EXTENSION idgen", ""),
    ] {
        let (mut sharer, mut drainer) = (cluster.client(), cluster.client());
        // The session knows the segment before the table is locked.
        next(&mut drainer, "t");
        execute(&mut sharer, beside);
        let drainer = std::cell::RefCell::new(drainer);
        assert_deadlock_is_detected(&cluster, block, || drop(draw_dry(&mut drainer.borrow_mut())));
    }
}

/// The queries of a trigger use the transaction's snapshot: repeated, they fail each time.
#[test]
fn conflict_in_a_trigger_is_reported_in_a_transaction_with_one_snapshot() {
    let (_cluster, [mut client]) = Cluster::builder().start_with_clients();
    execute(
        &mut client,
        "SET statement_timeout = '20 s';
         SELECT segment_create('t');
         CREATE FUNCTION conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE serialization_failure;
         END $$;
         CREATE TRIGGER zz AFTER UPDATE ON idgen.segment FOR EACH ROW EXECUTE FUNCTION conflict()",
    );
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        execute(&mut client, &format!("BEGIN ISOLATION LEVEL {level}"));
        expect_error(&mut client, "SELECT segment_alter('t', step => 5000)", "40001");
        execute(&mut client, "ROLLBACK");
    }
}
