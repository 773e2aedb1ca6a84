//! Controls: rows that are written by hand, and traces that are patched. The replay refuses each of them.

use idgen_sim::model::trace::decoded::{Ending, Transaction};
use idgen_sim::model::trace::{fleet, lease, worker};
use idgen_testkit::Cluster;
use idgen_testkit::sql::{execute, value};

use crate::{begin_trace, builder, take_trace};

/// What the replay refuses of a trace that begins without leases.
fn refused_of_leases(transactions: &[Transaction]) -> String {
    let mut replay = lease::Replay::default();
    replay.replay(transactions);
    replay.report.refused.join("\n")
}

/// What it refuses of these statements of a superuser.
fn refused_of_statements(cluster: &Cluster, sql: &str) -> String {
    execute(&mut cluster.client(), sql);
    let refused = refused_of_leases(&take_trace(cluster));
    cluster.execute("DELETE FROM work; DELETE FROM idgen.lease");
    take_trace(cluster);
    refused
}

/// A server whose trace has begun, with the table of writes.
fn cluster_with_work() -> Cluster {
    let cluster = builder().start_with_extension();
    cluster.execute("CREATE TABLE work (name text, slot int, token bigint)");
    begin_trace(&cluster);
    cluster
}

/// The columns of `idgen.lease` after the token.
const REST: &str = "depth, owner, role, data, acquired_at, ttl_us, ends_us, clock, revoked";

#[test]
fn rows_of_leases_that_are_written_by_hand_are_refused() {
    let cluster = cluster_with_work();
    let take = "UPDATE idgen.lease SET token = nextval('idgen.lease_token') WHERE name = 't'";
    let hold = "SELECT lease_acquire('t', ttl => '1 h');";
    let write = "INSERT INTO work SELECT name, slot, token FROM idgen.lease WHERE name = 't';";
    let release = "SELECT lease_release('t', token) FROM idgen.lease WHERE name = 't';";
    let refused = |sql: &str| refused_of_statements(&cluster, sql);
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
        "{hold} INSERT INTO idgen.lease SELECT name, 1, token + 1, {REST} FROM idgen.lease WHERE name = 't'"
    ));
    assert!(two.starts_with("[AtMostSlots]"), "{two}");
    let revived = refused(&format!(
        "SELECT lease_define('t'); {hold} {release} UPDATE idgen.lease SET depth = 1 WHERE name = 't'"
    ));
    assert!(revived.starts_with("[TokenOfRenewal]"), "{revived}");
}

#[test]
fn shared_terms_that_are_written_by_hand_are_refused() {
    let cluster = cluster_with_work();
    let refused = |sql: &str| refused_of_statements(&cluster, sql);
    let hold = |shared: bool| {
        format!(
            "SELECT lease_acquire('t', ttl => '1 h', shared => {shared}); CREATE TEMP TABLE first AS SELECT * FROM idgen.lease;"
        )
    };
    let insert =
        |slot: u32, token: &str| format!("INSERT INTO idgen.lease SELECT name, {slot}, {token}, {REST} FROM first;");
    let (next, below) = ("nextval('idgen.lease_token')", "token - 1");
    let [reader, writer] = [70_000, 0].map(|slot| insert(slot, next));
    assert_eq!(refused(&format!("{} {reader}", hold(true))), "");
    for two in [format!("{} {writer}", hold(true)), format!("{} {reader}", hold(false))] {
        let two = refused(&two);
        assert!(two.starts_with("[AtMostSlots]"), "{two}");
    }
    let replace = |row: &str| format!("BEGIN; DELETE FROM idgen.lease; {row} COMMIT;");
    for early in [format!("{} {}", hold(true), replace(&writer)), format!("{} {}", hold(false), replace(&reader))] {
        let early = refused(&early);
        assert!(early.starts_with("[TermIsOver]"), "{early}");
    }
    let release = "BEGIN; SELECT lease_release('t', token) FROM first; COMMIT;";
    for (first, second) in [(true, 0), (false, 70_000)] {
        let low = refused(&format!("{} {release} {}", hold(first), insert(second, below)));
        assert!(low.starts_with("[TokensRise]"), "{low}");
    }
}

/// The next holder waits until the term is over.
#[test]
fn take_over_that_is_moved_before_the_end_of_a_prepared_fence_is_refused() {
    let cluster = cluster_with_work();
    for (shared, ending) in [(false, "COMMIT"), (false, "ROLLBACK"), (true, "COMMIT"), (true, "ROLLBACK")] {
        let mut client = cluster.client();
        execute(&mut client, &format!("SELECT lease_acquire('t', ttl => '100 ms', shared => {shared})"));
        let write = "INSERT INTO work SELECT name, slot, token FROM idgen.lease";
        let fence = "SELECT lease_fence(name, token) FROM idgen.lease";
        execute(&mut client, &format!("BEGIN; {fence}; {write}; PREPARE TRANSACTION 'fenced'"));
        // The changes of a transaction that was rolled back cannot be decoded for certain.
        let mut trace = take_trace(&cluster);
        execute(&mut client, &format!("{ending} PREPARED 'fenced'"));
        execute(&mut client, "SELECT lease_acquire('t')");
        trace.extend(take_trace(&cluster));
        assert_eq!(refused_of_leases(&trace), "");
        let position =
            |is: fn(&Ending) -> bool| trace.iter().position(|one| is(&one.ending)).expect("it is in the trace");
        let prepared = position(|ending| matches!(ending, Ending::Prepare(_)));
        let ended = position(|ending| matches!(ending, Ending::CommitPrepared(_) | Ending::RollbackPrepared(_)));
        let last_with = |moved: usize| {
            let mut patched = trace.clone();
            let moved = patched.remove(moved);
            patched.push(moved);
            refused_of_leases(&patched)
        };
        let early = last_with(ended);
        assert!(early.starts_with("[FenceHoldsRow]"), "{early}");
        assert_eq!(early.contains("[WriteIsFenced]"), ending == "COMMIT", "{early}");
        let late = last_with(prepared);
        assert!(late.contains("[TokenOfFence]"), "{late}");
        cluster.execute("DELETE FROM work; DELETE FROM idgen.lease");
        take_trace(&cluster);
    }
}

