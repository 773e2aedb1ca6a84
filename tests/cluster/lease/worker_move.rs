//! Worker ids that are moved to another pool: holders continue under the new name, and no id time is granted twice.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use idgen_testkit::lease::acquire;
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, row, value};
use idgen_testkit::{Cluster, grants, rounds};
use postgres::Client;
use postgres::error::SqlState;

use crate::{builder, release, states, wait_until_queued, wait_until_waiting_for_row};

const POOLS: [&str; 2] = ["a", "b"];

/// A server with both pools, which have the same range.
fn pools() -> Cluster {
    let cluster = builder().start_with_extension();
    POOLS.iter().for_each(|pool| define(&mut cluster.client(), pool));
    cluster
}

fn define(client: &mut Client, pool: &str) {
    execute(client, &format!("SELECT lease_define('{pool}', 4, '1 hour', first_slot => 10)"));
}

/// Returns the worker id and the token.
fn acquire_worker(client: &mut Client, pool: &str) -> (i32, i64) {
    let row = row(client, &format!("SELECT worker_id, token FROM worker_acquire('{pool}', ttl => '1 hour')"));
    (row.get(0), row.get(1))
}

/// The renewal from the end that the holder knows.
fn renewal(pool: &str, token: i64) -> String {
    let last = format!("(SELECT not_after FROM idgen.worker_number WHERE token = {token})");
    format!("SELECT worker_renew('{pool}', {token}, {last})")
}

#[test]
fn renewal_during_a_move_waits_fails_and_succeeds_under_the_new_name() {
    let cluster = pools();
    let [mut mover, mut holder] = [cluster.client(), cluster.client()];
    let (worker_id, token) = acquire_worker(&mut holder, "a");
    let pid = backend_pid(&mut holder);
    let rectangle = "SELECT pool || number || token || not_before || not_after FROM idgen.worker_number";
    let before: String = value(&mut mover, rectangle);

    execute(&mut mover, "BEGIN");
    assert_eq!(value::<i32>(&mut mover, "SELECT worker_move('a', 'b')"), 1);
    let outcome = |holder: &mut Client, ending: &str, mover: &mut Client| {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| holder.simple_query(&renewal("a", token)).map(|_| ()));
            wait_until_waiting_for_row(&cluster, pid);
            execute(mover, ending);
            waiter.join().unwrap()
        })
    };
    outcome(&mut holder, "ROLLBACK", &mut mover).expect("the move was rolled back");
    execute(&mut mover, "BEGIN; SELECT worker_move('a', 'b')");
    let before_move: String = value(&mut mover, rectangle);
    let error = outcome(&mut holder, "COMMIT", &mut mover).expect_err("the move was committed");
    assert_eq!(error.code().map(SqlState::code), Some("55000"), "{error:?}");
    assert_eq!(value::<String>(&mut mover, rectangle), before_move);
    assert_ne!(before_move, before);

    execute(&mut holder, &renewal("b", token));
    expect_error(&mut holder, &renewal("a", token), "55000");
    assert_ne!(acquire_worker(&mut mover, "b").0, worker_id);
    execute(&mut holder, &format!("BEGIN; SELECT lease_fence('b', {token}); COMMIT"));
    assert!(value::<bool>(&mut holder, &format!("SELECT worker_release('b', {token})")));
}

#[test]
fn move_waits_for_a_holder_that_has_fenced() {
    let cluster = pools();
    let [mut mover, mut holder] = [cluster.client(), cluster.client()];
    let (_, token) = acquire_worker(&mut holder, "a");
    let pid = backend_pid(&mut mover);
    execute(&mut holder, &format!("BEGIN; SELECT lease_fence('a', {token})"));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| value::<i32>(&mut mover, "SELECT worker_move('a', 'b')"));
        wait_until_waiting_for_row(&cluster, pid);
        execute(&mut holder, "COMMIT");
        assert_eq!(waiter.join().unwrap(), 1);
    });
    execute(&mut holder, &renewal("b", token));
}

