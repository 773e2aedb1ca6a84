//! Behind PgBouncer in transaction mode the token is the proof, whatever session of the server it comes through.

use std::collections::BTreeSet;
use std::time::Duration;

use idgen_testkit::lease::acquire;
use idgen_testkit::pooler::{Pooler, call};
use idgen_testkit::sql::{PATIENCE, backend_pid, value};

use crate::{boot_us, builder, release, wait_until_head};

#[test]
fn a_renew_loop_keeps_a_lease_for_ten_ttls() {
    const TTL_MS: u64 = 2000;
    let cluster = builder().start_with_extension();
    let pooler = Pooler::start(&cluster, 2, false);
    let (mut holder, mut other, mut direct) = (pooler.client(), pooler.client(), cluster.client());
    let token = call(&mut holder, &format!("SELECT token FROM lease_acquire('p', '{TTL_MS} ms')"));
    let until_us = boot_us() + 10 * TTL_MS as i64 * 1000;
    let mut rival = cluster.client();
    let rival_pid = backend_pid(&mut rival);
    let mut sessions = BTreeSet::new();
    std::thread::scope(|scope| {
        let rival = scope.spawn(|| acquire(&mut rival, "'p', '1 day'"));
        wait_until_head(&cluster, rival_pid);
        let mut round = 0;
        while boot_us() < until_us {
            // Another client keeps the connection that the last renewal went through, every other time.
            if round % 2 == 0 {
                call(&mut other, "BEGIN; SELECT 1");
            }
            let renewal = format!("SELECT pg_backend_pid() FROM lease_renew('p', {token})");
            sessions.insert(call(&mut holder, &renewal));
            if round % 2 == 0 {
                call(&mut other, "COMMIT");
            }
            round += 1;
            // As a renew loop does.
            std::thread::sleep(Duration::from_millis(TTL_MS / 10));
        }
        let current = "SELECT token::text FROM idgen.leases WHERE state = 'held'";
        assert_eq!(value::<String>(&mut direct, current), token, "nobody else has had it");
        assert_eq!(sessions.len(), 2, "the renewals went through several sessions");
        let fenced = format!("BEGIN; SELECT lease_fence('p', {token}); SELECT 7; COMMIT");
        assert_eq!(call(&mut holder, &fenced), "7");
        assert_eq!(call(&mut other, &format!("SELECT lease_release('p', {token})")), "t");
        let granted = rival.join().unwrap();
        assert!(release(&mut direct, "p", granted.token));
    });
}

/// What is bound is bound to the server's session, which is the pooler's: its reset frees the lease, and without one the lease
/// outlives its client.
#[test]
fn behind_a_pooler_a_lease_is_bound_to_the_poolers_session() {
    let cluster = builder().start_with_extension();
    let bound = "SELECT token FROM lease_acquire('b', '1 day', bind_session => true)";
    let state = "SELECT state FROM idgen.leases";
    let mut direct = cluster.client();
    {
        let pooler = Pooler::start(&cluster, 1, false);
        let mut client = pooler.client();
        let token = call(&mut client, bound);
        drop(client);
        assert_eq!(call(&mut pooler.client(), &format!("SELECT lease_renew('b', {token}) IS NULL")), "t");
        assert_eq!(value::<String>(&mut direct, state), "held");
    }
    cluster.wait_for(PATIENCE, "the pooler's session to end", || value::<String>(&mut direct, state) == "expired");
    let pooler = Pooler::start(&cluster, 1, true);
    call(&mut pooler.client(), bound);
    cluster
        .wait_for(PATIENCE, "the pooler to reset the connection", || value::<String>(&mut direct, state) == "expired");
}
