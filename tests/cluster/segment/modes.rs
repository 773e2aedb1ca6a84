//! Servers and transactions that are not as others: standbys, old snapshots, read-only ones, a server without the library.

use idgen_testkit::Cluster;
use idgen_testkit::segment::{create, draw, next};
use idgen_testkit::sql::{execute, expect_error, hint, value};

const ALL: [&str; 3] =
    ["SELECT segment_next('t')", "SELECT segment_next_many('t', 3)", "SELECT segment_reserve('t', 3)"];

#[test]
fn a_standby_draws_when_it_is_promoted() {
    let primary = Cluster::builder().start_with_extension();
    let mut client = primary.client();
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
    // The session that was refused before.
    assert_eq!(next(&mut session, "t"), 1001);
}

#[test]
fn a_read_only_transaction_draws() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = cluster.client();
    create(&mut client, "t", ", step => 2, max_step => 2");
    execute(&mut client, "BEGIN READ ONLY");
    (1..=9).for_each(|id| assert_eq!(next(&mut client, "t"), id));
    execute(&mut client, "SAVEPOINT s");
    expect_error(&mut client, "SELECT segment_create('other')", "25006");
    execute(&mut client, "ROLLBACK TO s");
    assert_eq!(next(&mut client, "t"), 10);
    execute(&mut client, "COMMIT");
}

/// Values are everybody's: what tag they are of is what everybody sees, and not what an old snapshot shows.
#[test]
fn an_old_snapshot_does_not_bring_an_old_tag_back() {
    let cluster = Cluster::builder().start_with_extension();
    let (mut client, mut dba) = (cluster.client(), cluster.client());
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        create(&mut dba, "t", ", step => 10");
        create(&mut dba, "fresh", ", step => 10");
        assert_eq!([next(&mut client, "t"), next(&mut dba, "t")], [1, 2]);
        let begin = format!("BEGIN ISOLATION LEVEL {isolation}; SELECT count(*) FROM idgen.segment");
        execute(&mut client, &begin);
        // Changed, with and without a ring that has heard of it; made again; gone; new.
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
fn without_the_library_tags_are_made_and_not_drawn_from() {
    let cluster = Cluster::builder().preload(false).start_with_extension();
    let mut client = cluster.client();
    create(&mut client, "t", "");
    for sql in ALL {
        let error = expect_error(&mut client, sql, "55000");
        assert!(hint(&error).contains("shared_preload_libraries = 'idgen'"), "{error:?}");
    }
    execute(&mut client, "SELECT segment_alter('t', max_id => 10)");
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.stat_segment"), 0);
    cluster.set_conf("shared_preload_libraries", "idgen");
    cluster.restart();
    assert_eq!(next(&mut cluster.client(), "t"), 11);
}
