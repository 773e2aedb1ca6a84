//! `pg_stat_activity` names what a process of idgen waits for, on servers that know names of extensions.

use std::thread;

use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, backend_pid, value};
use postgres::Client;

/// Waits until the process that `which` selects shows this wait event.
fn wait_for_event(cluster: &Cluster, which: &str, event: &str) {
    let mut client = cluster.client();
    let version: i32 = value(&mut client, "SELECT current_setting('server_version_num')::int");
    let event = if version >= 170_000 { event } else { "Extension" };
    let shown = |client: &mut Client| -> bool {
        let of_process = format!("FROM pg_stat_activity WHERE {which} AND wait_event_type = 'Extension'");
        value(client, &format!("SELECT EXISTS (SELECT {of_process} AND wait_event = '{event}')"))
    };
    cluster.wait_for(PATIENCE, &format!("the wait event {event}"), || shown(&mut client));
}

#[test]
fn a_wait_for_the_clock_has_a_name_smoke() {
    let cluster = Cluster::builder().start_with_extension();
    let mut drawing = cluster.client();
    let pid = backend_pid(&mut drawing);
    let session = thread::spawn(move || {
        // Two ids a second.
        let many = "SELECT count(*) FROM snowflake_next_many(1000, 'time:40 sequence:1 unit:1s epoch:2020-01-01')";
        drawing.batch_execute(many).expect_err("the session is ended")
    });
    wait_for_event(&cluster, &format!("pid = {pid}"), "IdgenClock");
    cluster.execute(&format!("SELECT pg_terminate_backend({pid})"));
    session.join().expect("the session ended with an error");
}

#[test]
fn an_idle_keeper_shows_its_main_loop_smoke() {
    let cluster = Cluster::start();
    wait_for_event(&cluster, "backend_type = 'idgen keeper'", "IdgenKeeperMain");
}
