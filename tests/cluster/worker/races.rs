//! Calls that wait for each other: moves, changes of a pool and interruptions against grants, renewals and releases.

use std::sync::Barrier;

use idgen_testkit::rounds;
use idgen_testkit::script::play;
use idgen_testkit::sql::{PATIENCE, value};

use crate::{builder, try_acquire};

/// Runs a script on a server with the pools a and b, which have the same range. `$acquire` acquires a worker id of pool a and
/// returns its token. `$renew_in_a` and `$renew_in_b` renew the worker id of `$token` from the end that the holder knows, under
/// the name of that pool.
fn with_pools(script: &str) {
    let last = "(SELECT not_after FROM idgen.worker_id WHERE token = $token)";
    let rectangle =
        "SELECT pool || worker_id || not_before || not_after FROM idgen.worker_id WHERE acquired_at IS NOT NULL";
    let script = script
        .replace("$acquire", "SELECT token FROM worker_acquire('a', ttl => '1 hour')")
        .replace("$renew_in_a", &format!("SELECT worker_renew('a', $token, {last})"))
        .replace("$renew_in_b", &format!("SELECT worker_renew('b', $token, {last})"))
        .replace("$rectangle", rectangle);
    let pools = "mover: SELECT worker_pool_define(pool, 10, 4, '1 hour') FROM unnest('{a,b}'::text[]) AS pool";
    // The lines of these scripts are steps, however they are indented.
    let steps: Vec<&str> = std::iter::once(pools).chain(script.lines().map(str::trim)).collect();
    play(&builder().start_with_extension(), &steps.join("\n"));
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
         holder: SELECT worker_release('b', $token) -> t",
    );
}

/// The renewal has read the row before the change. It must not extend what the change has ended.
#[test]
fn renewal_that_waits_for_the_end_of_its_token_is_refused_and_extends_nothing() {
    for change in [
        "SELECT worker_pool_alter('a', first => 20, force => true)",
        "SELECT worker_pool_alter('a', first => 11, count => 3, force => true)",
        "SELECT worker_correct('a', 10, not_after, force => true) FROM idgen.worker_id WHERE token = $token",
        "SELECT worker_release('a', $token)",
    ] {
        with_pools(&format!(
            "holder: $acquire -> $token
             changer: BEGIN; {change}
             holder waits for transactionid: $renew_in_a
             changer: ROLLBACK
             holder ends
             changer: $rectangle -> $before
             changer: BEGIN; {change}
             holder waits for transactionid: $renew_in_a
             changer: COMMIT
             holder ends -> error 55000 no worker id of pool
             changer: $rectangle -> $after
             changer: SELECT '$after' = '$before' -> t
             holder: SELECT worker_confirm('a', $token) -> error 55000
             holder: SELECT worker_release('a', $token) -> error 55000"
        ));
    }
}

#[test]
fn definition_that_waits_for_the_drop_of_the_pool_defines_it() {
    with_pools(
        "holder: $acquire
         changer: BEGIN; SELECT worker_correct('a', 10, now(), force => true)
         definer waits for transactionid: SELECT worker_pool_define('a', 10, 4, '1 hour')
         changer: SELECT worker_pool_drop('a'); COMMIT
         definer ends
         definer: SELECT count FROM idgen.worker_pool WHERE name = 'a' -> 4",
    );
}

/// Neither waits for the other: a transaction that stays open, or is prepared, must not stop all pools.
#[test]
fn new_history_and_renewals_wait_for_no_transaction_of_each_other() {
    with_pools(
        "holder: $acquire -> $token
         changer: BEGIN; SELECT worker_begin_history()
         holder: $renew_in_a
         changer: ROLLBACK
         changer: BEGIN; SELECT worker_pool_alter('a', ttl => '2 hours')
         holder: $renew_in_a
         changer: ROLLBACK
         holder: BEGIN; SELECT worker_release('a', $token)
         changer: SELECT worker_begin_history()
         holder: ROLLBACK
         holder: $renew_in_a -> error 55000 no worker id of pool
         holder: SELECT worker_release('a', $token) -> error 55000 no worker id of pool",
    );
}

/// Its id times are over, so it is free for the next holder as long as the last one does not renew.
#[test]
fn expired_worker_id_is_renewed_or_granted_again_but_not_both() {
    let (cluster, [mut client, mut other]) = builder().start_with_clients();
    cluster.execute("SELECT worker_pool_define('p', count => 1, ttl => '1 min')");
    let mut renewals = 0;
    for _ in 0..rounds(20, 200) {
        let grant = try_acquire(&mut client, "'p', ttl => '100 ms'").expect("a worker id");
        let is_over = "SELECT not_after <= clock_timestamp() FROM idgen.worker_id";
        cluster.wait_for(PATIENCE, "the id times to end", || value(&mut client, is_over));
        let end = format!("'epoch'::timestamptz + {} * interval '1 microsecond'", grant.until_us);
        let renew = format!("SELECT not_after FROM worker_renew('p', {}, {end})", grant.token);
        let begin = Barrier::new(2);
        let (renewed, granted) = std::thread::scope(|scope| {
            let granted = scope.spawn(|| {
                begin.wait();
                try_acquire(&mut other, "'p', ttl => '100 ms'")
            });
            begin.wait();
            (client.query_one(&renew, &[]), granted.join().expect("no panic"))
        });
        let code = |error: Option<&postgres::Error>| error.and_then(|error| Some(error.code()?.code().to_owned()));
        match &granted {
            Ok(next) => {
                assert_eq!(code(renewed.as_ref().err()).as_deref(), Some("55000"), "{renewed:?}");
                assert_eq!(next.from_us, grant.until_us);
            }
            Err(error) => {
                assert_eq!((code(Some(error)).as_deref(), renewed.is_ok()), (Some("53400"), true), "{renewed:?}");
                renewals += 1;
            }
        }
        // Free for the next round.
        cluster.execute("SELECT worker_correct('p', 0, now(), force => true)");
    }
    println!("{renewals} renewals have come first");
}

