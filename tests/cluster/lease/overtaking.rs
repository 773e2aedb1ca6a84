//! Fences while a take-over waits: earlier transactions may fence, later ones do not overtake the take-over.

use idgen_testkit::lease::{acquire, try_acquire};
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, expect_error, value};
use idgen_testkit::{Cluster, rounds};

use crate::{builder, release, states, wait_for_state, wait_until_head, wait_until_queued, wait_until_waiting_for_row};

/// The token of an expired lease with one slot.
fn expired(cluster: &Cluster) -> i64 {
    let token = acquire(&mut cluster.client(), "'f', '100 ms'").token;
    wait_for_state(cluster, "f", "0 expired");
    token
}

#[test]
fn fence_does_not_overtake_a_waiting_take_over() {
    let cluster = builder().start_with_extension();
    let token = expired(&cluster);
    let fence = format!("BEGIN; SELECT lease_fence('f', {token})");
    let [mut first, mut late, mut next] = [cluster.client(), cluster.client(), cluster.client()];
    let (late_pid, next_pid) = (backend_pid(&mut late), backend_pid(&mut next));
    execute(&mut first, &fence);
    std::thread::scope(|scope| {
        let take_over = scope.spawn(|| acquire(&mut next, "'f', '1 day'"));
        wait_until_waiting_for_row(&cluster, next_pid);
        let late = scope.spawn(|| expect_error(&mut late, &fence, "55000"));
        wait_until_queued(&cluster, late_pid);
        execute(&mut first, "COMMIT");
        assert!(take_over.join().unwrap().token > token);
        late.join().unwrap();
    });
}

/// A transaction that the take-over waits for must not wait for the take-over.
#[test]
fn transaction_that_holds_the_row_fences_before_a_waiting_take_over() {
    let cluster = builder().start_with_extension();
    for first in [
        "lease_fence('f', $1)",
        "lease_renew('f', $1, '1 day')",
        "lease_acquire('f', '1 day', token => $1)",
        "lease_renew_many('{f}', ARRAY[$1], '1 day')",
    ] {
        let token = expired(&cluster);
        let [mut holder, mut next] = [cluster.client(), cluster.client()];
        let pid = backend_pid(&mut next);
        execute(&mut holder, &format!("BEGIN; SELECT {}", first.replace("$1", &token.to_string())));
        std::thread::scope(|scope| {
            let take_over = scope.spawn(|| acquire(&mut next, "'f', '1 day'"));
            wait_until_waiting_for_row(&cluster, pid);
            execute(&mut holder, &format!("SET statement_timeout = '10 s'; SELECT lease_fence('f', {token})"));
            // The rollback of the second fence leaves the lock of the first one.
            execute(&mut holder, &format!("SAVEPOINT s; SELECT lease_fence('f', {token}); ROLLBACK TO s"));
            execute(&mut holder, "COMMIT");
            if !first.contains("fence") {
                // The renewal was in time.
                wait_until_head(&cluster, pid);
                while !release(&mut holder, "f", token) {}
            }
            take_over.join().unwrap();
        });
        execute(&mut holder, "DELETE FROM idgen.lease");
    }
}

/// The take-over sleeps at the head of the queue, because the other slot may become free first.
#[test]
fn fence_does_not_overtake_a_take_over_that_waits_for_several_slots() {
    let cluster = builder().start_with_extension();
    cluster.execute("SELECT lease_define('s', 2, '100 ms')");
    let [mut first, mut late, mut next] = [cluster.client(), cluster.client(), cluster.client()];
    let (late_pid, next_pid) = (backend_pid(&mut late), backend_pid(&mut next));
    let token = acquire(&mut first, "'s'").token;
    acquire(&mut first, "'s', '1 day'");
    cluster.wait_for(PATIENCE, "the slot to expire", || states(&mut late, "s") == ["0 expired", "1 held"]);
    let fence = format!("BEGIN; SELECT lease_fence('s', {token})");
    execute(&mut first, &fence);
    std::thread::scope(|scope| {
        let take_over = scope.spawn(|| acquire(&mut next, "'s', '1 day'"));
        wait_until_head(&cluster, next_pid);
        let late = scope.spawn(|| expect_error(&mut late, &fence, "55000"));
        wait_until_queued(&cluster, late_pid);
        execute(&mut first, "COMMIT");
        assert_eq!(take_over.join().unwrap().slot, 0);
        late.join().unwrap();
    });
}

