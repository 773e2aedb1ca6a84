//! Several slots in one transaction, and many names at once. Lowered slots: a grant never makes more holders than slots,
//! whatever the old holders do afterwards.

use idgen_testkit::lease::{Grant, acquire};
use idgen_testkit::rounds;
use idgen_testkit::script::play;
use idgen_testkit::sql::{column, value};

use crate::{builder, release, scenario};

#[test]
fn transaction_acquires_two_slots_of_a_name() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('two', 2, '1 day')");
    let both = "client: BEGIN
         client: SELECT token FROM lease_acquire('two') -> $first
         client: SELECT token FROM lease_acquire('two') -> $second > $first
         client: SELECT count(DISTINCT slot) FROM idgen.lease WHERE token IN ($first, $second) -> 2
         client: SELECT lease_try_acquire('two') -> nothing
         ";
    let rolled_back = "client: ROLLBACK
         client: SELECT count(*) FROM idgen.leases WHERE state = 'held' -> 0";
    let committed = "other waits for Lock: SELECT token FROM lease_acquire('two')
         client: COMMIT
         other waits for Extension
         client: SELECT slot FROM idgen.lease WHERE token = $first -> $slot
         client: SELECT lease_release('two', $first) -> t
         other ends -> $third
         client: SELECT slot = $slot FROM idgen.lease WHERE token = $third -> t
         client: SELECT lease_release('two', $third), lease_release('two', $second) -> t|t
         client: SELECT slot, state FROM idgen.leases ORDER BY slot -> 0|free, 1|free";
    // New slots first, then the released ones.
    for end in [rolled_back, committed, rolled_back, committed] {
        play(&cluster, &format!("{both}{end}"));
    }
}

#[test]
fn transaction_reacquires_a_slot_that_it_released() {
    scenario(
        "client: BEGIN; SELECT token FROM lease_acquire('n') -> $first
         client: SELECT lease_release('n', $first) -> t
         client: SELECT token FROM lease_acquire('n') -> $second > $first
         other waits for advisory: SELECT lease_acquire('n')
         client: COMMIT
         client: SELECT lease_release('n', $first) -> error 55000
         client: SELECT lease_release('n', $second) -> t
         other ends",
    );
}

/// More names than condition variables, so that some share one.
#[test]
fn concurrent_names_do_not_block_each_other() {
    const NAMES: i32 = 400;
    const CLIENTS: usize = 8;
    let cluster = builder().start_with_extension();
    let mut client = cluster.client();
    let all = format!("generate_series(1, {NAMES}) AS n");
    let tokens: Vec<i64> = column(&mut client, &format!("SELECT (lease_acquire('n' || n, '1 day')).token FROM {all}"));
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let cluster = &cluster;
                scope.spawn(move || {
                    let mut client = cluster.client();
                    // Each client begins at another name, so that clients meet at a name only briefly.
                    (0..rounds(NAMES as usize, 10_000))
                        .map(|n| {
                            let n = (n + number * NAMES as usize / CLIENTS) % NAMES as usize + 1;
                            let Grant { slot, token } = acquire(&mut client, &format!("'n{n}', '1 day'"));
                            assert_eq!(slot, 0);
                            assert!(release(&mut client, &format!("n{n}"), token));
                            token
                        })
                        .collect::<Vec<i64>>()
                })
            })
            .collect();
        let names = format!("(SELECT array_agg('n' || n ORDER BY n) FROM {all})");
        let renewed = format!("SELECT count(*) FROM lease_renew_many({names}, $1, '1 day')");
        assert_eq!(client.query_one(&renewed, &[&tokens]).unwrap().get::<_, i64>(0), i64::from(NAMES));
        for (n, token) in (1..).zip(&tokens) {
            assert!(release(&mut client, &format!("n{n}"), *token));
        }
        let mut granted: Vec<i64> = waiters.into_iter().flat_map(|waiter| waiter.join().unwrap()).collect();
        let count = granted.len();
        granted.extend(&tokens);
        granted.sort_unstable();
        granted.dedup();
        assert_eq!(granted.len(), count + tokens.len(), "no token comes twice");
    });
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.lease"), 0);
}

