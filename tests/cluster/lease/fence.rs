//! Fences and the take-overs that wait for them: deadlocks, and the order. Earlier transactions may fence, later ones do not
//! overtake the take-over.

use idgen_testkit::lease::acquire;
use idgen_testkit::rounds;
use idgen_testkit::script::{play, play_each};
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, value};

use crate::{builder, scenario, wait_for_state, wait_until_waiting_for_row};

/// The take-over waits in the lock manager, so that a deadlock of a fence and a row is detected.
#[test]
fn deadlock_of_a_fence_and_a_row_is_detected_and_leaves_nothing() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE t (n int); INSERT INTO t VALUES (0)");
    let script = "holder: SELECT token FROM lease_acquire('d', '100 ms') -> $token
         until: SELECT state FROM idgen.leases -> expired
         holder: SET deadlock_timeout = '$holders'; BEGIN; SELECT lease_fence('d', $token)
         client: SET deadlock_timeout = '$clients'; BEGIN; UPDATE t SET n = n + 1; SAVEPOINT s
         ";
    let take_over_fails = "holder waits for transactionid: UPDATE t SET n = n + 1
         client: SELECT $wait -> error 40P01
         client: ROLLBACK TO s
         client: SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $client_pid -> 0
         client: COMMIT
         holder ends
         -- The victim's transaction goes on, and the lease is unchanged.
         other: SELECT lease_renew('d', $token) IS NOT NULL -> t
         holder: COMMIT
         holder: SELECT lease_release('d', $token)";
    let update_fails = "client waits for transactionid: SELECT lease_acquire('d', '1 day')
         holder: UPDATE t SET n = n + 1 -> error 40P01
         holder: ROLLBACK
         client ends
         client: COMMIT
         client: SELECT n FROM t -> 5
         client: SELECT slot, state FROM idgen.leases -> 0|held";
    let script_of = |holders: &str, clients: &str, rest: &str| {
        script.replace("$holders", holders).replace("$clients", clients) + rest
    };
    for wait in ["lease_acquire('d', '1 day')", "lease_try_acquire('d', '1 hour', '1 day')"] {
        play(&cluster, &script_of("10min", "10ms", &take_over_fails.replace("$wait", wait)));
    }
    play(&cluster, &script_of("10ms", "10min", update_fails));
}

/// Both slots have expired but are fenced: the waiter gets the slot whose transaction ends first.
#[test]
fn take_over_waits_for_any_of_several_fences() {
    let cluster = builder().start_with_extension();
    play_each(
        &cluster,
        "zero: SELECT lease_define('s', 2, '100 ms')
         zero: SELECT token FROM lease_acquire('s') -> $zeroth
         one: SELECT token FROM lease_acquire('s') -> $first
         until: SELECT state FROM idgen.leases ORDER BY slot -> expired, expired
         zero: BEGIN; SELECT lease_fence('s', $zeroth)
         one: BEGIN; SELECT lease_fence('s', $first)
         next waits for transactionid: SELECT slot FROM lease_acquire('s', '1 day')
         $ends: COMMIT
         -- The other fence is still there.
         next ends -> $slot
         $stays: COMMIT; DELETE FROM idgen.lease",
        ["$ends", "$slot", "$stays"],
        &[["zero", "0", "one"], ["one", "1", "zero"]],
    );
}

#[test]
fn fence_does_not_overtake_a_waiting_take_over_or_drop() {
    play_each(
        &builder().start_with_extension(),
        "first: SELECT token FROM lease_acquire('f', '100 ms') -> $token
         until: SELECT state FROM idgen.leases -> expired
         first: BEGIN; SELECT lease_fence('f', $token)
         next waits for transactionid: SELECT $call
         late waits for advisory: BEGIN; SELECT lease_fence('f', $token)
         first: COMMIT
         next ends -> $outcome
         late ends -> error 55000",
        ["$call", "$outcome"],
        &[["lease_drop('f')", "''"], ["token FROM lease_acquire('f', '1 day')", "$taken > $token"]],
    );
}

/// A transaction that the take-over waits for must not wait for the take-over.
#[test]
fn transaction_that_holds_the_row_fences_before_a_waiting_take_over() {
    let cluster = builder().start_with_extension();
    // The renewal was in time.
    let once = "next waits for Extension
         holder: SELECT lease_release('f', $token) -> t";
    let twice = "next waits for Extension
         holder: SELECT lease_release('f', $token), lease_release('f', $token) -> f|t";
    play_each(
        &cluster,
        "holder: SELECT token FROM lease_acquire('f', '100 ms') -> $token
         until: SELECT state FROM idgen.leases -> expired
         holder: BEGIN; SELECT $first
         next waits for transactionid: SELECT token FROM lease_acquire('f', '1 day')
         holder: SET statement_timeout = '10 s'; SELECT lease_fence('f', $token)
         -- The rollback of the second fence leaves the lock of the first one.
         holder: SAVEPOINT s; SELECT lease_fence('f', $token); ROLLBACK TO s; COMMIT
         $in_time
         next ends -> $taken > $token
         holder: DELETE FROM idgen.lease",
        ["$first", "$in_time"],
        &[
            ["lease_fence('f', $token)", ""],
            ["lease_renew('f', $token, '1 day')", once],
            ["lease_acquire('f', '1 day', token => $token)", twice],
            ["lease_renew_many('{f}', ARRAY[$token], '1 day')", once],
        ],
    );
}

