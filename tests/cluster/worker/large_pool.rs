//! A grant reads a few rows, however many worker ids of the pool are taken. Counted in rows and statements, not in time.

use idgen_testkit::Cluster;
use idgen_testkit::grants::epoch_us;
use idgen_testkit::sql::{execute, expect_error, inner_statements, rows_read, value};
use postgres::Client;

use crate::{Grant, builder, try_acquire};

/// The largest pool.
const COUNT: i32 = 65_536;

/// More than any grant reads; far less than the pool has.
const FEW: i64 = 30;

fn pool(count: i32) -> Cluster {
    let cluster = builder().conf("autovacuum", "off").start_with_extension();
    cluster.execute(&format!("SELECT worker_pool_define('p', count => {count}, ttl => '1 h')"));
    cluster
}

/// A pool whose worker ids are all taken but the last, for an hour.
fn nearly_full_pool(count: i32) -> Cluster {
    let cluster = pool(count);
    cluster.execute("SELECT worker_acquire('p', 'pod 0', '1 h')");
    cluster.execute(&format!(
        "UPDATE idgen.worker_id AS filled SET token = filled.worker_id + 1, owner = 'pod ' || filled.worker_id,
             role = first.role, acquired_at = first.acquired_at, not_before = first.not_before,
             not_after = first.not_after
         FROM idgen.worker_id AS first WHERE first.worker_id = 0 AND filled.worker_id BETWEEN 1 AND {count} - 2"
    ));
    // So that the planner expects one worker id for each pool, the worst case for a large one.
    cluster.execute(
        "INSERT INTO idgen.worker_id (pool, worker_id) SELECT 'pool ' || n, 0 FROM generate_series(1, 60000) AS n",
    );
    cluster.execute("VACUUM ANALYZE idgen.worker_id");
    cluster
}

/// Acquires with these arguments, and checks that few rows were read.
fn acquire(client: &mut Client, arguments: &str) -> Grant {
    let (grant, read) = rows_read(client, "worker_id", |client| try_acquire(client, arguments).expect(arguments));
    assert!(read > 0 && read < FEW, "worker_acquire({arguments}) reads {read} rows");
    grant
}

/// The token of a worker id that `nearly_full_pool` has filled in.
fn token_of(worker_id: i32) -> i64 {
    i64::from(worker_id) + 1
}

fn renewal(client: &mut Client, token: i64) -> String {
    let told = format!("SELECT not_after::text FROM idgen.worker_id WHERE token = {token}");
    format!("SELECT worker_renew('p', {token}, '{}'::timestamptz)", value::<String>(client, &told))
}

#[test]
fn holder_of_the_largest_pool_reads_no_more_rows_than_one_of_a_small_pool() {
    let [small, large] = [64, COUNT].map(|count| {
        let cluster = nearly_full_pool(count);
        let mut client = cluster.client();
        let (last, acquired) = rows_read(&mut client, "worker_id", |client| try_acquire(client, "'p', 'last'"));
        let last = last.expect("a worker id");
        assert_eq!(last.worker_id, count - 1, "the only one that is free");
        let full = "SELECT worker_acquire('p')";
        let ((), refused) = rows_read(&mut client, "worker_id", |client| drop(expect_error(client, full, "53400")));
        let calls = [
            renewal(&mut client, last.token),
            format!("SELECT worker_confirm('p', {})", last.token),
            format!("SELECT worker_release('p', {}, now())", last.token),
        ];
        let [renewed, confirmed, released] =
            calls.map(|call| rows_read(&mut client, "worker_id", |client| execute(client, &call)).1);
        [acquired, refused, renewed, confirmed, released]
    });
    println!("{small:?}, {large:?}");
    assert!(small.iter().zip(&large).all(|(small, large)| *large <= *small.min(&10)), "{small:?}, {large:?}");
}

#[test]
fn calls_of_a_holder_execute_few_statements() {
    let cluster = pool(4);
    let mut client = cluster.client();
    // The first grant writes the history too.
    try_acquire(&mut client, "'p'").expect("a worker id");
    let Some(acquired) = inner_statements(&cluster, &mut client, "SELECT worker_acquire('p', 'a')") else { return };
    let token: i64 = value(&mut client, "SELECT token FROM idgen.worker_id WHERE owner = 'a'");
    let calls = [renewal(&mut client, token), format!("SELECT worker_confirm('p', {token})")];
    let [renewed, confirmed] = calls.map(|call| inner_statements(&cluster, &mut client, &call));
    assert_eq!((acquired, renewed, confirmed), (4, Some(2), Some(1)));
}

