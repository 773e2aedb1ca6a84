//! A renewal of a row that others have fenced makes a multixact. VACUUM freezes them, and a check tells where nothing does.

use idgen_testkit::lease::acquire;
use idgen_testkit::rounds;
use idgen_testkit::sql::{backend_pid, execute, row, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::builder;

/// PostgreSQL forces a freeze at the least age that it accepts.
fn young() -> Builder {
    builder().conf("autovacuum_multixact_freeze_max_age", "10000")
}

/// The message and the action of the check, if it fails.
fn failing(client: &mut Client) -> Option<String> {
    let sql = "SELECT concat_ws(' | ', severity, message, action) FROM idgen.checks
               WHERE \"check\" = 'multixacts' AND NOT ok";
    client.query_opt(sql, &[]).expect("a query of the view").map(|row| row.get(0))
}

fn assert_fails(client: &mut Client, texts: &[&str]) {
    let says = failing(client).expect("the check fails");
    assert!(says.starts_with("warning | ") && texts.iter().all(|text| says.contains(text)), "{says}");
}

fn renew_often(client: &mut Client, token: i64, times: usize) {
    execute(
        client,
        &format!("DO $$ BEGIN FOR i IN 1..{times} LOOP PERFORM lease_renew('a', {token}); COMMIT; END LOOP; END $$"),
    );
}

fn age(client: &mut Client) -> i32 {
    value(client, "SELECT mxid_age(relminmxid) FROM pg_class WHERE oid = 'idgen.lease'::regclass")
}

/// Renews beside a transaction that has fenced, until the table has this age.
fn grow_old(client: &mut Client, token: i64, least: i32) {
    while age(client) <= least {
        renew_often(client, token, 500);
    }
}

#[test]
fn multixacts_that_nothing_freezes_fail_a_check() {
    let cluster = young().conf("autovacuum", "off").fake_clock().start_with_extension();
    let [mut fencing, mut client] = [cluster.client(), cluster.client()];
    let token = acquire(&mut client, "'a', '1 day'").token;
    execute(&mut fencing, &format!("BEGIN; SELECT lease_fence('a', {token})"));
    renew_often(&mut client, token, 500);
    assert_eq!(failing(&mut client), None);
    grow_old(&mut client, token, 5000);
    cluster.clock().set_offset_ms(600_000);
    let holder = format!("process {} keeps multixacts", backend_pid(&mut fencing));
    let freeze = "VACUUM (FREEZE) idgen.lease";
    assert_fails(&mut client, &[&holder, "pg_terminate_backend", freeze, "at 10000"]);
    // It keeps them from any VACUUM.
    execute(&mut client, freeze);
    assert_fails(&mut client, &[&holder]);
    execute(&mut fencing, "COMMIT");
    assert_fails(&mut client, &["autovacuum is off", freeze, "turn autovacuum on"]);
    // A standby cannot freeze.
    assert_eq!(failing(&mut cluster.standby().client()), None);
    execute(&mut client, freeze);
    assert_eq!(failing(&mut client), None);
}

/// It does by itself, but not for a table that excludes itself, and the check also fails if it is late.
#[test]
fn multixacts_are_left_to_autovacuum_unless_it_is_late() {
    // No worker comes to the table.
    let cluster = young().conf("autovacuum_naptime", "2147483s").start_with_extension();
    let [mut fencing, mut client] = [cluster.client(), cluster.client()];
    let token = acquire(&mut client, "'a', '1 day'").token;
    execute(&mut fencing, &format!("BEGIN; SELECT lease_fence('a', {token})"));
    grow_old(&mut client, token, 5000);
    execute(&mut fencing, "COMMIT");
    assert_eq!(failing(&mut client), None);
    execute(&mut client, "ALTER TABLE idgen.lease SET (autovacuum_enabled = false)");
    assert_fails(&mut client, &["autovacuum is off", "at 10000"]);
    execute(&mut client, "ALTER TABLE idgen.lease RESET (autovacuum_enabled)");
    execute(&mut fencing, &format!("BEGIN; SELECT lease_fence('a', {token})"));
    grow_old(&mut client, token, 11_000);
    execute(&mut fencing, "COMMIT");
    assert_fails(&mut client, &["autovacuum has not frozen", "VACUUM (FREEZE) idgen.lease", "at 10000"]);
    execute(&mut client, "VACUUM (FREEZE) idgen.lease");
    assert_eq!(failing(&mut client), None);
}

/// Multixacts and their members that were made so far.
fn made(client: &mut Client) -> (i64, i64) {
    execute(client, "CHECKPOINT");
    let made = "SELECT next_multixact_id::text::bigint, next_multi_offset::text::bigint FROM pg_control_checkpoint()";
    let made = row(client, made);
    (made.get(0), made.get(1))
}

/// Fences again and again until it is told to stop.
fn fence_until(cluster: &Cluster, token: i64, is_over: &AtomicBool) {
    let mut client = cluster.client();
    while !is_over.load(Relaxed) {
        execute(&mut client, &format!("BEGIN; SELECT lease_fence('a', {token})"));
        execute(&mut client, "COMMIT");
    }
}

/// A multixact has the fences and the renewal, and none outlives VACUUM (FREEZE).
#[test]
fn renewals_beside_fences_cost_few_multixacts_and_leave_none() {
    const FENCES: i64 = 4;
    let cluster = builder().conf("autovacuum", "off").conf("statement_timeout", "0").start_with_extension();
    let mut client = cluster.client();
    let token = acquire(&mut client, "'a', '1 day'").token;
    let (is_over, renewals) = (AtomicBool::new(false), rounds(2000, 200_000));
    let (multixacts_before, members_before) = made(&mut client);
    std::thread::scope(|scope| {
        for _ in 0..FENCES {
            scope.spawn(|| fence_until(&cluster, token, &is_over));
        }
        renew_often(&mut client, token, renewals);
        is_over.store(true, Relaxed);
    });
    let (multixacts, members) = made(&mut client);
    let (multixacts, members) = (multixacts - multixacts_before, members - members_before);
    let before = age(&mut client);
    execute(&mut client, "VACUUM (FREEZE) idgen.lease");
    let after = age(&mut client);
    println!("{renewals} renewals: {multixacts} multixacts, {members} members; age {before}, and {after} once frozen");
    assert!(members <= multixacts * (FENCES + 1), "{members} members of {multixacts}");
    assert!(after <= 100, "an age of {after}, and {before} before");
}
