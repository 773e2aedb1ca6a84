//! A proxy before a server.

use std::thread;

use idgen_testkit::sql::{PATIENCE, backend_pid, execute, value};
use idgen_testkit::{Cluster, Proxy};
use postgres::{Client, NoTls};

use crate::builder;

fn client(proxy: &Proxy) -> Client {
    Client::connect(&proxy.connect_string("postgres", "postgres"), NoTls).unwrap()
}

fn wait_for_state(cluster: &Cluster, pid: i32, state: &str) {
    let mut direct = cluster.client();
    let sql = format!("SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {pid} AND {state}");
    cluster.wait_for(PATIENCE, state, || value(&mut direct, &sql));
}

#[test]
fn what_is_written_passes_both_ways_and_ends_as_a_connection_does() {
    let cluster = builder().start();
    for proxy in [Proxy::on_tcp(&cluster), Proxy::on_socket(&cluster)] {
        // More than sockets keep, in both directions.
        let long = "x".repeat(10_000_000);
        let (mut one, mut two) = (client(&proxy), client(&proxy));
        assert_eq!(one.query_one("SELECT $1 || 'y'", &[&long]).unwrap().get::<_, String>(0), format!("{long}y"));
        let pid = backend_pid(&mut one);
        drop(one);
        let gone = format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})");
        cluster.wait_for(PATIENCE, "the session to end", || value(&mut two, &gone));
        let mut psql = cluster.program("psql");
        let psql = psql.args(["-XAt", "-c", "SELECT 7", "-d", &proxy.connect_string("postgres", "postgres")]);
        assert_eq!(String::from_utf8(psql.output().unwrap().stdout).unwrap(), "7\n", "as the server's user");

        drop(proxy);
        assert!(two.simple_query("SELECT 1").is_err());
    }
}

#[test]
fn nothing_passes_while_it_is_stopped_and_all_of_it_afterwards() {
    let cluster = builder().start();
    let proxy = Proxy::on_tcp(&cluster);
    let mut direct = cluster.client();
    execute(&mut direct, "CREATE TABLE t (x int); SELECT pg_advisory_lock(1)");
    let (mut asks, mut is_answered) = (client(&proxy), client(&proxy));
    let (asking, answered) = (backend_pid(&mut asks), backend_pid(&mut is_answered));
    thread::scope(|scope| {
        let is_answered = scope.spawn(move || execute(&mut is_answered, "SELECT pg_advisory_lock(1)"));
        wait_for_state(&cluster, answered, "wait_event_type = 'Lock'");
        proxy.stop_forwarding();
        execute(&mut direct, "SELECT pg_advisory_unlock(1)");
        wait_for_state(&cluster, answered, "state = 'idle'");
        let asks = scope.spawn(move || execute(&mut asks, "INSERT INTO t VALUES (1)"));
        let comes = scope.spawn(|| backend_pid(&mut client(&proxy)));
        // Without a gate each of them would soon be through: far sooner than a server is started.
        drop(builder().start());
        assert!(!is_answered.is_finished() && !asks.is_finished() && !comes.is_finished());
        wait_for_state(&cluster, asking, "state = 'idle'");
        assert_eq!(value::<i64>(&mut direct, "SELECT count(*) FROM t"), 0);
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";
        assert_eq!(value::<i64>(&mut direct, sessions), 3);

        proxy.go_on();
        is_answered.join().unwrap();
        asks.join().unwrap();
        comes.join().unwrap();
    });
    assert_eq!(value::<i64>(&mut direct, "SELECT count(*) FROM t"), 1);
}
