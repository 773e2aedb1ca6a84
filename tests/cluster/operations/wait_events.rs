//! `pg_stat_activity` names what a process of idgen waits for, on servers that know names of extensions.

use std::thread;

use idgen_testkit::Cluster;
use idgen_testkit::sql::{PATIENCE, backend_pid, value};

#[test]
fn a_wait_for_the_clock_has_a_name_smoke() {
    let cluster = Cluster::builder().start_with_extension();
    let (mut drawing, mut client) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut drawing);
    let session = thread::spawn(move || {
        // Two ids a second.
        let many = "SELECT count(*) FROM snowflake_next_many(1000, 'time:40 sequence:1 unit:1s epoch:2020-01-01')";
        drawing.batch_execute(many).expect_err("the session is ended")
    });
    let version: i32 = value(&mut client, "SELECT current_setting('server_version_num')::int");
    let event = if version >= 170_000 { "IdgenClock" } else { "Extension" };
    let sql = format!(
        "SELECT coalesce(wait_event_type || ' ' || wait_event = 'Extension {event}', false)
         FROM pg_stat_activity WHERE pid = {pid}"
    );
    cluster.wait_for(PATIENCE, event, || value::<bool>(&mut client, &sql));
    cluster.execute(&format!("SELECT pg_terminate_backend({pid})"));
    session.join().expect("the session ended with an error");
}
