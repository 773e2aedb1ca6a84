//! Lowered slots: a grant never makes more holders than slots, whatever the old holders do afterwards.

use crate::scenario;

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
        "client: SELECT lease_define('s', 1, '100 ms')
         client: BEGIN; SELECT lease_acquire('s', '1 day')
         client: ROLLBACK
         client: SELECT lease_renew('s', $second) IS NOT NULL -> t",
    );
}

#[test]
fn grant_waits_for_the_fence_of_a_term_above_the_lowered_limit() {
    with_two_expired(
        "client: SELECT lease_release('s', $first); SELECT lease_define('s', 1, '100 ms')
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
