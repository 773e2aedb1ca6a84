//! Replication and promotion.

use crate::{builder, text};

#[test]
fn standby_replays_and_is_promoted() {
    let primary = builder().start();
    primary.execute("CREATE TABLE t AS SELECT 1 AS x");
    let standby = primary.standby();
    primary.execute("UPDATE t SET x = 2");
    standby.wait_until_replayed(&primary);

    let mut client = standby.client();
    assert_eq!(text(&mut client, "SELECT x::text FROM t"), "2");
    let error = client.simple_query("UPDATE t SET x = 3").unwrap_err();
    assert!(error.as_db_error().unwrap().message().contains("read-only transaction"), "{error:?}");

    primary.kill9_postmaster();
    standby.promote();
    client.simple_query("UPDATE t SET x = 3").unwrap();
    standby.restart();
    assert_eq!(text(&mut standby.client(), "SELECT x::text FROM t"), "3");
}

#[test]
fn synchronous_standby_has_every_commit() {
    let primary = builder().start();
    let standby = primary.standby_builder().synchronous().conf("work_mem", "3MB").start();
    assert_eq!(text(&mut standby.client(), "SHOW work_mem"), "3MB");
    primary.execute("CREATE TABLE t AS SELECT 1 AS x");
    let state = "SELECT sync_state FROM pg_stat_replication";
    assert_eq!(text(&mut primary.client(), state), "sync");

    // No wait for replay here: the commit has waited.
    primary.kill9_postmaster();
    standby.promote();
    assert_eq!(text(&mut standby.client(), "SELECT x::text FROM t"), "1");
    standby.execute("UPDATE t SET x = 2");
}
