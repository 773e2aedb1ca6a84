//! What monitoring reads: since when counters count, and the names of waits on servers that know those of extensions.

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

#[test]
fn counters_and_the_time_of_their_reset_begin_again_after_a_crash() {
    let cluster = Cluster::builder().start_with_extension();
    let mut client = cluster.client();
    cluster.execute("SELECT count(snowflake_next()) FROM generate_series(1, 100)");
    let crashed: String = value(&mut client, "SELECT clock_timestamp()::text");
    assert_eq!(value::<i64>(&mut client, "SELECT sum(issued)::bigint FROM idgen.stat_snowflake"), 100);
    cluster.kill9(backend_pid(&mut client));
    cluster.wait_until_ready();
    let mut client = cluster.client();
    assert_eq!(value::<i64>(&mut client, "SELECT count(*) FROM idgen.stat_snowflake"), 0);
    let reset = format!("SELECT stats_reset > '{crashed}' FROM idgen.stat_clock");
    assert!(value::<bool>(&mut client, &reset));
}
