//! A grant reads a few rows, however many worker ids of the pool are taken. Counted in rows, not in time.

use idgen_testkit::Cluster;
use idgen_testkit::grants::epoch_us;
use idgen_testkit::sql::{execute, expect_error, rows_read, value};
use postgres::Client;

use crate::{Grant, builder, try_acquire};

const SLOTS: i32 = 20_000;

/// More than any grant reads; far less than the pool has.
const FEW: i64 = 100;

/// A pool whose worker ids are all taken but the last: by holders of this clock, for an hour.
fn nearly_full_pool() -> Cluster {
    let (cluster, [mut client]) = builder().conf("autovacuum", "off").start_with_clients();
    execute(&mut client, &format!("SELECT lease_define('p', {SLOTS}, '1 h'), worker_acquire('p', 'first', '1 h')"));
    execute(
        &mut client,
        &format!(
            "INSERT INTO idgen.lease SELECT (l).* FROM (
                 SELECT jsonb_populate_record(l, jsonb_build_object('slot', n, 'token', token + n, 'owner', 'pod ' || n)) AS l
                 FROM idgen.lease AS l, generate_series(1, {SLOTS} - 2) AS n WHERE name = 'p') AS filled;
             INSERT INTO idgen.worker_number SELECT (k).* FROM (
                 SELECT jsonb_populate_record(k, jsonb_build_object('number', n, 'token', token + n, 'owner', 'pod ' || n)) AS k
                 FROM idgen.worker_number AS k, generate_series(1, {SLOTS} - 2) AS n WHERE pool = 'p') AS filled;
             SELECT setval('idgen.lease_token', (SELECT max(token) FROM idgen.lease))"
        ),
    );
    // So that the planner expects one slot for each name, the worst case for a pool.
    execute(
        &mut client,
        "INSERT INTO idgen.lease (name, slot, token, depth, role, acquired_at, ttl_us, ends_us, clock, revoked)
         SELECT 'job ' || n, 0, n, 1, role, acquired_at, ttl_us, ends_us, clock, false
         FROM idgen.lease, generate_series(1, 60000) AS n WHERE name = 'p' AND slot = 0",
    );
    cluster.execute("VACUUM ANALYZE idgen.lease, idgen.worker_number");
    cluster
}

/// Acquires with these arguments, and checks that few rows were read.
fn acquire(client: &mut Client, arguments: &str) -> Grant {
    let (grant, read) = rows_read(client, "worker_id", |client| try_acquire(client, arguments).expect(arguments));
    assert!(read > 0 && read < FEW, "worker_acquire({arguments}) reads {read} rows");
    grant
}

/// The token of a worker id that `nearly_full_pool` has filled in.
fn token_of(client: &mut Client, worker_id: i32) -> i64 {
    value(client, &format!("SELECT token FROM idgen.lease WHERE name = 'p' AND slot = {worker_id}"))
}