/// The take-over sleeps at the head of the queue, because the other slot may become free first.
#[test]
fn fence_does_not_overtake_a_take_over_that_waits_for_several_slots() {
    scenario(
        "first: SELECT lease_define('s', 2, '100 ms')
         first: SELECT token FROM lease_acquire('s') -> $token
         first: SELECT lease_acquire('s', '1 day')
         until: SELECT state FROM idgen.leases ORDER BY slot -> expired, held
         first: BEGIN; SELECT lease_fence('s', $token)
         next waits for Extension: SELECT slot FROM lease_acquire('s', '1 day')
         late waits for advisory: BEGIN; SELECT lease_fence('s', $token)
         first: COMMIT
         next ends -> 0
         late ends -> error 55000",
    );
}

/// Each transaction ends only when the next one has fenced or waits. Without an order the take-over would starve.
#[test]
fn overlapping_fences_do_not_starve_a_take_over() {
    let cluster = builder().start_with_extension();
    let token = acquire(&mut cluster.client(), "'f', '100 ms'").token;
    wait_for_state(&cluster, "f", "0 expired");
    let fence = format!("BEGIN; SELECT lease_fence('f', {token})");
    let mut next = cluster.client();
    let pid = backend_pid(&mut next);
    let mut running = cluster.client();
    execute(&mut running, &fence);
    std::thread::scope(|scope| {
        let take_over = scope.spawn(|| acquire(&mut next, "'f', '1 day'"));
        wait_until_waiting_for_row(&cluster, pid);
        for _ in 0..rounds(20, 1000) {
            let mut late = cluster.client();
            let late_pid = backend_pid(&mut late);
            let fencing = scope.spawn(|| {
                let is_fenced = late.simple_query(&fence).is_ok();
                (late, is_fenced)
            });
            let waits = format!("SELECT count(*) > 0 FROM pg_locks WHERE pid = {late_pid} AND NOT granted");
            let mut observer = cluster.client();
            cluster.wait_for(PATIENCE, "the next fence", || fencing.is_finished() || value(&mut observer, &waits));
            execute(&mut running, "COMMIT");
            let (late, is_fenced) = fencing.join().unwrap();
            if !is_fenced {
                assert!(take_over.join().unwrap().token > token);
                return;
            }
            running = late;
        }
        execute(&mut running, "COMMIT");
        panic!("the take-over starves");
    });
}

/// A late renewal makes the take-over pointless, so fences of the holder do not wait for it.
#[test]
fn fence_of_a_renewed_lease_does_not_wait_for_a_take_over() {
    scenario(
        "first: SELECT token FROM lease_acquire('f', '100 ms') -> $token
         until: SELECT state FROM idgen.leases -> expired
         first: BEGIN; SELECT lease_fence('f', $token)
         next waits for transactionid: SELECT lease_acquire('f')
         holder: SELECT lease_renew('f', $token, '1 hour')
         holder: SELECT lease_fence('f', $token)
         first: COMMIT
         holder: SELECT lease_release('f', $token) -> t
         next ends",
    );
}

#[test]
fn transaction_that_has_released_once_fences_before_a_waiting_take_over() {
    scenario(
        "holder: SELECT token FROM lease_acquire('f', '100 ms') -> $token
         holder: SELECT lease_acquire('f', '100 ms', token => $token)
         until: SELECT state FROM idgen.leases -> expired
         holder: BEGIN; SELECT lease_release('f', $token)
         next waits for transactionid: SELECT token FROM lease_acquire('f')
         holder: SELECT lease_fence('f', $token); COMMIT
         next ends -> $taken > $token",
    );
}

/// Several instances of a service do this as they start.
#[test]
fn transaction_that_defines_a_name_acquires_it_before_the_waiters() {
    scenario(
        "definer: BEGIN; SELECT lease_define('f')
         head waits for advisory: SELECT lease_acquire('f')
         second waits for advisory: SELECT lease_define('f')
         definer: SELECT token FROM lease_try_acquire('f') -> $token > 0
         definer: COMMIT
         second ends
         definer: SELECT lease_release('f', $token) -> t
         head ends",
    );
}