/// Runs a script after both slots of "s" have expired. Their tokens are `$first` and `$second`.
fn with_two_expired(script: &str) {
    let expired = "client: SELECT lease_define('s', 2, '100 ms')
         client: SELECT token FROM lease_acquire('s') -> $first
         client: SELECT token FROM lease_acquire('s') -> $second
         until: SELECT state FROM idgen.leases ORDER BY slot -> expired, expired";
    scenario(&format!("{expired}\n         {script}"));
}

#[test]
fn rolled_back_grant_leaves_an_expired_term_above_the_limit() {
    with_two_expired(
        "client: SELECT lease_define('s', 1, '100 ms', force => true)
         client: BEGIN; SELECT lease_acquire('s', '1 day')
         client: ROLLBACK
         client: SELECT lease_renew('s', $second) IS NOT NULL -> t",
    );
}

/// While a lease has one row, a process reads no others. The transaction that deletes them is rolled back.
#[test]
fn rows_that_a_rollback_brings_back_count() {
    with_two_expired(
        "client: SELECT lease_define('s', 1, '100 ms', force => true)
         client: BEGIN; SELECT token FROM lease_acquire('s', shared => true) -> $shared
         client: SELECT lease_release('s', $shared) -> t
         client: SELECT slot FROM lease_acquire('s', '1 day') -> 0
         client: SELECT lease_try_acquire('s') -> nothing
         client: ROLLBACK
         other: SELECT lease_renew('s', $second, '1 day') IS NOT NULL -> t
         client: SELECT lease_release('s', $first) -> t
         client: SELECT lease_try_acquire('s') -> nothing",
    );
}

#[test]
fn grant_waits_for_the_fence_of_a_term_above_the_lowered_limit() {
    with_two_expired(
        "client: SELECT lease_release('s', $first); SELECT lease_define('s', 1, '100 ms', force => true)
         holder: BEGIN; SELECT lease_fence('s', $second)
         client: SELECT lease_try_acquire('s') -> nothing
         client waits for transactionid: SELECT slot FROM lease_acquire('s', '1 day')
         holder: COMMIT
         client ends -> 0
         holder: SELECT lease_renew('s', $second) -> error 55000
         holder: SELECT lease_fence('s', $second) -> error 55000
         holder: SELECT lease_acquire('s', token => $second) -> error 55000",
    );
}

/// Both slots below the limit are free, but only one more holder is allowed.
#[test]
fn uncommitted_grant_counts_beside_a_running_term_above_the_limit() {
    scenario(
        "client: SELECT lease_define('s', 3, '1 day')
         client: SELECT token FROM lease_acquire('s') -> $first
         client: SELECT token FROM lease_acquire('s') -> $second
         client: SELECT lease_acquire('s')
         client: SELECT lease_release('s', $first), lease_release('s', $second) -> t|t
         client: SELECT lease_define('s', 2, '1 day', force => true)
         client: BEGIN; SELECT lease_acquire('s')
         other: SELECT lease_try_acquire('s') -> nothing
         client: COMMIT
         other: SELECT lease_try_acquire('s') -> nothing
         other: SELECT slot, state FROM idgen.leases ORDER BY slot -> 0|held, 1|free, 2|held",
    );
}

/// The limit is lowered while the take-over waits for a fence.
#[test]
fn take_over_follows_the_definition_at_the_time_of_its_grant() {
    with_two_expired(
        "holder: BEGIN; SELECT lease_fence('s', $first)
         other: BEGIN; SELECT lease_fence('s', $second)
         client waits for transactionid: SELECT slot FROM lease_acquire('s', '1 day')
         other: COMMIT
         other: SELECT lease_renew('s', $second, '1 day')
         other: SELECT lease_define('s', 1, force => true)
         holder: COMMIT
         client waits for Extension
         other: SELECT lease_release('s', $second) -> t
         client ends -> 0",
    );
}
