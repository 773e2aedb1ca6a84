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
fn more_tags_than_rings_draw_without_gaps_and_dropped_tags_release_rings() {
    // Without fsync, because there are thousands of refills.
    let cluster = Cluster::builder().conf("fsync", "off").start_with_extension();
    let mut client = cluster.client();
    make(&mut client, "t", 1100);
    // Of two sessions, so that each finds rings that the other one has given to other tags.
    for n in 1..=4 {
        let session = if n == 3 { &mut cluster.client() } else { &mut client };
        assert_eq!(ids(session, ROUND), [n; 1100]);
        assert_eq!(rings(session), 1024);
    }
    assert_eq!(value::<i64>(&mut client, "SELECT max(max_id) FROM idgen.segment"), 1000, "no range was lost");

    let living = "SELECT segment_next('t' || n) FROM generate_series(77, 100) AS n";
    execute(&mut client, "DELETE FROM idgen.segment WHERE substr(tag, 2)::int NOT BETWEEN 77 AND 100");
    assert_eq!(ids(&mut client, living), [5; 24]);
    make(&mut client, "new", 1000);
    let new = "SELECT segment_next('new' || n) FROM generate_series(1, 1000) AS n";
    assert_eq!(ids(&mut client, new), [1; 1000]);
    assert_eq!(ids(&mut client, living), [6; 24]);

    // The same with a dropped database.
    execute(&mut client, "DELETE FROM idgen.segment WHERE tag LIKE 'new%'");
    let mut shop = in_new_database(&cluster, "shop");
    make(&mut shop, "new", 1000);
    assert_eq!(ids(&mut shop, new), [1; 1000]);
    drop(shop);
    assert_eq!(ids(&mut client, living), [7; 24]);
    cluster.execute("DROP DATABASE shop");
    make(&mut client, "new", 1000);
    assert_eq!(ids(&mut client, new), [1; 1000]);
    assert_eq!(ids(&mut client, living), [8; 24]);
}
