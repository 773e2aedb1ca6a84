//! Many tags and many databases share the rings, and dropped ones release theirs.

use idgen_testkit::Cluster;
use idgen_testkit::segment::{create, next};
use idgen_testkit::sql::{execute, ids, in_new_database, value};
use postgres::Client;

use crate::draw_until_refused;
use crate::refill::{wait_for_worker, wait_until_no_worker};

/// DROP DATABASE waits five seconds for other sessions, and the refill worker counts as one.
#[test]
fn database_can_be_dropped_right_after_a_draw() {
    let cluster = Cluster::builder().start_with_extension();
    for round in 0..3 {
        let mut client = in_new_database(&cluster, "shop");
        create(&mut client, "t", ", step => 10");
        (1..=20).for_each(|id| assert_eq!(next(&mut client, "t"), id));
        if round == 2 {
            // In the last round the refill cannot succeed.
            execute(&mut client, "ALTER TABLE idgen.segment ADD CONSTRAINT full_up CHECK (max_id < 0) NOT VALID");
            execute(&mut client, "SET idgen.segment_timeout = '100ms'");
            assert_eq!(draw_until_refused(&mut client, "t").1.code().code(), "55P03");
        }
        wait_for_worker(&cluster, "shop");
        drop(client);
        cluster.execute("DROP DATABASE shop");
    }
}

/// As before a restore, or to end the use of a database by and by.
#[test]
fn sessions_of_a_database_that_accepts_no_more_connections_draw_on() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = in_new_database(&cluster, "shop");
    create(&mut client, "t", ", step => 10, max_step => 10");
    assert_eq!(next(&mut client, "t"), 1);
    wait_until_no_worker(&cluster, "shop");
    cluster.execute("ALTER DATABASE shop ALLOW_CONNECTIONS false");
    (2..=100).for_each(|id| assert_eq!(next(&mut client, "t"), id));
    assert!(!cluster.log().contains("not currently accepting connections"), "{}", cluster.log());
}

const ROUND: &str = "SELECT segment_next('t' || n) FROM generate_series(1, 1100) AS n";

fn make(client: &mut Client, prefix: &str, count: usize) {
    execute(client, &format!("SELECT count(segment_create('{prefix}' || n)) FROM generate_series(1, {count}) AS n"));
}

fn rings(client: &mut Client) -> i64 {
    value(client, "SELECT count(*) FROM idgen.stat_get_segment()")
}

#[test]
fn more_tags_than_rings_can_draw_and_dropped_tags_release_rings() {
    // Without fsync, because there are thousands of refills.
    let cluster = Cluster::builder().conf("fsync", "off").start_with_extension();
    let mut client = cluster.client();
    make(&mut client, "t", 1100);
    assert_eq!(ids(&mut client, ROUND), [1; 1100]);
    assert_eq!(rings(&mut client), 1024);
    // An evicted tag has lost its range, but no value repeats.
    let second = ids(&mut client, ROUND);
    assert!(second.iter().all(|id| [2, 1001].contains(id)), "{second:?}");
    assert!(second.iter().filter(|id| **id == 1001).count() >= 76);
    assert_eq!(rings(&mut client), 1024);

    // The 24 tags refilled longest ago stay. The others are dropped, and 1,000 new tags take only the rings of dropped ones.
    let living = "SELECT segment_next('t' || n) FROM generate_series(77, 100) AS n";
    execute(&mut client, "DELETE FROM idgen.segment WHERE substr(tag, 2)::int NOT BETWEEN 77 AND 100");
    let before = ids(&mut client, living);
    make(&mut client, "new", 1000);
    let new = "SELECT segment_next('new' || n) FROM generate_series(1, 1000) AS n";
    assert_eq!(ids(&mut client, new), [1; 1000]);
    assert_eq!(ids(&mut client, living), before.iter().map(|id| id + 1).collect::<Vec<_>>());

    // The same with a dropped database. Eviction takes the rings refilled longest ago, which are not those 24 any more.
    let refill =
        "SELECT max(id) FROM generate_series(77, 100) AS n, segment_next_many('t' || n, 1500) AS id GROUP BY n";
    assert_eq!(ids(&mut client, refill).len(), 24);
    execute(&mut client, "DELETE FROM idgen.segment WHERE tag LIKE 'new%'");
    let mut shop = in_new_database(&cluster, "shop");
    make(&mut shop, "new", 1000);
    assert_eq!(ids(&mut shop, new), [1; 1000]);
    drop(shop);
    let before = ids(&mut client, living);
    cluster.execute("DROP DATABASE shop");
    make(&mut client, "new", 1000);
    assert_eq!(ids(&mut client, new), [1; 1000]);
    assert_eq!(ids(&mut client, living), before.iter().map(|id| id + 1).collect::<Vec<_>>());
    assert_eq!(rings(&mut client), 1024);
}
