//! Worker ids from a pool: no worker id has two holders, and the next holder begins after the last one.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier, Mutex};

use idgen_testkit::grants::epoch_us;
use idgen_testkit::script::play;
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, value};
use idgen_testkit::{Builder, Cluster};
use postgres::{Client, Config};

use crate::{Grant, try_acquire};

fn builder() -> Builder {
    // Room for worker ids that are released with an hour of id time left.
    Cluster::builder().conf("statement_timeout", "1min").conf("fsync", "off").conf("idgen.worker_max_lead", "1d")
}

/// Acquires with these arguments. `None` if the pool is exhausted.
fn acquire(client: &mut Client, arguments: &str) -> Option<Grant> {
    match try_acquire(client, arguments) {
        Err(error) if error.code().is_some_and(|code| code.code() == "53400") => None,
        answer => Some(answer.unwrap_or_else(|error| panic!("{arguments}: {error:?}"))),
    }
}

/// All look for a row at once, and find rows that others have locked.
#[test]
fn pool_grants_each_worker_id_once_and_then_is_exhausted() {
    const COUNT: i32 = 64;
    let cluster = builder().start_with_extension();
    cluster.execute(&format!("SELECT worker_pool_define('p', count => {COUNT}, ttl => '1 hour')"));
    let (clients, begin) = ((0..COUNT).map(|_| cluster.client()).collect::<Vec<_>>(), Barrier::new(COUNT as usize));
    let claim = |mut client: Client, begin: &Barrier| {
        begin.wait();
        acquire(&mut client, "'p', 'pod', '1 hour'")
    };
    let claims: Vec<_> = std::thread::scope(|scope| {
        let claimants: Vec<_> = clients.into_iter().map(|client| scope.spawn(|| claim(client, &begin))).collect();
        claimants.into_iter().map(|claimant| claimant.join().unwrap()).collect()
    });
    let worker_ids: BTreeSet<i32> = claims.iter().flatten().map(|grant| grant.worker_id).collect();
    assert_eq!(worker_ids, (0..COUNT).collect(), "claimants with the same owner have different worker ids");
    let tokens: BTreeSet<i64> = claims.iter().flatten().map(|grant| grant.token).collect();
    assert!(tokens.len() == COUNT as usize && tokens.iter().all(|token| (1..1 << 53).contains(token)), "{tokens:?}");
    let mut client = cluster.client();
    let error = expect_error(&mut client, "SELECT worker_acquire('p', 'pod')", "53400");
    let detail = error.detail().expect("a DETAIL with the holders");
    assert_eq!(detail.matches("\"pod\"").count(), 5, "{detail}");
}

/// The row may be left as it is. A call that finds no other row must not be refused.
#[test]
fn acquisition_waits_for_a_locked_row_if_no_other_is_free() {
    for (ending, outcome) in [("ROLLBACK", "0"), ("COMMIT", "error 53400 are taken")] {
        play(
            &builder().start_with_extension(),
            &format!(
                "locker: SELECT worker_pool_define('p', count => 1, ttl => '1 hour')
                 locker: BEGIN; UPDATE idgen.worker_id SET not_after = now() + '1 hour', token = 1
                 client waits for transactionid: SELECT worker_id FROM worker_acquire('p')
                 locker: {ending}
                 client ends -> {outcome}"
            ),
        );
    }
}

/// Otherwise two that wait, each for a row that the other has seen granted, would be a deadlock.
#[test]
fn acquisition_that_waits_has_locked_no_row() {
    play(
        &builder().start_with_extension(),
        "first: SELECT worker_pool_define('p', count => 2, ttl => '1 hour')
         first: BEGIN; UPDATE idgen.worker_id SET not_after = now() + '1 hour', token = 1 WHERE worker_id = 0
         second: BEGIN; UPDATE idgen.worker_id SET not_after = now() + '1 hour', token = 2 WHERE worker_id = 1
         client waits for transactionid: SELECT worker_id FROM worker_acquire('p')
         first: COMMIT
         second: UPDATE idgen.worker_id SET owner = 'second' WHERE worker_id = 0
         second: ROLLBACK
         client ends -> 1",
    );
}

