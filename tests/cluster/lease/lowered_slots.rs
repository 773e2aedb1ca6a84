//! Lowered slots: a grant never makes more holders than slots, whatever the old holders do afterwards.

use idgen_testkit::lease::{Grant, acquire, try_acquire};
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error};
use idgen_testkit::{Cluster, sql};
use postgres::Client;

use crate::{builder, release, renew, states, wait_until_head, wait_until_waiting_for_row};

/// Both slots of "s", with expired terms.
fn two_expired(cluster: &Cluster) -> [Grant; 2] {
    let mut client = cluster.client();
    execute(&mut client, "SELECT lease_define('s', 2, '100 ms')");
    let grants = [acquire(&mut client, "'s'"), acquire(&mut client, "'s'")];
    wait_for_states(cluster, ["0 expired", "1 expired"]);
    grants
}

fn wait_for_states(cluster: &Cluster, wanted: [&str; 2]) {
    let mut client = cluster.client();
    cluster.wait_for(PATIENCE, "the slots to change", || states(&mut client, "s") == wanted);
}

/// The token has no term any more.
fn assert_lost(client: &mut Client, token: i64) {
    for call in ["lease_renew('s', $1)", "lease_fence('s', $1)", "lease_acquire('s', token => $1)"] {
        expect_error(client, &format!("SELECT {}", call.replace("$1", &token.to_string())), "55000");
    }
}

#[test]
fn grant_ends_an_expired_term_above_the_lowered_limit() {
    let cluster = builder().start_with_extension();
    let old = two_expired(&cluster);
    let mut client = cluster.client();
    execute(&mut client, "SELECT lease_define('s', 1, '100 ms')");
    // No session has taken the slot over, so its term can be renewed.
    renew(&mut client, "s", old[1].token);
    wait_for_states(&cluster, ["0 expired", "1 expired"]);
    assert_eq!(acquire(&mut client, "'s', '1 day'").slot, 0);
    for grant in old {
        assert_lost(&mut client, grant.token);
    }
    assert_eq!(states(&mut client, "s"), ["0 held", "1 free"]);
}

#[test]
fn rolled_back_grant_leaves_an_expired_term_above_the_limit() {
    let cluster = builder().start_with_extension();
    let old = two_expired(&cluster);
    let mut client = cluster.client();
    execute(&mut client, "SELECT lease_define('s', 1, '100 ms')");
    execute(&mut client, "BEGIN");
    acquire(&mut client, "'s', '1 day'");
    execute(&mut client, "ROLLBACK");
    renew(&mut client, "s", old[1].token);
}

#[test]
fn grant_waits_for_the_fence_of_a_term_above_the_lowered_limit() {
    let cluster = builder().start_with_extension();
    let old = two_expired(&cluster);
    let (mut holder, mut client) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut client);
    cluster.execute(&format!("SELECT lease_release('s', {}); SELECT lease_define('s', 1, '100 ms')", old[0].token));
    execute(&mut holder, &format!("BEGIN; SELECT lease_fence('s', {})", old[1].token));
    assert_eq!(try_acquire(&mut client, "'s'"), None);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| acquire(&mut client, "'s', '1 day'"));
        wait_until_waiting_for_row(&cluster, pid);
        execute(&mut holder, "COMMIT");
        assert_eq!(waiter.join().unwrap().slot, 0);
    });
    assert_lost(&mut holder, old[1].token);
}

/// Both slots below the limit are free, but only one more holder is allowed.
#[test]
fn uncommitted_grant_counts_beside_a_running_term_above_the_limit() {
    let cluster = builder().start_with_extension();
    let [mut client, mut other] = [cluster.client(), cluster.client()];
    execute(&mut client, "SELECT lease_define('s', 3, '1 day')");
    let grants = [(); 3].map(|()| acquire(&mut client, "'s'"));
    assert!(release(&mut client, "s", grants[0].token) && release(&mut client, "s", grants[1].token));
    execute(&mut client, "SELECT lease_define('s', 2, '1 day', force => true)");
    execute(&mut client, "BEGIN");
    acquire(&mut client, "'s'");
    assert_eq!(try_acquire(&mut other, "'s'"), None);
    execute(&mut client, "COMMIT");
    assert_eq!(try_acquire(&mut other, "'s'"), None);
    assert_eq!(states(&mut other, "s"), ["0 held", "1 free", "2 held"]);
}

/// The limit is lowered while the take-over waits for a fence.
#[test]
fn take_over_follows_the_definition_at_the_time_of_its_grant() {
    let cluster = builder().start_with_extension();
    let old = two_expired(&cluster);
    let [mut holder, mut client, mut other] = [cluster.client(), cluster.client(), cluster.client()];
    let pid = backend_pid(&mut client);
    execute(&mut holder, &format!("BEGIN; SELECT lease_fence('s', {})", old[0].token));
    execute(&mut other, &format!("BEGIN; SELECT lease_fence('s', {})", old[1].token));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| acquire(&mut client, "'s', '1 day'"));
        wait_until_waiting_for_row(&cluster, pid);
        execute(&mut other, &format!("COMMIT; SELECT lease_renew('s', {}, '1 day')", old[1].token));
        execute(&mut other, "SELECT lease_define('s', 1, force => true)");
        execute(&mut holder, "COMMIT");
        wait_until_head(&cluster, pid);
        assert!(release(&mut other, "s", old[1].token));
        assert_eq!(waiter.join().unwrap().slot, 0);
    });
}

/// The row of a new slot is not visible to others before the commit.
#[test]
fn definition_waits_for_a_transaction_that_has_acquired() {
    let cluster = builder().start_with_extension();
    let [mut client, mut other, mut observer] = [cluster.client(), cluster.client(), cluster.client()];
    let pid = backend_pid(&mut other);
    execute(&mut observer, "SELECT lease_define('s', 2, '1 day')");
    acquire(&mut observer, "'s'");
    execute(&mut client, "BEGIN");
    assert_eq!(acquire(&mut client, "'s'").slot, 1);
    std::thread::scope(|scope| {
        let definer = scope.spawn(|| execute(&mut other, "SELECT lease_define('s', 1, force => true)"));
        wait_until_waiting_for_row(&cluster, pid);
        execute(&mut client, "COMMIT");
        definer.join().unwrap();
    });
    assert_eq!(sql::value::<i32>(&mut observer, "SELECT slots FROM idgen.lease_definition"), 1);
}
