//! More tags than rings: a tag loses its ring to another one. Many databases share the rings, and dropped ones release
//! theirs.

use idgen_testkit::Cluster;
use idgen_testkit::segment::{create, next};
use idgen_testkit::sql::{PATIENCE, column, execute, ids, in_new_database, value, while_waiting};
use postgres::Client;

use crate::draw_until_refused;
use crate::refill::{wait_for_worker, wait_until_no_worker, wait_until_worker_waits};

/// Makes the commits of refills wait for an advisory lock of their tag.
const COMMITS_WAIT_FOR_LOCK_OF_TAG: &str = "
    CREATE FUNCTION await_permission() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0
        AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(ascii(NEW.tag)); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER before_commit AFTER UPDATE ON idgen.segment DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION await_permission();";

/// While the worker serves p, it is to serve a next. Then b takes the ring of a, and waits for a value.
#[test]
fn demand_of_a_tag_that_takes_a_ring_is_served() {
    let builder = Cluster::builder().conf("idgen.max_segments", "3").conf("idgen.segment_low_water", "0");
    let (cluster, [mut client, mut observer, mut holder]) = builder.start_with_clients();
    for tag in ["x", "a", "c", "p", "b"] {
        create(&mut client, tag, ", step => 1, max_step => 1");
    }
    // p takes the ring of x, which comes before that of a, and a is the first to be asked for room. Each has one value.
    for tag in ["x", "a", "c", "p"] {
        next(&mut client, tag);
        let has_value = format!("SELECT remaining = 1 FROM idgen.stat_segment WHERE tag = '{tag}'");
        cluster.wait_for(PATIENCE, "the next refill", || value(&mut observer, &has_value));
    }
    execute(&mut client, COMMITS_WAIT_FOR_LOCK_OF_TAG);
    execute(&mut holder, "SELECT pg_advisory_lock(ascii('c')), pg_advisory_lock(ascii('p'))");
    next(&mut client, "c");
    let worker = wait_until_worker_waits(&cluster, "advisory");
    assert_eq!(["p", "a"].map(|tag| next(&mut client, tag)), [2, 2]);
    execute(&mut holder, "SELECT pg_advisory_unlock(ascii('c'))");
    let awaits_p =
        format!("SELECT count(*) = 1 FROM pg_locks WHERE pid = {worker} AND NOT granted AND objid::int = ascii('p')");
    cluster.wait_for(PATIENCE, "the refill of p", || value(&mut observer, &awaits_p));
    let drawn = while_waiting(
        &cluster,
        &mut client,
        |client| next(client, "b"),
        |_| {
            let with_rings: Vec<String> = column(&mut observer, "SELECT tag FROM idgen.stat_segment ORDER BY tag");
            assert_eq!(with_rings, ["b", "c", "p"]);
            execute(&mut holder, "SELECT pg_advisory_unlock(ascii('p'))");
        },
    );
    assert_eq!(drawn, 1);
}

/// What the tag had left when it lost its ring belongs to its old row.
#[test]
fn changed_tag_without_a_ring_draws_by_its_new_row() {
    let builder = Cluster::builder().conf("idgen.max_segments", "1").conf("max_prepared_transactions", "1");
    let (_cluster, [mut client, mut changer]) = builder.start_with_clients();
    ["t", "other"].iter().for_each(|tag| create(&mut client, tag, ""));
    for (change, first) in [
        ("SELECT segment_alter('t', max_id => 5000)", 5001),
        ("BEGIN; SELECT segment_alter('t', max_id => 10000); PREPARE TRANSACTION 'x'; COMMIT PREPARED 'x'", 10_001),
        ("SELECT segment_drop('t'), segment_create('t', start => 20)", 20),
    ] {
        next(&mut client, "t");
        let before = next(&mut client, "t");
        next(&mut client, "other");
        assert_eq!(next(&mut client, "t"), before + 1, "kept");
        next(&mut client, "other");
        for statement in change.split("; ") {
            execute(&mut changer, statement);
        }
        assert_eq!(next(&mut client, "t"), first, "{change}");
    }
}

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
    let (cluster, [mut client]) = Cluster::builder().conf("fsync", "off").start_with_clients();
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
