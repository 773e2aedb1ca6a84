//! Worker ids that are moved to another pool: holders continue under the new name.

use crate::scenario;

/// Runs a script on a server with the pools a and b, which have the same range. `$acquire` acquires a worker id of pool a and
/// returns its token. `$renew_in_a` and `$renew_in_b` renew the worker id of `$token` from the end that the holder knows, under
/// the name of that pool.
fn with_pools(script: &str) {
    let last = "(SELECT not_after FROM idgen.worker_number WHERE token = $token)";
    let script = script
        .replace("$acquire", "SELECT token FROM worker_acquire('a', ttl => '1 hour')")
        .replace("$renew_in_a", &format!("SELECT worker_renew('a', $token, {last})"))
        .replace("$renew_in_b", &format!("SELECT worker_renew('b', $token, {last})"))
        .replace("$rectangle", "SELECT pool || number || token || not_before || not_after FROM idgen.worker_number");
    let pools = ["a", "b"].map(|pool| format!("mover: SELECT lease_define('{pool}', 4, '1 hour', first_slot => 10)"));
    scenario(&format!("{}\n         {}\n         {script}", pools[0], pools[1]));
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
