//! Worker ids that are moved to another pool: holders continue under the new name, and no id time is granted twice.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use idgen_testkit::script::play;
use idgen_testkit::sql::execute;
use idgen_testkit::{Cluster, grants, rounds};
use postgres::Client;

use crate::builder;

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

/// The renewal from the end that the holder knows.
fn renewal(pool: &str, token: i64) -> String {
    let last = format!("(SELECT not_after FROM idgen.worker_number WHERE token = {token})");
    format!("SELECT worker_renew('{pool}', {token}, {last})")
}

/// Runs a script on such a server. `$acquire` acquires a worker id of pool a and returns its token. `$renew` renews the worker
/// id of `$token` from the end that the holder knows, under the name of pool a or b.
fn with_pools(script: &str) {
    let last = "(SELECT not_after FROM idgen.worker_number WHERE token = $token)";
    let script = script
        .replace("$acquire", "SELECT token FROM worker_acquire('a', ttl => '1 hour')")
        .replace("$renew_in_a", &format!("SELECT worker_renew('a', $token, {last})"))
        .replace("$renew_in_b", &format!("SELECT worker_renew('b', $token, {last})"))
        .replace("$rectangle", "SELECT pool || number || token || not_before || not_after FROM idgen.worker_number");
    play(&pools(), &script);
}

#[test]
fn renewal_during_a_move_waits_fails_and_succeeds_under_the_new_name() {
    with_pools(
        "holder: $acquire -> $token
         mover: $rectangle -> $before
         mover: BEGIN; SELECT worker_move('a', 'b') -> 1
         holder waits for transactionid: $renew_in_a
         mover: ROLLBACK
         holder ends
         mover: BEGIN; SELECT worker_move('a', 'b')
         mover: $rectangle -> $moved
         mover: SELECT '$moved' <> '$before' -> t
         holder waits for transactionid: $renew_in_a
         mover: COMMIT
         holder ends -> error 55000
         mover: $rectangle -> $after
         mover: SELECT '$after' = '$moved' -> t
         holder: $renew_in_b
         holder: $renew_in_a -> error 55000
         mover: SELECT worker_id FROM worker_acquire('b', ttl => '1 hour') -> 11
         holder: BEGIN; SELECT lease_fence('b', $token); COMMIT
         holder: SELECT worker_release('b', $token) -> t",
    );
}

#[test]
fn move_waits_for_a_holder_that_has_fenced() {
    with_pools(
        "holder: $acquire -> $token
         holder: BEGIN; SELECT lease_fence('a', $token)
         mover waits for transactionid: SELECT worker_move('a', 'b')
         holder: COMMIT
         mover ends -> 1
         holder: $renew_in_b",
    );
}

/// The caller found the pool before it queued. It must not get a worker id of a pool that no longer exists.
#[test]
fn caller_queued_during_a_move_gets_no_worker_id_of_the_old_pool() {
    with_pools(
        "client: $acquire
         mover: BEGIN; SELECT worker_move('a', 'b')
         client waits for advisory: $acquire
         mover: COMMIT
         client ends -> error 42704
         mover: SELECT count(*) FROM idgen.leases WHERE name = 'a' -> 0
         mover: SELECT pool, number FROM idgen.worker_number -> b|10",
    );
}

/// The drop waits for the move, and then finds the moved worker ids.
#[test]
fn pool_is_not_dropped_while_worker_ids_are_moved_to_it() {
    with_pools(
        "client: $acquire -> $token
         mover: BEGIN; SELECT worker_move('a', 'b')
         client waits for transactionid: SELECT lease_drop('b')
         mover: COMMIT
         client ends -> error 55006
         client: $renew_in_b",
    );
}

/// Under the other pool's name, its holder could renew it, and no worker id would be granted beside it.
#[test]
fn expired_shared_term_ends_with_the_move() {
    with_pools(
        "client: SELECT token FROM lease_acquire('c', '100 ms', shared => true) -> $shared
         client: SELECT lease_define('c', 4, '1 hour')
         until: SELECT state FROM idgen.leases WHERE name = 'c' LIMIT 1 -> expired
         client: SELECT worker_move('c', 'b')
         client: SELECT lease_renew('b', $shared) -> error 55000
         client: SELECT lease_renew('c', $shared) -> error 55000
         client: SELECT worker_id FROM worker_acquire('b', ttl => '1 hour') -> 10",
    );
}

/// The session keeps its leases under the names that it acquired.
#[test]
fn worker_id_bound_to_a_session_stays_bound_over_a_move() {
    with_pools(
        "holder: SELECT token FROM worker_acquire('a') -> $token
         mover: SELECT worker_move('a', 'b') -> 1
         -- A session that binds another lease releases the locks of lost leases.
         holder: SELECT token FROM lease_acquire('other', bind_session => true) -> $other
         mover: SELECT slot, state FROM idgen.leases WHERE name = 'b' -> 10|held
         holder: SELECT lease_release('other', $other) -> t
         holder: SELECT token FROM lease_acquire('other', bind_session => true) -> $other > $other
         mover: SELECT slot, state FROM idgen.leases WHERE name = 'b' -> 10|held
         holder: SELECT lease_release('other', $other) -> t
         holder: $renew_in_b
         mover: SELECT pg_terminate_backend($holder_pid, 60000) -> t
         mover: SELECT slot, state FROM idgen.leases WHERE name = 'b' -> 10|expired",
    );
}

#[test]
fn correction_waits_for_a_release_and_fails_under_a_holder() {
    with_pools(
        "holder: $acquire -> $token
         definer: SELECT worker_correct('a', 10, '2020-01-01') -> error 55006
         holder: BEGIN; SELECT worker_release('a', $token, not_before) FROM idgen.workers
         holder: SELECT not_after FROM idgen.workers -> $released
         definer waits for transactionid: SELECT worker_correct('a', 10, '2020-01-01')
         holder: COMMIT
         definer ends -> $corrected
         definer: SELECT '$corrected' = '$released' -> t",
    );
}

/// The renewal has read that there is no such pool, and then finds the term that was moved to it.
#[test]
fn renewal_that_begins_before_a_move_does_not_shorten_the_term() {
    with_pools(
        "holder: $acquire -> $token
         mover: SELECT lease_drop('b')
         -- Others may read, and wait before they write.
         mover: BEGIN; LOCK TABLE idgen.lease IN SHARE MODE
         mover: SELECT lease_define('b', 4, '1 hour', first_slot => 10), worker_move('a', 'b')
         holder: $renew_in_b -> error 55000
         mover: COMMIT
         mover: SELECT expires_at > clock_timestamp() + '1 min' FROM idgen.leases WHERE token = $token -> t",
    );
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
