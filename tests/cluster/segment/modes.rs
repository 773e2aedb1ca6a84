//! Draws on standbys, under old snapshots, in read-only transactions, and without preload.

use idgen_testkit::Cluster;
use idgen_testkit::segment::{create, draw, next};
use idgen_testkit::sql::{execute, expect_error, hint, value};

const ALL: [&str; 3] =
    ["SELECT segment_next('t')", "SELECT segment_next_many('t', 3)", "SELECT segment_reserve('t', 3)"];

#[test]
fn standby_draws_once_it_is_promoted() {
    let (primary, [mut client]) = Cluster::builder().start_with_clients();
    create(&mut client, "t", "");
    assert_eq!(next(&mut client, "t"), 1);
    let standby = primary.standby();
    standby.wait_until_replayed(&primary);
    let mut session = standby.client();
    for sql in ALL {
        expect_error(&mut session, sql, "25006");
    }
    expect_error(&mut session, "SELECT segment_create('other')", "25006");
    assert_eq!(value::<i64>(&mut session, "SELECT count(*) FROM idgen.stat_segment"), 0);
    primary.kill9_postmaster();
    standby.promote();
    // A session from before the promotion.
    assert_eq!(next(&mut session, "t"), 1001);
}

#[test]
fn read_only_transaction_draws() {
    let (_cluster, [mut client]) = Cluster::builder().start_with_clients();
    create(&mut client, "t", ", step => 2, max_step => 2");
    execute(&mut client, "BEGIN READ ONLY");
    (1..=9).for_each(|id| assert_eq!(next(&mut client, "t"), id));
    execute(&mut client, "SAVEPOINT s");
    expect_error(&mut client, "SELECT segment_create('other')", "25006");
    execute(&mut client, "ROLLBACK TO s");
    assert_eq!(next(&mut client, "t"), 10);
    execute(&mut client, "COMMIT");
}

/// A draw uses the latest row of a tag, not the row in an old snapshot.
#[test]
fn draw_under_an_old_snapshot_uses_the_latest_row() {
    let (_cluster, [mut client, mut dba]) = Cluster::builder().start_with_clients();
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        create(&mut dba, "t", ", step => 10");
        create(&mut dba, "fresh", ", step => 10");
        assert_eq!([next(&mut client, "t"), next(&mut dba, "t")], [1, 2]);
        let begin = format!("BEGIN ISOLATION LEVEL {isolation}; SELECT count(*) FROM idgen.segment");
        execute(&mut client, &begin);
        // Changed rows with and without a ring, then a recreated, a new and a dropped tag.
        execute(&mut dba, "SELECT segment_alter('t', max_id => 100), segment_alter('fresh', max_id => 100)");
        assert_eq!(next(&mut dba, "t"), 101);
        assert_eq!([next(&mut client, "t"), next(&mut client, "fresh")], [102, 101]);
        execute(&mut dba, "SELECT segment_drop('t'); SELECT segment_create('t', 700); SELECT segment_create('new')");
        assert_eq!([next(&mut client, "t"), next(&mut dba, "t"), next(&mut client, "new")], [700, 701, 1]);
        execute(&mut dba, "SELECT segment_drop('t')");
        expect_error(&mut client, &draw("t"), "42704");
        execute(&mut client, "ROLLBACK");
        execute(&mut dba, "DELETE FROM idgen.segment");
    }
}

#[test]
fn tags_can_be_created_but_not_drawn_from_without_preload() {
    let (cluster, [mut client]) = Cluster::builder().preload(false).start_with_clients();
    create(&mut client, "t", "");
    for sql in ALL {
        let error = expect_error(&mut client, sql, "55000");
        assert!(hint(&error).contains("shared_preload_libraries = 'idgen'"), "{error:?}");
    }
    execute(&mut client, "SELECT segment_alter('t', max_id => 10)");
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.stat_segment"), 0);
    cluster.restart_with("shared_preload_libraries", "idgen");
    assert_eq!(next(&mut cluster.client(), "t"), 11);
}