#[test]
fn fence_does_not_overtake_a_waiting_drop() {
    let cluster = builder().start_with_extension();
    let token = expired(&cluster);
    let fence = format!("BEGIN; SELECT lease_fence('f', {token})");
    let [mut first, mut late, mut dropper] = [cluster.client(), cluster.client(), cluster.client()];
    let (late_pid, dropper_pid) = (backend_pid(&mut late), backend_pid(&mut dropper));
    execute(&mut first, &fence);
    std::thread::scope(|scope| {
        let drop = scope.spawn(|| execute(&mut dropper, "SELECT lease_drop('f')"));
        wait_until_waiting_for_row(&cluster, dropper_pid);
        let late = scope.spawn(|| expect_error(&mut late, &fence, "55000"));
        wait_until_queued(&cluster, late_pid);
        execute(&mut first, "COMMIT");
        drop.join().unwrap();
        late.join().unwrap();
    });
}

/// Each transaction ends only when the next one has fenced or waits. Without an order the take-over would starve.
#[test]
fn overlapping_fences_do_not_starve_a_take_over() {
    let cluster = builder().start_with_extension();
    let token = expired(&cluster);
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
    let cluster = builder().start_with_extension();
    let token = expired(&cluster);
    let [mut first, mut holder, mut next] = [cluster.client(), cluster.client(), cluster.client()];
    let pid = backend_pid(&mut next);
    execute(&mut first, &format!("BEGIN; SELECT lease_fence('f', {token})"));
    std::thread::scope(|scope| {
        let take_over = scope.spawn(|| acquire(&mut next, "'f'"));
        wait_until_waiting_for_row(&cluster, pid);
        execute(&mut holder, &format!("SELECT lease_renew('f', {token}, '1 hour')"));
        execute(&mut holder, &format!("SELECT lease_fence('f', {token})"));
        execute(&mut first, "COMMIT");
        assert!(release(&mut holder, "f", token));
        take_over.join().unwrap();
    });
}

#[test]
fn transaction_that_has_released_once_fences_before_a_waiting_take_over() {
    let cluster = builder().start_with_extension();
    let token = acquire(&mut cluster.client(), "'f', '100 ms'").token;
    let again = format!("SELECT lease_acquire('f', '100 ms', token => {token})");
    let [mut holder, mut next] = [cluster.client(), cluster.client()];
    execute(&mut holder, &again);
    wait_for_state(&cluster, "f", "0 expired");
    let pid = backend_pid(&mut next);
    execute(&mut holder, &format!("BEGIN; SELECT lease_release('f', {token})"));
    std::thread::scope(|scope| {
        let take_over = scope.spawn(|| acquire(&mut next, "'f'"));
        wait_until_waiting_for_row(&cluster, pid);
        execute(&mut holder, &format!("SELECT lease_fence('f', {token}); COMMIT"));
        assert!(take_over.join().unwrap().token > token);
    });
}

/// Several instances of a service do this as they start.
#[test]
fn transaction_that_defines_a_name_acquires_it_before_the_waiters() {
    let cluster = builder().start_with_extension();
    let [mut definer, mut head, mut second] = [cluster.client(), cluster.client(), cluster.client()];
    let [head_pid, second_pid] = [&mut head, &mut second].map(backend_pid);
    execute(&mut definer, "BEGIN; SELECT lease_define('f')");
    std::thread::scope(|scope| {
        let head = scope.spawn(|| acquire(&mut head, "'f'"));
        wait_until_queued(&cluster, head_pid);
        let second = scope.spawn(|| execute(&mut second, "SELECT lease_define('f')"));
        wait_until_queued(&cluster, second_pid);
        let token = try_acquire(&mut definer, "'f'").expect("the lease was never held").token;
        execute(&mut definer, "COMMIT");
        second.join().unwrap();
        assert!(release(&mut definer, "f", token));
        head.join().unwrap();
    });
}
