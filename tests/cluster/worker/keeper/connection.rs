//! The keeper's connection: kept between two attempts while the coordinator has room for it.

use idgen_testkit::{Cluster, Proxy, Stop, pause};

use super::{Worker, coordinator, coordinator_and_server};
use crate::{POOL, builder, pooled};

fn renewals_after(server: &Cluster, before: &Worker, count: i64) -> Worker {
    Worker::wait_until(server, "renewals", |worker| worker.renewals >= before.renewals + count)
}

/// The ttl, so that a probe of the connection may take 750 ms.
const TTL: &str = "9 s";

/// Waits until the connection is for the ttl of the pool: that of the first attempt is not.
fn wait_until_settled(server: &Cluster) -> Worker {
    renewals_after(server, &Worker::wait_for_state(server, "leased"), 1)
}

#[test]
fn keeper_renews_over_one_connection_smoke() {
    let coordinator = coordinator(builder(), 4, TTL);
    let proxy = Proxy::on_socket(&coordinator);
    let server = pooled(&proxy.conninfo()).start_with_extension();
    let begun = wait_until_settled(&server);
    let connections = proxy.accepted();
    let renewed = renewals_after(&server, &begun, 3);
    assert_eq!(proxy.accepted(), connections);
    assert_eq!(renewed.failures, begun.failures);
}

/// Connects for each renewal, three times, with these changes of the coordinator.
fn assert_connects_each_time(coordinator: &Cluster, proxy: &Proxy) {
    let server = pooled(&proxy.conninfo()).start_with_extension();
    let begun = wait_until_settled(&server);
    let connections = proxy.accepted();
    let renewed = renewals_after(&server, &begun, 3);
    assert!(proxy.accepted() >= connections + 3, "{} connections", proxy.accepted() - connections);
    assert_eq!(renewed.failures, begun.failures, "{}", coordinator.data_dir().display());
}

#[test]
fn keeper_leaves_half_of_the_connections_to_others() {
    let coordinator = coordinator(builder().conf("max_connections", "40"), 4, TTL);
    let _others: Vec<_> = (0..20).map(|_| coordinator.client()).collect();
    assert_connects_each_time(&coordinator, &Proxy::on_socket(&coordinator));
}

/// Otherwise a few keepers would keep all that the limit allows.
#[test]
fn keeper_keeps_no_connection_of_a_database_with_a_limit() {
    let coordinator = coordinator(builder(), 4, TTL);
    coordinator.execute("ALTER DATABASE postgres CONNECTION LIMIT 20");
    assert_connects_each_time(&coordinator, &Proxy::on_socket(&coordinator));
}

#[test]
fn restart_of_the_coordinator_between_renewals_is_no_failure() {
    let (coordinator, server) = coordinator_and_server(4, TTL);
    let begun = wait_until_settled(&server);
    let paused = pause(begun.keeper.expect("the server has a keeper"));
    coordinator.restart();
    paused.resume();
    let renewed = renewals_after(&server, &begun, 2);
    assert_eq!((renewed.failures, renewed.changes), (begun.failures, 1));
}

/// A smart stop waits until every client has disconnected. The keeper is one of them, and ends after them.
#[test]
fn server_that_is_its_own_coordinator_can_be_stopped_smartly() {
    let server = coordinator(builder(), 4, TTL);
    server.set_conf("idgen.coordinator", &server.conninfo());
    server.reload_with("idgen.worker_pool", POOL);
    wait_until_settled(&server);
    server.stop(Stop::Smart);
}

/// The silent connection takes half of the time of an attempt, so another address is reached in the same attempt.
#[test]
fn silence_of_the_connection_costs_no_attempt() {
    let coordinator = coordinator(builder(), 4, TTL);
    let proxy = Proxy::on_socket(&coordinator);
    let hosts = format!("host={},{} port={},5432", proxy.host(), coordinator.host(), proxy.port());
    let server = pooled(&format!("{hosts} user=postgres dbname=postgres")).start_with_extension();
    let begun = wait_until_settled(&server);
    proxy.stop_forwarding();
    let renewed = renewals_after(&server, &begun, 2);
    assert_eq!((renewed.failures, renewed.changes), (begun.failures, 1));
}