/// The caller found the pool before it queued. It must not get a worker id of a pool that no longer exists.
#[test]
fn caller_queued_during_a_move_gets_no_worker_id_of_the_old_pool() {
    let cluster = pools();
    let [mut mover, mut client] = [cluster.client(), cluster.client()];
    acquire_worker(&mut client, "a");
    let pid = backend_pid(&mut client);
    execute(&mut mover, "BEGIN; SELECT worker_move('a', 'b')");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| expect_error(&mut client, "SELECT worker_acquire('a', ttl => '1 hour')", "42704"));
        wait_until_queued(&cluster, pid);
        execute(&mut mover, "COMMIT");
        waiter.join().unwrap();
    });
    assert_eq!(states(&mut mover, "a"), Vec::<String>::new());
    assert_eq!(value::<String>(&mut mover, "SELECT string_agg(pool || number, ' ') FROM idgen.worker_number"), "b10");
}

/// The drop waits for the move, and then finds the moved worker ids.
#[test]
fn pool_is_not_dropped_while_worker_ids_are_moved_to_it() {
    let cluster = pools();
    let [mut mover, mut client] = [cluster.client(), cluster.client()];
    let (_, token) = acquire_worker(&mut client, "a");
    let pid = backend_pid(&mut client);
    execute(&mut mover, "BEGIN; SELECT worker_move('a', 'b')");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| expect_error(&mut client, "SELECT lease_drop('b')", "55006"));
        wait_until_waiting_for_row(&cluster, pid);
        execute(&mut mover, "COMMIT");
        waiter.join().unwrap();
    });
    execute(&mut client, &renewal("b", token));
}

/// Under the other pool's name, its holder could renew it, and no worker id would be granted beside it.
#[test]
fn expired_shared_term_ends_with_the_move() {
    let cluster = pools();
    let mut client = cluster.client();
    let token = acquire(&mut client, "'c', '100 ms', shared => true").token;
    execute(&mut client, "SELECT lease_define('c', 4, '1 hour')");
    cluster.wait_for(PATIENCE, "the shared term to end", || states(&mut client, "c")[0].ends_with(" expired"));
    execute(&mut client, "SELECT worker_move('c', 'b')");
    for pool in ["b", "c"] {
        expect_error(&mut client, &format!("SELECT lease_renew('{pool}', {token})"), "55000");
    }
    assert_eq!(acquire_worker(&mut client, "b").0, 10);
}

/// The session keeps its leases under the names that it acquired.
#[test]
fn worker_id_bound_to_a_session_stays_bound_over_a_move() {
    let cluster = pools();
    let [mut mover, mut holder] = [cluster.client(), cluster.client()];
    let token: i64 = value(&mut holder, "SELECT token FROM worker_acquire('a')");
    assert_eq!(value::<i32>(&mut mover, "SELECT worker_move('a', 'b')"), 1);
    // A session that binds another lease releases the locks of lost leases.
    for _ in 0..2 {
        let other = acquire(&mut holder, "'other', bind_session => true");
        assert_eq!(states(&mut mover, "b"), ["10 held"]);
        assert!(release(&mut holder, "other", other.token));
    }
    execute(&mut holder, &renewal("b", token));
    let pid = backend_pid(&mut holder);
    assert!(value::<bool>(&mut mover, &format!("SELECT pg_terminate_backend({pid}, 60000)")));
    assert_eq!(states(&mut mover, "b"), ["10 expired"]);
}

#[test]
fn correction_waits_for_a_release_and_fails_under_a_holder() {
    let cluster = pools();
    let [mut definer, mut holder] = [cluster.client(), cluster.client()];
    let (_, token) = acquire_worker(&mut holder, "a");
    let correct = "SELECT worker_correct('a', 10, '2020-01-01')::text";
    expect_error(&mut definer, correct, "55006");
    let pid = backend_pid(&mut definer);
    execute(&mut holder, &format!("BEGIN; SELECT worker_release('a', {token}, not_before) FROM idgen.workers"));
    let released: String = value(&mut holder, "SELECT not_after::text FROM idgen.workers");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| value::<String>(&mut definer, correct));
        wait_until_waiting_for_row(&cluster, pid);
        execute(&mut holder, "COMMIT");
        assert_eq!(waiter.join().unwrap(), released);
    });
}