/// During the wait for the pool, or for the last worker id, the history is interrupted. The grant must begin after all that may be
/// forgotten, which is two hours of id time.
#[test]
fn acquisition_that_has_waited_grants_by_the_history_of_then() {
    for change in ["SELECT worker_pool_alter('p', ttl => '1 hour')", "UPDATE idgen.worker_id SET token = 1"] {
        play(
            &builder().start_with_extension(),
            &format!(
                "locker: SELECT worker_pool_define('p', count => 1, ttl => '1 hour')
                 locker: BEGIN; {change}
                 client waits for transactionid: SELECT not_before > now() + interval '1 hour' FROM worker_acquire('p')
                 other: SELECT worker_begin_history() IS NOT NULL -> t
                 locker: ROLLBACK
                 client ends -> t
                 other: SELECT count(token) FROM idgen.workers -> 1"
            ),
        );
    }
}

#[test]
fn acquisition_that_is_cancelled_while_it_waits_leaves_the_session_as_it_was() {
    play(
        &builder().start_with_extension(),
        "locker: SELECT worker_pool_define('p', count => 1, ttl => '1 hour')
         locker: BEGIN; UPDATE idgen.worker_id SET token = 1
         client waits for transactionid: SELECT worker_id FROM worker_acquire('p')
         locker: SELECT pg_cancel_backend($client_pid) -> t
         client ends -> error 57014
         locker: ROLLBACK
         client: SELECT worker_id FROM worker_acquire('p') -> 0",
    );
}

#[test]
fn worker_id_outlives_its_session_and_is_free_after_its_release_or_its_id_times() {
    let cluster = builder().start_with_extension();
    cluster
        .execute("SELECT worker_pool_define(pool, count => 1, ttl => '1 hour') FROM unnest('{p,q}'::text[]) AS pool");
    let (mut holder, mut client) = (cluster.client(), cluster.client());
    let first = acquire(&mut holder, "'p', 'a'").expect("the worker id is free");
    let pid = backend_pid(&mut holder);
    assert!(value::<bool>(&mut client, &format!("SELECT pg_terminate_backend({pid}, 60000)")));
    assert_eq!(acquire(&mut client, "'p', 'b', '1 hour'"), None);
    execute(&mut client, &format!("SELECT worker_release('p', {})", first.token));
    let second = acquire(&mut client, "'p', 'b', '1 hour'").expect("the worker id was released");
    // The first holder may have used its hour of id time, so the second one begins after it.
    assert_eq!(second.from_us, first.until_us);

    let short = acquire(&mut client, "'q', 'b', '100 ms'").expect("the worker id is free");
    let mut next = None;
    cluster.wait_for(PATIENCE, "the id times to end", || {
        next = acquire(&mut client, "'q', 'c', '1 hour'");
        next.is_some()
    });
    assert_eq!(next.expect("waited for").from_us, short.until_us);
    let renewal = format!("SELECT worker_renew('q', {}, clock_timestamp())", short.token);
    expect_error(&mut client, &renewal, "55000");
}

#[test]
fn early_grant_sends_a_notice_with_the_time_to_wait() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT worker_pool_define('p', count => 1, ttl => '100 s')");
    let notices = Arc::new(Mutex::new(Vec::new()));
    let mut config: Config = cluster.conninfo().parse().unwrap();
    let sink = Arc::clone(&notices);
    let mut client =
        config.notice_callback(move |notice| sink.lock().unwrap().push(notice)).connect(postgres::NoTls).unwrap();
    let first = acquire(&mut client, "'p', 'a', '100 s'").expect("the worker id is free");
    execute(&mut client, &format!("SELECT worker_release('p', {})", first.token));
    assert_eq!(notices.lock().unwrap().len(), 0, "the first rectangle begins at once");

    let clock = format!("SELECT {}", epoch_us("clock_timestamp()"));
    let before_us: i64 = value(&mut client, &clock);
    let granted = acquire(&mut client, "'p', 'b', '100 s'").expect("the worker id was released");
    let after_us: i64 = value(&mut client, &clock);
    let notices = notices.lock().unwrap();
    let [notice] = &notices[..] else { panic!("expected one notice: {notices:?}") };
    assert_eq!((notice.severity(), notice.code().code()), ("NOTICE", "00000"));
    let wait = notice
        .message()
        .strip_prefix("worker id 0 of pool \"p\" can be used in ")
        .expect("a notice about the worker id");
    let wait_ms: i64 = wait.strip_suffix(" s").expect("seconds").replace('.', "").parse().expect("three decimals");
    let left_ms = |us: i64| (granted.from_us - us + 999) / 1000;
    assert!((left_ms(after_us)..=left_ms(before_us)).contains(&wait_ms), "{wait}");
}