#[test]
fn grant_from_a_large_pool_reads_few_rows_smoke() {
    let cluster = nearly_full_pool();
    let mut client = cluster.client();
    let release = |client: &mut Client, token: i64, last_time: &str| {
        let sql = format!("SELECT worker_release('p', {token}, {last_time})");
        let (is_free, read) = rows_read(client, "worker_id", |client| value::<bool>(client, &sql));
        assert!(is_free && read < FEW, "{sql} reads {read} rows");
    };

    let last = acquire(&mut client, "'p', 'last', '1 h'");
    assert_eq!(last.worker_id, SLOTS - 1, "the one that was never granted");
    let told = format!("SELECT not_after::text FROM idgen.worker_number WHERE token = {}", last.token);
    let renew =
        format!("SELECT worker_renew('p', {}, '{}'::timestamptz)", last.token, value::<String>(&mut client, &told));
    let ((), read) = rows_read(&mut client, "worker_id", |client| execute(client, &renew));
    assert!(read > 0 && read < FEW, "{renew} reads {read} rows");

    let ((), read) = rows_read(&mut client, "worker_id", |client| {
        expect_error(client, "SELECT worker_renew('p', 1, now())", "55000");
    });
    assert!(read < FEW, "the error shows the first slots and reads {read} rows");

    // Often enough for the session to use generic plans.
    let mut token = last.token;
    for round in 0..12 {
        release(&mut client, token, "now()");
        let next = acquire(&mut client, "'p', ttl => '1 h'");
        assert_eq!(next.worker_id, SLOTS - 1, "round {round}: the only one that is free");
        token = next.token;
    }

    // Of two, the owner's last one; for another owner, the one that is over for longer.
    for worker_id in [77, 78] {
        let token = token_of(&mut client, worker_id);
        release(&mut client, token, "now()");
    }
    assert_eq!(acquire(&mut client, "'p', 'pod 78', '1 h'").worker_id, 78);
    assert_eq!(acquire(&mut client, "'p', 'new', '1 h', prefer => 78").worker_id, 77);

    // An expired holder; before it, a released one whose times are over.
    let expire = "UPDATE idgen.lease SET ends_us = 1 WHERE name = 'p' AND slot = 5000;
                  UPDATE idgen.worker_number SET not_after = now() - interval '1 s' WHERE number = 5000";
    execute(&mut client, expire);
    let token = token_of(&mut client, 6000);
    release(&mut client, token, "now()");
    assert_eq!(acquire(&mut client, "'p', ttl => '1 h'").worker_id, 6000);
    assert_eq!(acquire(&mut client, "'p', ttl => '1 h'").worker_id, 5000);

    // Released ones whose times are not over come last, the shortest wait first.
    let token = token_of(&mut client, 7000);
    execute(&mut client, "UPDATE idgen.worker_number SET not_after = now() + interval '10 s' WHERE number = 7000");
    release(&mut client, token, "NULL");
    let token = token_of(&mut client, 8000);
    release(&mut client, token, "NULL");
    let seven: i64 =
        value(&mut client, &format!("SELECT {} FROM idgen.worker_number WHERE number = 7000", epoch_us("not_after")));
    let waits = acquire(&mut client, "'p', ttl => '1 h'");
    assert_eq!((waits.worker_id, waits.from_us), (7000, seven), "it begins after the last holder's times");
    assert_eq!(acquire(&mut client, "'p', ttl => '1 h'").worker_id, 8000);
}

/// A slot that was freed as a lease is no candidate until its times are over. It is found all the same.
#[test]
fn slot_that_is_no_candidate_is_granted_if_no_other_is_free() {
    let (_cluster, [mut client]) = builder().start_with_clients();
    execute(&mut client, "SELECT lease_define('p', 3, '1 h')");
    let grants = [(); 3].map(|()| try_acquire(&mut client, "'p', ttl => '1 h'").expect("a worker id"));
    execute(&mut client, &format!("SELECT lease_release('p', {})", grants[1].token));
    let next = try_acquire(&mut client, "'p', ttl => '1 h'").expect("a worker id");
    assert_eq!((next.worker_id, next.from_us), (1, grants[1].until_us));
    // Slots that a jump has left out, once none other is left.
    execute(&mut client, "SELECT lease_define('q', 4, '1 h')");
    let ids = ["prefer => 3", "prefer => 1", "ttl => '1 h'", "ttl => '1 h'"]
        .map(|arguments| try_acquire(&mut client, &format!("'q', {arguments}")).expect("a worker id").worker_id);
    assert_eq!(ids, [3, 1, 0, 2]);
    let full = try_acquire(&mut client, "'q'").expect_err("all are taken");
    assert_eq!(full.code().map(postgres::error::SqlState::code), Some("53400"));
}

/// After a change of the range, rows outside of it count until their holders have ended.
#[test]
fn holders_outside_of_a_changed_range_count() {
    let (_cluster, [mut client]) = builder().start_with_clients();
    execute(&mut client, "SELECT lease_define('p', 2, '1 h')");
    let grants = [(); 2].map(|()| try_acquire(&mut client, "'p', ttl => '1 h'").expect("a worker id"));
    execute(&mut client, "SELECT lease_alter('p', first_slot => 10, force => true)");
    expect_error(&mut client, "SELECT worker_acquire('p')", "53400");
    execute(&mut client, &format!("SELECT worker_release('p', {})", grants[0].token));
    assert_eq!(try_acquire(&mut client, "'p', ttl => '1 h'").expect("a worker id").worker_id, 10);
    expect_error(&mut client, "SELECT worker_acquire('p')", "53400");
}