/// Claims, renews and releases in either pool. Counts renewals under the pool that the token was moved to.
fn hold(client: &mut Client, moved: &AtomicUsize) {
    const GONE: [&str; 2] = ["55000", "42704"];
    let mut call = |sql: &str| match client.query_opt(sql, &[]) {
        Ok(row) => row,
        Err(error) => {
            assert!(
                error.code().is_some_and(|code| GONE.contains(&code.code()) || code.code() == "53400"),
                "{error:?}"
            );
            None
        }
    };
    let claim = |pool| format!("SELECT token FROM worker_acquire('{pool}', 'holder', '1 hour')");
    let Some((first, token)) =
        POOLS.iter().find_map(|pool| call(&claim(pool)).map(|row| (*pool, row.get::<_, i64>(0))))
    else {
        return;
    };
    for _ in 0..3 {
        let under = POOLS.iter().find(|pool| call(&renewal(pool, token)).is_some());
        moved.fetch_add(usize::from(under.is_some_and(|pool| *pool != first)), Ordering::Relaxed);
    }
    // If a move comes between two of these calls, the worker id is left to expire.
    while !POOLS
        .iter()
        .any(|pool| call(&format!("SELECT worker_release('{pool}', {token}, clock_timestamp())")).is_some())
    {}
}

/// Ends the holders when dropped, also if the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The renewal has read that there is no such pool, and then finds the term that was moved to it.
#[test]
fn renewal_that_begins_before_a_move_does_not_shorten_the_term() {
    let cluster = pools();
    let [mut mover, mut holder] = [cluster.client(), cluster.client()];
    let (_, token) = acquire_worker(&mut holder, "a");
    execute(&mut mover, "SELECT lease_drop('b')");
    // Others may read, and wait before they write.
    execute(&mut mover, "BEGIN; LOCK TABLE idgen.lease IN SHARE MODE");
    define(&mut mover, "b");
    execute(&mut mover, "SELECT worker_move('a', 'b')");
    let pid = backend_pid(&mut holder);
    std::thread::scope(|scope| {
        let renewing = scope.spawn(|| expect_error(&mut holder, &renewal("b", token), "55000"));
        // It fails at once, or waits for the table.
        let waits = format!("SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {pid}");
        let mut observer = cluster.client();
        cluster.wait_for(PATIENCE, "the renewal to end or to wait", || {
            renewing.is_finished() || value::<Option<bool>>(&mut observer, &waits) == Some(true)
        });
        execute(&mut mover, "COMMIT");
        renewing.join().unwrap();
    });
    let lasts = format!("SELECT expires_at > clock_timestamp() + '1 min' FROM idgen.leases WHERE token = {token}");
    assert!(value::<bool>(&mut mover, &lasts), "{lasts}");
}

#[test]
fn rectangles_do_not_overlap_while_pools_are_moved_back_and_forth() {
    let cluster = builder().start_with_extension();
    define(&mut cluster.client(), "a");
    grants::record(&cluster);
    let (is_over, moved) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut client = cluster.client();
                while !is_over.load(Ordering::Relaxed) {
                    hold(&mut client, &moved);
                }
            });
        }
        let _ending = Ending(&is_over);
        let mut mover = cluster.client();
        let mut ways = [("a", "b"), ("b", "a")].into_iter().cycle();
        let (mut moves, wanted) = (0, rounds(40, 1_000));
        while moves < wanted || moved.load(Ordering::Relaxed) < wanted {
            let (from, to) = ways.next().expect("an endless iterator");
            // One transaction, so that the new pool grants nothing before it has every worker id of the old one.
            execute(&mut mover, "BEGIN");
            define(&mut mover, to);
            execute(&mut mover, &format!("SELECT worker_move('{from}', '{to}'); COMMIT"));
            moves += 1;
        }
        println!("{moves} moves, {} renewals after a move", moved.load(Ordering::Relaxed));
    });
    let granted = grants::rectangles(&mut cluster.client());
    grants::assert_apart(&granted);
    assert!(granted.iter().all(|rectangle| (10..14).contains(&rectangle.worker_id)));
}
