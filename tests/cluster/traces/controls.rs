//! Controls: rows that are written by hand, and traces that are patched. The replay refuses each of them.

use idgen_sim::model::trace::decoded::Transaction;
use idgen_sim::model::trace::{fleet, lease, worker};
use idgen_testkit::Cluster;
use idgen_testkit::sql::{execute, value};

use crate::{begin_trace, builder, take_trace};

/// What the replay refuses of these statements of a superuser.
fn refused_of_leases(cluster: &Cluster, sql: &str) -> String {
    execute(&mut cluster.client(), sql);
    let mut replay = lease::Replay::default();
    replay.replay(&take_trace(cluster));
    replay.report.refused.join("\n")
}

#[test]
fn rows_of_leases_that_are_written_by_hand_are_refused() {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE work (name text, slot int, token bigint)");
    begin_trace(&cluster);
    let take = "UPDATE idgen.lease SET token = nextval('idgen.lease_token') WHERE name = 't'";
    let hold = "SELECT lease_acquire('t', ttl => '1 h');";
    let write = "INSERT INTO work SELECT name, slot, token FROM idgen.lease WHERE name = 't';";
    let release = "SELECT lease_release('t', token) FROM idgen.lease WHERE name = 't';";
    let forget = "DELETE FROM work; DELETE FROM idgen.lease";
    let refused = |sql: &str| {
        let refused = refused_of_leases(&cluster, sql);
        cluster.execute(forget);
        take_trace(&cluster);
        refused
    };
    assert_eq!(refused(&format!("{hold} {write} {release}")), "");
    let early = refused(&format!("{hold} {take}"));
    assert!(early.starts_with("[TermIsOver]"), "{early}");
    let old = "CREATE TEMP TABLE old AS SELECT token FROM idgen.lease WHERE name = 't'";
    let late = "INSERT INTO work SELECT 't', 0, token FROM old";
    let stale = refused(&format!("BEGIN; {hold} {old}; {take}; COMMIT; {late}"));
    assert!(stale.contains("[TermIsOver, FenceHoldsRow]") && stale.contains("[TokenOfFence]"), "{stale}");
    let repeated = refused(&format!("{hold} UPDATE idgen.lease SET token = token - 1 WHERE name = 't'"));
    assert!(repeated.contains("TokensRise"), "{repeated}");
    let two = refused(&format!(
        "{hold} INSERT INTO idgen.lease SELECT name, 1, token + 1, depth, owner, role, data, acquired_at, ttl_us, ends_us, clock, revoked FROM idgen.lease WHERE name = 't'"
    ));
    assert!(two.starts_with("[AtMostSlots]"), "{two}");
    let revived = refused(&format!(
        "SELECT lease_define('t'); {hold} {release} UPDATE idgen.lease SET depth = 1 WHERE name = 't'"
    ));
    assert!(revived.starts_with("[TokenOfRenewal]"), "{revived}");
}

#[test]
fn rectangles_that_are_written_by_hand_are_refused() {
    let cluster = builder().start_with_extension();
    cluster
        .execute("CREATE TABLE used (number int, token bigint, time_us bigint); SELECT lease_define('p', 2, '10 s')");
    begin_trace(&cluster);
    cluster.execute("SELECT worker_acquire('p', ttl => '10 s')");
    let token: i64 = value(&mut cluster.client(), "SELECT token FROM idgen.worker_number");
    let not_after: i64 = value(
        &mut cluster.client(),
        "SELECT (extract(epoch FROM not_after) * 1000000)::bigint FROM idgen.worker_number",
    );
    let acquired = take_trace(&cluster);
    let refused = |sql: &str| {
        cluster.execute(sql);
        let changes = take_trace(&cluster);
        let mut replay = worker::Replay::new(70_000_000);
        replay.replay(&acquired);
        replay.replay(&changes);
        replay.report.refused.join("\n")
    };
    assert_eq!(refused("SELECT 1"), "");
    let inside = refused(&format!("INSERT INTO used VALUES (0, {token}, {})", not_after - 1));
    assert_eq!(inside, "");
    let outside = refused(&format!("INSERT INTO used VALUES (0, {token}, {not_after})"));
    assert!(outside.starts_with("[UseIsInside]"), "{outside}");
    let unasked = refused("UPDATE idgen.worker_number SET not_after = not_after + '1 s'");
    assert!(unasked.starts_with("[RenewalCompares]"), "{unasked}");
    let early = refused("UPDATE idgen.worker_number SET token = token + 1");
    assert!(early.starts_with("[BeginsAfterLast]"), "{early}");
    let far = refused(
        "UPDATE idgen.worker_number SET token = token + 1, not_before = not_after, not_after = not_after + '1 h'",
    );
    assert!(far.starts_with("[BeginsAfterLast, EndsWithinLead]") || far.starts_with("[EndsWithinLead]"), "{far}");
}

#[test]
fn trace_of_a_fleet_that_is_patched_is_refused() {
    let coordinator = builder().start_with_extension();
    begin_trace(&coordinator);
    coordinator.execute("SELECT segment_create('t', start => 1, step => 10)");
    let server = builder().conf("idgen.coordinator", &coordinator.conninfo()).start_with_extension();
    begin_trace(&server);
    server.execute(
        "SELECT segment_attach('t', '2 seconds'); SELECT segment_alter('t', step => 20, min_step => 20);
         CREATE TABLE drawn (value bigint DEFAULT segment_next('t')); CREATE TABLE started (at timestamptz DEFAULT now())",
    );
    (0..50).for_each(|_| server.execute("INSERT INTO drawn DEFAULT VALUES"));
    let number = value(&mut server.client(), "SELECT server FROM idgen.segment");
    let (granted, received) = (take_trace(&coordinator), take_trace(&server));
    let refused = |granted: &[Transaction], received: &[Transaction]| {
        let mut replay = fleet::Server::new(number);
        replay.replay(received);
        let report = fleet::coordinator("t", granted, &[replay]);
        (report.refused.len(), report.count("grant"))
    };
    let (none, grants) = refused(&granted, &received);
    assert!(none == 0 && grants >= 2, "{none} of {grants} grants");
    // Without the first grants, the server has values that were never granted to it.
    let is_grant = |one: &Transaction| one.changes.iter().any(|change| change.table == "idgen.segment_server");
    let first = granted.iter().position(is_grant).expect("a grant");
    let without: Vec<Transaction> =
        granted.iter().enumerate().filter(|(index, _)| *index > first + 1).map(|(_, one)| one.clone()).collect();
    assert!(refused(&without, &received).0 > 0);
    server.execute(
        "INSERT INTO drawn SELECT max(value) FROM drawn; INSERT INTO drawn SELECT max_id + 1 FROM idgen.segment",
    );
    let mut replay = fleet::Server::new(number);
    replay.replay(&received);
    assert_eq!(replay.report.refused.len(), 0, "{:?}", replay.report.refused);
    replay.replay(&take_trace(&server));
    assert_eq!(replay.report.refused.len(), 2, "{:?}", replay.report.refused);
}
