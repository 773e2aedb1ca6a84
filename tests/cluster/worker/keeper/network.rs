//! Connecting to the coordinator: names that do not resolve, silent addresses, and the pauses between attempts.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use idgen_testkit::sql::{PATIENCE, value};
use idgen_testkit::{Builder, Cluster, Proxy, Stop, compile_shim};

use super::{Worker, coordinator};
use crate::{builder, pooled};

/// A server that resolves names through `resolver.c`.
fn resolving(builder: Builder) -> Cluster {
    let server = builder.start_with_extension();
    let library = server.data_dir().with_file_name("resolver.so");
    compile_shim("worker/keeper/resolver.c", &library);
    server.stop(Stop::Fast);
    server.set_env("LD_PRELOAD", library);
    server.start_again();
    server
}

fn tcp(hosts: &str, ports: &str) -> String {
    format!("host={hosts} port={ports} user=postgres dbname=postgres")
}

/// Waits until the last error of the server's keeper contains this text.
fn wait_for_error(server: &Cluster, text: &str) {
    let sql = format!("SELECT coalesce(strpos(last_error, '{text}') > 0, false) FROM idgen.stat_worker");
    let mut client = server.client();
    server.wait_for(PATIENCE, &format!("the error \"{text}\""), || value(&mut client, &sql));
}

/// A proxy, and a listener on the same port of 127.0.0.2 that accepts connections and stays silent.
fn proxy_and_silent_listener(coordinator: &Cluster) -> (Proxy, TcpListener) {
    let proxy = Proxy::on_tcp(coordinator);
    let port = proxy.port().parse().expect("a port");
    let silence = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), port)).expect("all of 127/8 is local");
    (proxy, silence)
}

/// In half a second it tries three addresses, and the fifth one answers: each try begins at another one.
#[test]
fn keeper_tries_every_address_of_a_host_name() {
    let coordinator = coordinator(builder(), 4, "3 s");
    let (proxy, silence) = proxy_and_silent_listener(&coordinator);
    let server = resolving(pooled(&tcp("five.test", proxy.port())));
    let leased = Worker::wait_for_state(&server, "leased");
    drop(silence);
    // Now the other addresses refuse connections.
    let renewed = Worker::wait_until(&server, "renewals", |worker| worker.renewals > leased.renewals + 2);
    assert_eq!(renewed.changes, 1, "the lease never ended");
    let named = format!("five.test:{}", proxy.port());
    assert_eq!(value::<String>(&mut server.client(), "SELECT coordinator FROM idgen.stat_worker"), named);
}

#[test]
fn unknown_host_name_is_reported() {
    let server = pooled(&tcp("nowhere.invalid", "5432")).start_with_extension();
    wait_for_error(&server, "could not translate host name \"nowhere.invalid\" to address: ");
}

#[test]
fn connect_timeout_limits_each_attempt() {
    let silence = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = silence.local_addr().expect("the listener is bound").port().to_string();
    let conninfo = tcp("127.0.0.1", &port);
    // libpq raises one second to two.
    for (connect_timeout, ms) in [("1", 2000), ("3", 3000)] {
        let server = pooled(&format!("{conninfo} connect_timeout={connect_timeout}")).start_with_extension();
        wait_for_error(&server, &format!("127.0.0.1:{port} has not answered within {ms} ms"));
    }
    let server = pooled(&conninfo).start_with_extension();
    server.stop(Stop::Fast);
    server.set_env("PGCONNECT_TIMEOUT", "2");
    server.start_again();
    wait_for_error(&server, &format!("127.0.0.1:{port} has not answered within 2000 ms"));
}

#[test]
fn attempts_at_a_silent_coordinator_slow_down() {
    let coordinator = coordinator(builder(), 4, "3 s");
    let proxy = Proxy::on_tcp(&coordinator);
    let server = pooled(&proxy.conninfo()).start_with_extension();
    Worker::wait_for_state(&server, "leased");
    proxy.stop_forwarding();
    let first = proxy.accepted();
    server.wait_for(PATIENCE, "an attempt", || proxy.accepted() > first);
    let (first, begun) = (proxy.accepted(), Instant::now());
    server.wait_for(PATIENCE, "ten attempts", || proxy.accepted() >= first + 10);
    // Half a second each, and at least half of each pause: 50, 100, 200, 400, twice 500, four times 3000 ms.
    let least = Duration::from_millis(10 * 500 + (50 + 100 + 200 + 400 + 2 * 500 + 4 * 3000) / 2);
    assert!(begun.elapsed() >= least, "{:?} for ten attempts, expected at least {least:?}", begun.elapsed());
}

/// An empty host means libpq's default socket, on which no server listens.
#[test]
fn keeper_tries_the_hosts_of_a_service_file_in_turn() {
    let coordinator = coordinator(builder(), 4, "3 s");
    let (proxy, _silence) = proxy_and_silent_listener(&coordinator);
    let server = pooled("service=ids").start_with_extension();
    server.stop(Stop::Fast);
    let services = server.data_dir().with_file_name("services");
    let port = proxy.port();
    let ids = format!("[ids]\nhost=,127.0.0.2,127.0.0.1\nport={port}\nuser=postgres\ndbname=postgres\n");
    std::fs::write(&services, ids).expect("the cluster's directory is writable");
    server.set_env("PGSERVICEFILE", services);
    server.start_again();
    let leased = Worker::wait_for_state(&server, "leased");
    let renewed = Worker::wait_until(&server, "renewals", |worker| worker.renewals > leased.renewals + 2);
    assert_eq!((renewed.changes, renewed.failures), (1, 0));
}

#[test]
fn target_session_attrs_of_the_connection_string_applies() {
    let coordinator = coordinator(builder(), 4, "30 s");
    let standby = coordinator.standby();
    let conninfo = standby.conninfo();
    for (attributes, error) in [("", "session is read-only"), ("target_session_attrs=any", "during recovery")] {
        let server = pooled(&format!("{conninfo} {attributes}")).start_with_extension();
        wait_for_error(&server, error);
    }
}

/// Connecting takes two answers, and a renewal three. Each is slower than the server waits by default with this ttl.
#[test]
fn server_leases_and_renews_over_a_link_that_is_slower_than_its_patience() {
    let coordinator = coordinator(builder(), 1, "6 s");
    let proxy = Proxy::on_socket(&coordinator);
    proxy.delay(Duration::from_millis(600));
    let (server, [mut client]) = pooled(&proxy.conninfo()).start_with_clients();
    server.wait_for(PATIENCE, "renewals", || Worker::of(&mut client).renewals >= 2);
}
