//! Start, stop, settings and connections.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use idgen_testkit::Stop;
use idgen_testkit::sql::{execute, while_waiting};
use postgres::Client;

use crate::{builder, is_process, number, recoveries, text};

#[test]
fn cluster_starts_with_its_settings_and_leaves_nothing_behind() {
    let cluster = builder().conf("work_mem", "1MB").conf("work_mem", "2MB").start();
    let mut client = cluster.client();
    assert_eq!(text(&mut client, "SHOW work_mem"), "2MB", "the later setting wins");
    assert_eq!(text(&mut client, "SHOW fsync"), "on");
    assert_eq!(text(&mut client, "SHOW server_encoding"), "UTF8");
    assert_eq!(text(&mut client, "SHOW shared_preload_libraries"), "");
    let dir = text(&mut client, "SHOW unix_socket_directories");
    let postmaster = cluster.pid_of_postmaster();
    assert!(Path::new(&dir).join("data/PG_VERSION").exists());

    drop(cluster);
    assert!(!Path::new(&dir).exists(), "{dir} is left");
    assert!(!Path::new(&format!("/proc/{postmaster}")).exists(), "the postmaster is left");
    assert!(client.simple_query("SELECT 1").is_err());
}

#[test]
fn failed_test_keeps_its_directory_and_stops_its_server() {
    let mut left = None;
    let failure = catch_unwind(AssertUnwindSafe(|| {
        let cluster = builder().start();
        left = Some((cluster.data_dir(), cluster.pid_of_postmaster()));
        cluster.wait_for(Duration::ZERO, "the impossible", || false);
    }));
    let failure = failure.expect_err("the impossible does not happen");
    let message = failure.downcast_ref::<String>().unwrap();
    assert!(message.contains("waited 0ns for the impossible"), "{message}");
    assert!(message.contains("database system is ready to accept connections"), "{message}");

    let (data, postmaster) = left.unwrap();
    assert!(data.join("PG_VERSION").exists(), "{} is gone", data.display());
    assert!(!is_process(postmaster));
    std::fs::remove_dir_all(data.parent().unwrap()).unwrap();
}

#[test]
fn client_connects_to_any_database_as_any_user() {
    let cluster = builder().start();
    cluster.execute("CREATE ROLE \"o'brien\" LOGIN");
    cluster.execute("CREATE DATABASE other");
    let mut client = cluster.client_as("other", "o'brien");
    assert_eq!(text(&mut client, "SELECT current_user || '@' || current_database()"), "o'brien@other");
    assert_eq!(text(&mut cluster.client_in("other"), "SELECT current_database()::text"), "other");

    let psql = cluster.program("psql").args(["-XAt", "-c", "SELECT current_user"]).output().unwrap();
    assert_eq!(String::from_utf8(psql.stdout).unwrap(), "postgres\n");
    let string = cluster.connect_string("other", "o'brien");
    let psql = cluster.program("psql").args(["-XAt", "-d", &string, "-c", "SELECT current_user"]).output().unwrap();
    assert_eq!(String::from_utf8(psql.stdout).unwrap(), "o'brien\n");
}

#[test]
fn cluster_stops_and_starts_in_every_way() {
    let cluster = builder().start();
    cluster.execute("CREATE TABLE t AS SELECT 7 AS x");

    cluster.stop(Stop::Fast);
    assert!(cluster.try_client().is_err(), "the server is stopped");
    cluster.start_again();
    cluster.stop(Stop::Smart);
    cluster.start_again();
    let first = cluster.pid_of_postmaster();
    cluster.restart();
    assert_ne!(cluster.pid_of_postmaster(), first);
    assert!(!cluster.log().contains("not properly shut down"), "{}", cluster.log());

    cluster.execute("UPDATE t SET x = 8");
    cluster.stop(Stop::Immediate);
    cluster.start_again();
    assert_eq!(recoveries(&cluster), 1, "recovery follows an immediate stop");
    assert_eq!(text(&mut cluster.client(), "SELECT x::text FROM t"), "8", "recovery keeps committed data");
}

#[test]
fn failed_start_reports_the_log_of_the_server() {
    let cluster = builder().start();
    cluster.stop(Stop::Fast);
    cluster.set_conf("shared_buffers", "1 banana");
    let report = cluster.try_start().expect_err("banana is not a unit");
    assert!(report.contains("invalid value for parameter \"shared_buffers\": \"1 banana\""), "{report}");
    assert!(!report.contains("database system is ready"), "the report has earlier lines: {report}");

    cluster.set_conf("shared_buffers", "16MB");
    cluster.start_again();
    assert_eq!(text(&mut cluster.client(), "SHOW shared_buffers"), "16MB");
}

#[test]
fn changed_setting_is_in_effect_after_reload() {
    let cluster = builder().start();
    cluster.set_conf("idgen.test", r"it's a \ 'value'");
    assert!(cluster.client().simple_query("SHOW idgen.test").is_err(), "not loaded yet");
    cluster.reload();
    assert_eq!(text(&mut cluster.client(), "SHOW idgen.test"), r"it's a \ 'value'");

    let mut session = cluster.client();
    cluster.set_conf("idgen.test", "other");
    cluster.reload();
    assert_eq!(text(&mut session, "SHOW idgen.test"), "other", "an existing session has the new value");
}

#[test]
fn concurrent_clusters_do_not_affect_each_other() {
    let (one, two) = (builder().start(), builder().new_system_identifier().start());
    one.execute("CREATE TABLE t AS SELECT 1 AS x");
    two.execute("CREATE TABLE t AS SELECT 2 AS x");
    two.kill9_postmaster();
    assert_eq!(text(&mut one.client(), "SELECT x::text FROM t"), "1");
    two.start_again();
    assert_eq!(text(&mut two.client(), "SELECT x::text FROM t"), "2");
    assert_eq!(recoveries(&one), 0);

    let identifier = "SELECT system_identifier FROM pg_control_system()";
    let three = builder().start();
    assert_eq!(number(&mut one.client(), identifier), number(&mut three.client(), identifier));
    assert_ne!(number(&mut one.client(), identifier), number(&mut two.client(), identifier));
    assert_ne!(one.data_dir(), three.data_dir());
}

#[test]
fn session_acts_while_another_one_waits_and_a_session_that_does_not_wait_is_found() {
    let cluster = builder().start();
    let [mut holder, mut client] = [cluster.client(), cluster.client()];
    execute(&mut holder, "SELECT pg_advisory_lock(1)");
    let lock = |client: &mut Client| number(client, "SELECT 7::bigint FROM pg_advisory_lock(1)");
    let release = |_| execute(&mut holder, "SELECT pg_advisory_unlock(1)");
    assert_eq!(while_waiting(&cluster, &mut client, lock, release), 7);
    let act = |_| panic!("nothing waits");
    let failure = catch_unwind(AssertUnwindSafe(|| while_waiting(&cluster, &mut client, lock, act)));
    let failure = failure.expect_err("the session has the lock");
    assert_eq!(failure.downcast_ref::<&str>(), Some(&"the session has not waited"));
}