#[test]
fn grant_from_a_large_pool_reads_few_rows_smoke() {
    let cluster = nearly_full_pool(COUNT);
    let mut client = cluster.client();
    let release = |client: &mut Client, token: i64, last_time: &str| {
        let sql = format!("SELECT worker_release('p', {token}, {last_time})");
        let (is_free, read) = rows_read(client, "worker_id", |client| value::<bool>(client, &sql));
        assert!(is_free && read < FEW, "{sql} reads {read} rows");
    };

    let last = acquire(&mut client, "'p', 'last', '1 h'");
    assert_eq!(last.worker_id, COUNT - 1, "the one that was never granted");
    let ((), read) = rows_read(&mut client, "worker_id", |client| {
        expect_error(client, "SELECT worker_renew('p', 1, now())", "55000");
    });
    assert!(read < FEW, "the error reads {read} rows");

    // Often enough for the session to use generic plans.
    let mut token = last.token;
    for round in 0..12 {
        release(&mut client, token, "now()");
        let next = acquire(&mut client, "'p', ttl => '1 h'");
        assert_eq!(next.worker_id, COUNT - 1, "round {round}: the only one that is free");
        token = next.token;
    }

    // Of two, the owner's last one; for another owner, the one that is over for longer.
    for worker_id in [77, 78] {
        let token = token_of(worker_id);
        release(&mut client, token, "now()");
    }
    assert_eq!(acquire(&mut client, "'p', 'pod 78', '1 h'").worker_id, 78);
    assert_eq!(acquire(&mut client, "'p', 'new', '1 h', prefer => 78").worker_id, 77);

    // An expired holder; before it, a released one whose times are over.
    let expire = "UPDATE idgen.worker_id SET not_after = now() - interval '1 s' WHERE worker_id = 5000";
    execute(&mut client, expire);
    let token = token_of(6000);
    release(&mut client, token, "now()");
    assert_eq!(acquire(&mut client, "'p', ttl => '1 h'").worker_id, 6000);
    assert_eq!(acquire(&mut client, "'p', ttl => '1 h'").worker_id, 5000);

    // Released ones whose times are not over come last, the shortest wait first.
    let token = token_of(7000);
    execute(&mut client, "UPDATE idgen.worker_id SET not_after = now() + interval '10 s' WHERE worker_id = 7000");
    release(&mut client, token, "NULL");
    let token = token_of(8000);
    release(&mut client, token, "NULL");
    let seven: i64 =
        value(&mut client, &format!("SELECT {} FROM idgen.worker_id WHERE worker_id = 7000", epoch_us("not_after")));
    let waits = acquire(&mut client, "'p', ttl => '1 h'");
    assert_eq!((waits.worker_id, waits.from_us), (7000, seven), "it begins after the last holder's times");
    assert_eq!(acquire(&mut client, "'p', ttl => '1 h'").worker_id, 8000);
}

/// Also one that a preference has left out.
#[test]
fn worker_id_whose_id_times_are_not_over_is_granted_if_no_other_is_free() {
    let (_cluster, [mut client]) = builder().start_with_clients();
    execute(&mut client, "SELECT worker_pool_define('p', count => 3, ttl => '1 h')");
    let grants = [(); 3].map(|()| try_acquire(&mut client, "'p', ttl => '1 h'").expect("a worker id"));
    execute(&mut client, &format!("SELECT worker_release('p', {})", grants[1].token));
    let next = try_acquire(&mut client, "'p', ttl => '1 h'").expect("a worker id");
    assert_eq!((next.worker_id, next.from_us), (1, grants[1].until_us));
    execute(&mut client, "SELECT worker_pool_define('q', count => 4, ttl => '1 h')");
    let ids = ["prefer => 3", "prefer => 1", "ttl => '1 h'", "ttl => '1 h'"]
        .map(|arguments| try_acquire(&mut client, &format!("'q', {arguments}")).expect("a worker id").worker_id);
    assert_eq!(ids, [3, 1, 0, 2]);
    expect_error(&mut client, "SELECT worker_acquire('q')", "53400");
}

/// Those outside of the range lose their tokens, and begin after their last id times if the range comes back.
#[test]
fn changed_range_has_all_its_worker_ids_whatever_holders_there_were() {
    let (_cluster, [mut client]) = builder().start_with_clients();
    execute(&mut client, "SELECT worker_pool_define('p', count => 2, ttl => '1 h')");
    let grants = [(); 2].map(|()| try_acquire(&mut client, "'p', ttl => '1 h'").expect("a worker id"));
    expect_error(&mut client, "SELECT worker_pool_alter('p', first => 10)", "55006");
    let renew = renewal(&mut client, grants[0].token);
    execute(&mut client, "SELECT worker_pool_alter('p', first => 10, force => true)");
    expect_error(&mut client, &renew, "55000");
    let ids = [(); 2].map(|()| try_acquire(&mut client, "'p'").expect("a worker id").worker_id);
    assert_eq!(ids, [10, 11]);
    expect_error(&mut client, "SELECT worker_acquire('p')", "53400");
    execute(&mut client, "SELECT worker_pool_alter('p', first => 0, force => true)");
    for grant in grants {
        let next = try_acquire(&mut client, "'p', ttl => '1 h'").expect("a worker id");
        assert_eq!((next.worker_id, next.from_us), (grant.worker_id, grant.until_us));
    }
    expect_error(&mut client, "SELECT worker_acquire('p')", "53400");
}
