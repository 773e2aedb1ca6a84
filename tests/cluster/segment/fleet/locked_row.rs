//! A row of the coordinator that another transaction has locked.

use idgen_testkit::Cluster;
use idgen_testkit::ids::assert_increasing;
use idgen_testkit::sql::{PATIENCE, execute, ids, row};

use super::{attach, attached, coordinator, draw, draw_dry, wait_for_error};
use crate::locked_row::assert_deadlock_is_detected;

#[test]
fn lock_of_one_tag_at_the_coordinator_delays_no_other() {
    let coordinator = coordinator(Cluster::builder());
    coordinator.execute("SELECT segment_create('u', start => 1, step => 10)");
    let server = attached(&coordinator.conninfo(), "2 seconds");
    server.execute("SELECT segment_attach('u', '2 seconds')");
    // Requests so many that the stock of u never lasts.
    server.execute("SELECT segment_alter('u', step => 10, max_step => 10)");
    let [mut holder, mut waiter, mut client] = [coordinator.client(), server.client(), server.client()];
    execute(&mut holder, "BEGIN; SELECT segment_alter('t', step => 20)");
    execute(&mut waiter, "SET idgen.segment_timeout = '50s'");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| ids(&mut waiter, "SELECT segment_next('t')"));
        wait_for_error(&server, "lock timeout");
        let drawn = ids(&mut client, "SELECT segment_next('u') FROM generate_series(1, 300)");
        assert_increasing(&drawn);
        let sql = "SELECT coordinator, last_error FROM idgen.stat_segment WHERE tag = 'u'";
        let supply = row(&mut client, sql);
        assert_eq!(supply.get::<_, String>(0), "answering");
        assert_eq!(supply.get::<_, Option<String>>(1), None);
        execute(&mut holder, "COMMIT");
        assert_eq!(waiter.join().expect("it draws").len(), 1);
    });
    let log = server.log();
    assert!(!log.contains("could not fetch values of attached segments"), "the coordinator answers:\n{log}");
}

/// An error that ends the connection does not concern the tag.
#[test]
fn request_whose_session_is_ended_is_a_failure_of_the_coordinator() {
    let coordinator = coordinator(Cluster::builder());
    let server = attached(&coordinator.conninfo(), "2 seconds");
    draw(&server, 1);
    let [mut holder, mut client] = [coordinator.client(), coordinator.client()];
    execute(&mut holder, "BEGIN; SELECT segment_alter('t', step => 20)");
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE application_name = 'idgen supply' AND wait_event_type = 'Lock'";
    server.wait_for(PATIENCE, "a failure of the coordinator", || {
        // Makes a request, which outlasts this.
        draw_dry(&server);
        execute(&mut client, end);
        server.log().contains("could not fetch values of attached segments")
    });
    let log = server.log();
    let is_of_the_tag = |line: &str| line.contains("could not fetch values of segment") && line.contains("terminating");
    assert!(!log.lines().any(is_of_the_tag), "{log}");
}

#[test]
fn deadlock_of_a_draw_with_a_transaction_that_locks_the_attached_segment_is_detected() {
    let coordinator = coordinator(Cluster::builder());
    let server = attach(Cluster::builder().conf("deadlock_timeout", "100ms"), &coordinator.conninfo(), "2 seconds");
    let block = "SELECT FROM idgen.segment WHERE tag = 't' FOR UPDATE";
    assert_deadlock_is_detected(&server, block, || drop(draw_dry(&server)));
}
