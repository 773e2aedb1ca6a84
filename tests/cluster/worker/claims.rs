//! Worker ids from a pool: no worker id has two holders, and the next holder begins after the last one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use idgen_testkit::grants::epoch_us;
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

#[test]
fn pool_grants_each_worker_id_once_and_then_is_exhausted() {
    const SLOTS: i32 = 32;
    let cluster = builder().start_with_extension();
    cluster.execute(&format!("SELECT lease_define('p', {SLOTS}, '1 hour')"));
    let claims: Vec<_> = std::thread::scope(|scope| {
        let claim = || acquire(&mut cluster.client(), "'p', 'pod', '1 hour'");
        let claimants: Vec<_> = (0..SLOTS).map(|_| scope.spawn(claim)).collect();
        claimants.into_iter().map(|claimant| claimant.join().unwrap()).collect()
    });
    let worker_ids: BTreeSet<i32> = claims.iter().flatten().map(|grant| grant.worker_id).collect();
    assert_eq!(worker_ids, (0..SLOTS).collect(), "claimants with the same owner have different worker ids");
    let mut client = cluster.client();
    let error = expect_error(&mut client, "SELECT worker_acquire('p', 'pod')", "53400");
    let detail = error.detail().expect("a DETAIL with the holders");
    assert_eq!(detail.matches("\"pod\"").count(), 5, "{detail}");
}

#[test]
fn worker_id_is_free_when_its_session_ends_or_after_ttl_and_lock_delay() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('p', 1, '1 hour')");
    let (mut holder, mut client) = (cluster.client(), cluster.client());
    let first = acquire(&mut holder, "'p', 'a'").expect("the worker id is free");
    assert_eq!(acquire(&mut client, "'p', 'b', '1 hour'"), None);
    let pid = backend_pid(&mut holder);
    assert!(value::<bool>(&mut client, &format!("SELECT pg_terminate_backend({pid}, 60000)")));
    let second = acquire(&mut client, "'p', 'b', '1 hour'").expect("the holder's session has ended");
    // The first holder may have used its hour of id time, so the second one begins after it.
    assert_eq!(second.from_us, first.until_us);

    execute(&mut client, &format!("SELECT worker_release('p', {})", second.token));
    cluster.execute("SELECT lease_define('p', 1, '1 hour', '1 day')");
    acquire(&mut client, "'p', 'b', '100 ms'").expect("the worker id was released");
    let state = "SELECT state FROM idgen.workers";
    cluster.wait_for(PATIENCE, "the worker id to rest", || value::<String>(&mut client, state) == "resting");
    assert_eq!(acquire(&mut client, "'p', 'c', '1 hour'"), None);
    cluster.execute("SELECT lease_define('p', 1, '1 hour', '1 ms')");
    cluster.wait_for(PATIENCE, "the rest to end", || acquire(&mut client, "'p', 'c', '1 hour'").is_some());
}

#[test]
fn early_grant_sends_a_notice_with_the_time_to_wait() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('p', 1, '100 s')");
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