#[test]
fn rectangles_that_are_written_by_hand_are_refused() {
    let cluster = builder().start_with_extension();
    cluster
        .execute("CREATE TABLE used (number int, token bigint, time_us bigint); SELECT worker_pool_define('p', count => 2, ttl => '10 s')");
    begin_trace(&cluster);
    cluster.execute("SELECT worker_acquire('p', ttl => '10 s')");
    let token: i64 = value(&mut cluster.client(), "SELECT token FROM idgen.worker_id WHERE worker_id = 0");
    let not_after: i64 = value(
        &mut cluster.client(),
        "SELECT (extract(epoch FROM not_after) * 1000000)::bigint FROM idgen.worker_id WHERE worker_id = 0",
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
    let unasked = refused("UPDATE idgen.worker_id SET not_after = not_after + '1 s'");
    assert!(unasked.starts_with("[RenewalCompares]"), "{unasked}");
    let early = refused("UPDATE idgen.worker_id SET token = token + 1");
    assert!(early.starts_with("[BeginsAfterLast]"), "{early}");
    let far =
        refused("UPDATE idgen.worker_id SET token = token + 1, not_before = not_after, not_after = not_after + '1 h'");
    assert!(far.starts_with("[BeginsAfterLast, EndsWithinLead]") || far.starts_with("[EndsWithinLead]"), "{far}");
}

#[test]
fn renewals_of_tokens_that_have_ended_are_refused() {
    let renew = "UPDATE idgen.worker_id SET not_after = not_after + '1 s'";
    for renewal in [
        format!("UPDATE idgen.worker_id SET token = NULL; {renew}, token = held.token FROM held WHERE worker_id = 0"),
        format!("UPDATE idgen.worker_history SET since = now(); {renew} WHERE worker_id = 0"),
    ] {
        let cluster = builder().start_with_extension();
        cluster.execute("SELECT worker_pool_define('p', count => 2, ttl => '10 s')");
        begin_trace(&cluster);
        cluster.execute("SELECT worker_acquire('p', ttl => '10 s')");
        cluster.execute("CREATE TABLE held AS SELECT token FROM idgen.worker_id WHERE worker_id = 0");
        cluster.execute(&renewal);
        let mut replay = worker::Replay::new(70_000_000);
        replay.replay(&take_trace(&cluster));
        let refused = replay.report.refused.join("\n");
        assert!(refused.contains("TokenOfHistory"), "{renewal}: {refused}");
    }
}

#[test]
fn moves_of_worker_ids_that_are_written_by_hand_are_refused() {
    let cluster = builder().start_with_extension();
    begin_trace(&cluster);
    cluster
        .execute("SELECT worker_pool_define(pool, count => 2, ttl => '10 s') FROM unnest('{p,q,r}'::text[]) AS pool");
    cluster.execute("SELECT worker_acquire('p', ttl => '10 s')");
    let acquired = take_trace(&cluster);
    cluster.execute("CREATE TABLE original AS SELECT * FROM idgen.worker_id");
    // The other pools have rows that were never granted, as a move finds and replaces them.
    let of_row = "WHERE pool = 'p' AND worker_id = 0";
    let refused = |sql: &str| {
        take_trace(&cluster);
        cluster.execute(sql);
        let mut replay = worker::Replay::new(70_000_000);
        replay.replay(&acquired);
        replay.replay(&take_trace(&cluster));
        cluster.execute("DELETE FROM idgen.worker_id; INSERT INTO idgen.worker_id SELECT * FROM original");
        replay.report.refused.join("\n")
    };
    for change in ["not_after = not_after + '1 s'", "not_after = not_after - interval '1 s'", "role = NULL"] {
        let changed = format!(
            "DELETE FROM idgen.worker_id WHERE pool = 'q'; UPDATE idgen.worker_id SET pool = 'q', {change} {of_row}"
        );
        let changed = refused(&changed);
        assert!(changed.starts_with("[RenewalCompares]"), "{changed}");
    }
    let copied = format!(
        "DELETE FROM idgen.worker_id WHERE pool = 'q';
         INSERT INTO idgen.worker_id
         SELECT 'q', worker_id, token, owner, role, acquired_at, not_before, not_after FROM original {of_row}"
    );
    let copied = refused(&copied);
    assert!(copied.starts_with("[RenewalCompares]"), "{copied}");
    // A pool that has the same worker ids, without a move.
    let again = refused("SELECT worker_acquire('r', ttl => '10 s', prefer => 0)");
    assert!(again.starts_with("[BeginsAfterLast]"), "{again}");
    assert_eq!(refused("SELECT worker_move('p', 'q')"), "");
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