/// As a promoted standby or a restored database finds it.
#[test]
fn renewal_that_waits_for_the_record_of_an_interruption_extends_nothing() {
    with_pools(
        "holder: $acquire -> $token
         holder: SELECT not_after FROM idgen.worker_id WHERE token = $token -> $end
         locker: UPDATE idgen.worker_history SET identity = ''
         recorder: BEGIN; SELECT worker_begin_history()
         holder waits for relation: SELECT not_after FROM worker_renew('a', $token, '$end')
         recorder: COMMIT
         holder ends -> $told
         holder: SELECT '$told'::timestamptz = '$end' -> t
         holder: SELECT worker_renew('a', $token, '$end') -> error 55000
         holder: SELECT not_after = '$end' FROM idgen.worker_id WHERE worker_id = 10 AND pool = 'a' -> t",
    );
}

/// An acquisition that waits for rows keeps no renewal, and no other pool, from recording the interruption.
#[test]
fn renewal_records_an_interruption_beside_an_acquisition_that_waits() {
    with_pools(
        "holder: $acquire -> $token
         holder: SELECT not_after FROM idgen.worker_id WHERE token = $token -> $end
         locker: UPDATE idgen.worker_history SET identity = ''
         locker: BEGIN; SELECT FROM idgen.worker_id FOR UPDATE
         next waits for transactionid: SELECT worker_id FROM worker_acquire('a')
         holder: SELECT not_after = '$end' FROM worker_renew('a', $token, '$end') -> t
         locker: ROLLBACK
         next ends -> 11
         holder: SELECT worker_renew('a', $token, '$end') -> error 55000
         holder: SELECT not_after = '$end' FROM idgen.worker_id WHERE worker_id = 10 AND pool = 'a' -> t",
    );
}

/// Both have to record that id times are longer now.
#[test]
fn acquisition_does_not_wait_for_a_renewal_that_waits_in_another_pool() {
    with_pools(
        "holder: $acquire -> $token
         changer: SELECT worker_pool_alter('a', ttl => '3 hours'), worker_pool_alter('b', ttl => '3 hours')
         changer: BEGIN; SELECT worker_release('a', $token)
         holder waits for transactionid: $renew_in_a
         client: SELECT count(*) FROM worker_acquire('b') -> 1
         changer: ROLLBACK
         holder ends",
    );
}

#[test]
fn move_waits_for_a_release() {
    for (ending, renewal) in
        [("ROLLBACK", "$renew_in_b"), ("COMMIT", "SELECT worker_renew('b', $token, now()) -> error 55000")]
    {
        with_pools(&format!(
            "holder: $acquire -> $token
             holder: BEGIN; SELECT worker_release('a', $token)
             mover waits for transactionid: SELECT worker_move('a', 'b')
             holder: {ending}
             mover ends -> 1
             holder: {renewal}"
        ));
    }
}

/// The caller found the pool before it waited. It must not get a worker id of a pool that no longer exists.
#[test]
fn caller_that_waits_for_a_move_gets_no_worker_id_of_the_old_pool() {
    with_pools(
        "client: $acquire
         mover: BEGIN; SELECT worker_move('a', 'b')
         client waits for transactionid: $acquire
         mover: COMMIT
         client ends -> error 42704
         mover: SELECT count(*) FROM idgen.worker_id WHERE pool = 'a' -> 0
         mover: SELECT pool, worker_id FROM idgen.worker_id WHERE acquired_at IS NOT NULL -> b|10",
    );
}

/// The grants of a pool do not wait for each other.
#[test]
fn change_of_a_pool_waits_for_its_grants_and_grants_for_the_change() {
    with_pools(
        "locker: BEGIN; SELECT FROM idgen.worker_id FOR UPDATE
         client waits for transactionid: $acquire
         changer waits for transactionid: SELECT worker_pool_alter('a', count => 1)
         locker: ROLLBACK
         client ends -> $token
         changer ends
         changer: BEGIN; SELECT worker_pool_alter('a', count => 2)
         client waits for transactionid: SELECT worker_id FROM worker_acquire('a')
         changer: COMMIT
         client ends -> 11
         client: SELECT worker_acquire('a') -> error 53400",
    );
}

/// The drop waits for the move, and then finds the moved worker ids.
#[test]
fn pool_is_not_dropped_while_worker_ids_are_moved_to_it() {
    with_pools(
        "client: $acquire -> $token
         mover: BEGIN; SELECT worker_move('a', 'b')
         client waits for transactionid: SELECT worker_pool_drop('b')
         mover: COMMIT
         client ends -> error 55006
         client: $renew_in_b",
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

/// The renewal finds no such pool before the commit, and does not wait for it.
#[test]
fn renewal_before_the_commit_of_a_move_does_not_shorten_the_rectangle() {
    with_pools(
        "holder: $acquire -> $token
         mover: SELECT worker_pool_drop('b')
         mover: BEGIN; SELECT worker_pool_define('b', 10, 4, '1 hour'), worker_move('a', 'b')
         holder: $renew_in_b -> error 55000
         mover: COMMIT
         mover: SELECT not_after > clock_timestamp() + '1 min' FROM idgen.worker_id WHERE token = $token -> t
         holder: $renew_in_b",
    );
}
