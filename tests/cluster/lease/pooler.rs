//! Leases behind PgBouncer in transaction mode: the token proves ownership in any server session.

use std::collections::BTreeSet;
use std::time::Duration;

use idgen_testkit::lease::acquire;
use idgen_testkit::pooler::{Pooler, simple_value};
use idgen_testkit::sql::{PATIENCE, backend_pid, value};

use crate::{boot_us, builder, release, wait_until_head};

#[test]
fn renew_loop_behind_a_pooler_keeps_a_lease_for_ten_ttls() {
    const TTL_MS: u64 = 2000;
    let cluster = builder().start_with_extension();
    let pooler = Pooler::start(&cluster, 2, false);
    let (mut holder, mut other, mut direct) = (pooler.client(), pooler.client(), cluster.client());
    let token = simple_value(&mut holder, &format!("SELECT token FROM lease_acquire('p', '{TTL_MS} ms')"));
    let until_us = boot_us() + 10 * TTL_MS as i64 * 1000;
    let mut rival = cluster.client();
    let rival_pid = backend_pid(&mut rival);
    let mut sessions = BTreeSet::new();
    std::thread::scope(|scope| {
        let rival = scope.spawn(|| acquire(&mut rival, "'p', '1 day'"));
        wait_until_head(&cluster, rival_pid);
        let mut round = 0;
        while boot_us() < until_us {
            // In every other round another client occupies the connection of the last renewal.
            if round % 2 == 0 {
                simple_value(&mut other, "BEGIN; SELECT 1");
            }
            let renewal = format!("SELECT pg_backend_pid() FROM lease_renew('p', {token})");
            sessions.insert(simple_value(&mut holder, &renewal));
            if round % 2 == 0 {
                simple_value(&mut other, "COMMIT");
            }
            round += 1;
            // The pause of a renew loop.
            std::thread::sleep(Duration::from_millis(TTL_MS / 10));
        }
        let current = "SELECT token::text FROM idgen.leases WHERE state = 'held'";
        assert_eq!(value::<String>(&mut direct, current), token, "the lease never changed hands");
        assert_eq!(sessions.len(), 2, "the renewals use both sessions");
        let fenced = format!("BEGIN; SELECT lease_fence('p', {token}); SELECT 7; COMMIT");
        assert_eq!(simple_value(&mut holder, &fenced), "7");
        assert_eq!(simple_value(&mut other, &format!("SELECT lease_release('p', {token})")), "t");
        let granted = rival.join().unwrap();
        assert!(release(&mut direct, "p", granted.token));
    });
}

/// A lease is bound to the server session, which belongs to the pooler: its reset frees the lease. Without a reset the lease
/// outlives its client.
#[test]
fn lease_behind_a_pooler_is_bound_to_the_poolers_session() {
    let cluster = builder().start_with_extension();
    let bound = "SELECT token FROM lease_acquire('b', '1 day', bind_session => true)";
    let state = "SELECT state FROM idgen.leases";
    let mut direct = cluster.client();
    {
        let pooler = Pooler::start(&cluster, 1, false);
        let mut client = pooler.client();
        let token = simple_value(&mut client, bound);
        drop(client);
        assert_eq!(simple_value(&mut pooler.client(), &format!("SELECT lease_renew('b', {token}) IS NULL")), "t");
        assert_eq!(value::<String>(&mut direct, state), "held");
    }
    cluster.wait_for(PATIENCE, "the pooler's session to end", || value::<String>(&mut direct, state) == "expired");
    let pooler = Pooler::start(&cluster, 1, true);
    simple_value(&mut pooler.client(), bound);
    cluster
        .wait_for(PATIENCE, "the pooler to reset the connection", || value::<String>(&mut direct, state) == "expired");
}
