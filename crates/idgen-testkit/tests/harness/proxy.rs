//! A proxy in front of a server.

use std::thread;

use idgen_testkit::sql::{PATIENCE, backend_pid, execute, value};
use idgen_testkit::{Cluster, Proxy};
use postgres::{Client, NoTls};

use crate::builder;

fn client(proxy: &Proxy) -> Client {
    Client::connect(&proxy.conninfo(), NoTls).unwrap()
}

fn wait_for_state(cluster: &Cluster, direct: &mut Client, pid: i32, state: &str) {
    let sql = format!("SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {pid} AND {state}");
    cluster.wait_for(PATIENCE, state, || value(direct, &sql));
}

/// A proxy that does not forward while this lives: a failed test ends.
struct Stopped<'a>(&'a Proxy);

impl<'a> Stopped<'a> {
    fn new(proxy: &'a Proxy) -> Self {
        proxy.stop_forwarding();
        Self(proxy)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.resume_forwarding();
    }
}

#[test]
fn proxy_forwards_both_ways_and_closes_with_the_connection() {
    let cluster = builder().start();
    for proxy in [Proxy::on_tcp(&cluster), Proxy::on_socket(&cluster)] {
        // More than the sockets buffer, in both directions.
        let long = "x".repeat(10_000_000);
        let (mut one, mut two) = (client(&proxy), client(&proxy));
        assert_eq!(one.query_one("SELECT $1 || 'y'", &[&long]).unwrap().get::<_, String>(0), format!("{long}y"));
        let pid = backend_pid(&mut one);
        drop(one);
        let gone = format!("SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})");
        cluster.wait_for(PATIENCE, "the session to end", || value(&mut two, &gone));
        let mut psql = cluster.program("psql");
        let psql = psql.args(["-XAt", "-c", "SELECT 7", "-d", &proxy.conninfo()]);
        assert_eq!(String::from_utf8(psql.output().unwrap().stdout).unwrap(), "7\n", "the server's user can connect");

        drop(proxy);
        assert!(two.simple_query("SELECT 1").is_err());
    }
}

#[test]
fn stopped_proxy_holds_all_traffic_until_it_resumes() {
    let cluster = builder().start();
    let proxy = Proxy::on_tcp(&cluster);
    let mut direct = cluster.client();
    execute(&mut direct, "CREATE TABLE t (x int); SELECT pg_advisory_lock(1)");
    let (mut asker, mut waiter) = (client(&proxy), client(&proxy));
    let (asking, answered) = (backend_pid(&mut asker), backend_pid(&mut waiter));
    thread::scope(|scope| {
        let waiter = scope.spawn(move || execute(&mut waiter, "SELECT pg_advisory_lock(1)"));
        wait_for_state(&cluster, &mut direct, answered, "wait_event_type = 'Lock'");
        let stopped = Stopped::new(&proxy);
        execute(&mut direct, "SELECT pg_advisory_unlock(1)");
        wait_for_state(&cluster, &mut direct, answered, "state = 'idle'");
        let asker = scope.spawn(move || execute(&mut asker, "INSERT INTO t VALUES (1)"));
        let newcomer = scope.spawn(|| backend_pid(&mut client(&proxy)));
        // Starting a server takes far longer than any of these would without the proxy.
        drop(builder().start());
        assert!(!waiter.is_finished() && !asker.is_finished() && !newcomer.is_finished());
        wait_for_state(&cluster, &mut direct, asking, "state = 'idle'");
        assert_eq!(value::<i64>(&mut direct, "SELECT count(*) FROM t"), 0);
        let sessions = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'";
        assert_eq!(value::<i64>(&mut direct, sessions), 3);

        drop(stopped);
        waiter.join().unwrap();
        asker.join().unwrap();
        newcomer.join().unwrap();
    });
    assert_eq!(value::<i64>(&mut direct, "SELECT count(*) FROM t"), 1);
}
