//! CREATE DATABASE ... TEMPLATE with idgen in use: what the copy shares with its origin, and what it has of its own.

use idgen_testkit::ids::assert_increasing;
use idgen_testkit::lease::{acquire, take_if_free, term};
use idgen_testkit::segment::{create, next};
use idgen_testkit::sql::{execute, expect_error, ids, in_new_database, value};
use idgen_testkit::{Builder, Cluster};
use postgres::Client;

fn builder() -> Builder {
    Cluster::builder().conf("idgen.worker_id", "1").conf("statement_timeout", "1min")
}

const STRATEGIES: [&str; 2] = ["wal_log", "file_copy"];

fn draw(client: &mut Client, count: i64) -> Vec<i64> {
    ids(client, &format!("SELECT segment_next_many('t', {count})"))
}

/// Right after a draw: CREATE DATABASE waits for the workers of idgen to leave the template.
fn copy(cluster: &Cluster, strategy: &str) -> Client {
    cluster.execute(&format!("CREATE DATABASE {strategy} TEMPLATE shop STRATEGY {strategy}"));
    cluster.client_in(strategy)
}

#[test]
fn copied_database_continues_after_the_values_of_its_origin_smoke() {
    let cluster = builder().start_with_extension();
    let mut shop = in_new_database(&cluster, "shop");
    create(&mut shop, "t", ", step => 20");
    create(&mut shop, "fresh", ", start => 100, step => 20");
    let mut snowflakes = Vec::new();
    let mut values = draw(&mut shop, 30);
    snowflakes.extend(ids(&mut shop, "SELECT snowflake_next_many(100)"));
    drop(shop);
    for strategy in STRATEGIES {
        let mut copied = copy(&cluster, strategy);
        values.truncate(30);
        values.extend(draw(&mut copied, 30));
        assert_increasing(&values);
        assert_eq!([next(&mut copied, "fresh"), next(&mut copied, "fresh")], [100, 101]);
        // The server issues them, whatever the database.
        snowflakes.extend(ids(&mut copied, "SELECT snowflake_next_many(100)"));
        snowflakes.extend(ids(&mut cluster.client_in("shop"), "SELECT snowflake_next_many(100)"));
    }
    assert_increasing(&snowflakes);
    assert_eq!(draw(&mut cluster.client_in("shop"), 2), [31, 32], "the origin goes on where it was");
}

/// The new database has the OID of the dropped one, and the rows of the template. It may not draw from the ring of the
/// dropped one, whose values are above the row's `max_id`, nor go on with what that had left.
#[test]
fn database_with_the_oid_of_a_dropped_one_uses_none_of_its_values() {
    for rings in ["1024", "1"] {
        assert_uses_no_values_of_a_dropped_database(builder().conf("idgen.max_segments", rings));
    }
}

fn assert_uses_no_values_of_a_dropped_database(builder: Builder) {
    let cluster = builder.start_with_extension();
    let mut shop = in_new_database(&cluster, "shop");
    create(&mut shop, "t", ", step => 20, max_step => 20, min_step => 20");
    draw(&mut shop, 20);
    drop(shop);
    const CREATE: &str = "CREATE DATABASE again OID 900000 TEMPLATE shop";
    cluster.execute(CREATE);
    let mut again = cluster.client_in("again");
    draw(&mut again, 70);
    let mut snowflakes = ids(&mut again, "SELECT snowflake_next_many(100)");
    drop(again);
    // With one ring, this takes it.
    let mut other = cluster.client();
    create(&mut other, "t", "");
    assert_eq!(next(&mut other, "t"), 1);
    cluster.execute("DROP DATABASE again");
    cluster.execute(CREATE);
    let mut again = cluster.client_in("again");
    let first: i64 = value(&mut again, "SELECT max_id + 1 FROM idgen.segment");
    let drawn = draw(&mut again, 100);
    assert_eq!(drawn[0], first, "{drawn:?}");
    assert_increasing(&drawn);
    snowflakes.extend(ids(&mut again, "SELECT snowflake_next_many(100)"));
    assert_increasing(&snowflakes);
}

#[test]
fn leases_of_the_copy_are_its_own_and_have_the_terms_of_the_origin() {
    let cluster = builder().start_with_extension();
    let mut shop = in_new_database(&cluster, "shop");
    let token = acquire(&mut shop, "'job', ttl => '1 hour'").token;
    acquire(&mut shop, "'bound', ttl => '1 hour', bind_session => true");
    drop(shop);
    for strategy in STRATEGIES {
        let mut copied = copy(&cluster, strategy);
        let mut shop = cluster.client_in("shop");
        // The holder's token works in both, until one of them revokes it.
        assert_eq!(term(&mut copied, "job").token, token);
        for client in [&mut shop, &mut copied] {
            assert_eq!(take_if_free(client, "job"), None);
            execute(client, &format!("SELECT lease_fence('job', {token})"));
        }
        assert!(value::<bool>(&mut copied, "SELECT lease_revoke('job')"));
        expect_error(&mut copied, &format!("SELECT lease_fence('job', {token})"), "55000");
        execute(&mut shop, &format!("SELECT lease_fence('job', {token})"));
        let taken = take_if_free(&mut copied, "job").expect("it was revoked");
        assert!(taken > token, "{taken} after {token}");
        // No session of the copy holds it.
        assert!(take_if_free(&mut copied, "bound").is_some());
    }
}

/// The copy grants beside its origin only from the first grant on, so one of them must drop its pools.
#[test]
fn worker_ids_of_the_copy_begin_after_the_grants_of_its_origin() {
    let cluster = builder().start_with_extension();
    let mut shop = in_new_database(&cluster, "shop");
    execute(&mut shop, "SELECT worker_pool_define('p', 0, 1, '10 s')");
    const ACQUIRE: &str = "SELECT array[extract(epoch FROM not_before), extract(epoch FROM not_after)]::float8[]
        FROM worker_acquire('p', 'server', '10 s')";
    let granted: Vec<f64> = value(&mut shop, ACQUIRE);
    drop(shop);
    for strategy in STRATEGIES {
        let mut copied = copy(&cluster, strategy);
        execute(&mut copied, "SELECT worker_correct(pool, worker_id, not_after, force => true) FROM idgen.workers");
        let next: Vec<f64> = value(&mut copied, ACQUIRE);
        assert!(next[0] >= granted[1], "{next:?} after {granted:?}");
    }
}