/// It does not see what others have written while it waited. The statements of a function do.
#[test]
fn statement_cannot_fence_by_a_lease_that_it_acquires() {
    scenario(
        "holder: CREATE TABLE t (n int); CREATE TABLE seen (n int); INSERT INTO t VALUES (1)
         holder: CREATE FUNCTION work(token bigint) RETURNS void LANGUAGE plpgsql AS $$
                 BEGIN PERFORM lease_fence('a', token); INSERT INTO seen SELECT n FROM t; END $$
         holder: SELECT token FROM lease_acquire('a', '1 hour') -> $token
         next waits for Extension: WITH acquired AS MATERIALIZED (SELECT token FROM lease_acquire('a', '1 hour')),
             fenced AS MATERIALIZED (SELECT lease_fence('a', token) FROM acquired) INSERT INTO seen SELECT n FROM t, fenced
         holder: BEGIN; SELECT lease_fence('a', $token); UPDATE t SET n = 41; COMMIT; SELECT lease_release('a', $token)
         next ends -> error 55000 in the statement that has acquired it
         next: SELECT work(token) FROM lease_acquire('a', '1 hour')
         next: TABLE seen -> 41
         -- A function that the statement calls sees what was written. The statement does not.
         holder: CREATE TABLE kept (n int);
                 CREATE TRIGGER guard BEFORE INSERT ON kept FOR EACH ROW EXECUTE FUNCTION lease_guard('g');
                 CREATE FUNCTION fence(token bigint) RETURNS void LANGUAGE plpgsql AS $$
                 BEGIN PERFORM lease_fence('g', token); END $$;
                 CREATE FUNCTION keep(token bigint) RETURNS void LANGUAGE plpgsql AS $$
                 BEGIN PERFORM fence(token); INSERT INTO kept SELECT n FROM t; END $$
         holder: SELECT token FROM lease_acquire('g', '1 hour') -> $guarded
         next waits for Extension: WITH acquired AS MATERIALIZED (SELECT token FROM lease_acquire('g', '1 hour')),
             fenced AS MATERIALIZED (SELECT fence(token) FROM acquired) INSERT INTO kept SELECT n FROM t, fenced
         holder: BEGIN; SELECT lease_fence('g', $guarded); UPDATE t SET n = 42; COMMIT; SELECT lease_release('g', $guarded)
         next ends -> error 55000 in the statement that has acquired it
         next: SELECT keep(token) FROM lease_acquire('g', '1 hour')
         next: TABLE kept -> 42
         -- A cursor that was open before the grant, and is read after it.
         holder: SELECT token FROM lease_acquire('c', '1 hour') -> $held
         next: BEGIN; DECLARE acquiring CURSOR FOR SELECT set_config('my.token', token::text, true) FROM lease_acquire('c', '1 hour')
         next: INSERT INTO seen VALUES (1)
         next: DECLARE reading CURSOR FOR SELECT n, lease_fence('c', current_setting('my.token')::bigint) FROM t
         next waits for Extension: FETCH acquiring
         holder: BEGIN; SELECT lease_fence('c', $held); UPDATE t SET n = 43; COMMIT; SELECT lease_release('c', $held)
         next ends
         next: FETCH reading -> error 55000 in the statement that has acquired it
         next: ROLLBACK
         -- The statements of a rule share a snapshot, also in a function.
         next: CREATE TABLE tokens (token bigint);
               CREATE VIEW writes AS SELECT 1 AS n;
               CREATE RULE write AS ON INSERT TO writes DO INSTEAD (
                   INSERT INTO tokens SELECT token FROM lease_acquire('r', '1 hour');
                   INSERT INTO seen SELECT n FROM t, tokens, LATERAL lease_fence('r', tokens.token))
         holder: SELECT token FROM lease_acquire('r', '1 hour') -> $ruled
         next waits for Extension: INSERT INTO writes VALUES (1)
         other waits for advisory: DO 'BEGIN INSERT INTO writes VALUES (1); END'
         holder: BEGIN; SELECT lease_fence('r', $ruled); UPDATE t SET n = 43; COMMIT; SELECT lease_release('r', $ruled)
         next ends -> error 55000 in the statement that has acquired it
         other ends -> error 55000 in the statement that has acquired it
         -- Another session acquires for a cursor that was open before.
         holder: SELECT token FROM lease_acquire('d', '1 hour') -> $held_too
         next: BEGIN; DECLARE reading CURSOR FOR SELECT n, lease_fence('d', current_setting('my.token')::bigint) FROM t
         holder: BEGIN; SELECT lease_fence('d', $held_too); UPDATE t SET n = 44; COMMIT; SELECT lease_release('d', $held_too)
         holder: SELECT token FROM lease_acquire('d', '1 hour') -> $later
         next: SELECT set_config('my.token', '$later', true)
         next: FETCH reading -> error 40001 another holder
         next: ROLLBACK
         next: SELECT token FROM lease_acquire('b') -> $other
         next: SELECT lease_fence('b', $other)",
    );
}
