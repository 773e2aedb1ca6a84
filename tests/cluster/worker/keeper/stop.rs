//! The worker id when the keeper is terminated.

use std::thread;

use idgen_testkit::sql::{PATIENCE, value};
use idgen_testkit::{Cluster, Proxy, Stop};

use super::faults::end;
use super::{Worker, coordinator, coordinator_and_server};
use crate::{POOL, builder, pooled};

/// The number of worker ids that have not been released.
fn held(coordinator: &Cluster) -> i64 {
    value(&mut coordinator.client(), "SELECT count(*) FROM idgen.worker_id WHERE role IS NOT NULL")
}

#[test]
fn stop_during_a_renewal_releases_the_worker_id_smoke() {
    let coordinator = coordinator(builder(), 4, "3 s");
    let proxy = Proxy::on_socket(&coordinator);
    let server = pooled(&proxy.conninfo()).start_with_extension();
    Worker::wait_for_state(&server, "leased");
    proxy.stop_forwarding();
    let before = proxy.accepted();
    server.wait_for(PATIENCE, "a renewal under way", || proxy.accepted() > before);
    assert_eq!(held(&coordinator), 1);
    thread::scope(|scope| {
        let stopping = scope.spawn(|| server.stop(Stop::Fast));
        server.wait_for(PATIENCE, "the stop", || server.log().contains("received fast shutdown request"));
        proxy.resume_forwarding();
        stopping.join().expect("the server stops");
    });
    assert_eq!(held(&coordinator), 0);
}

#[test]
fn stop_does_not_wait_long_for_a_silent_coordinator() {
    let coordinator = coordinator(builder(), 4, "1 min");
    let proxy = Proxy::on_socket(&coordinator);
    let server = pooled(&proxy.conninfo()).start_with_extension();
    Worker::wait_for_state(&server, "leased");
    proxy.stop_forwarding();
    let began = std::time::Instant::now();
    server.stop(Stop::Fast);
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    assert_eq!(held(&coordinator), 1);
}

/// A server whose pool is removed while its coordinator is silent: its keeper cannot release the worker id.
fn releasing_in_vain(coordinator: &Cluster) -> (Proxy, Cluster) {
    let proxy = Proxy::on_socket(coordinator);
    let server = pooled(&proxy.conninfo()).start_with_extension();
    Worker::wait_for_state(&server, "leased");
    proxy.stop_forwarding();
    let before = proxy.accepted();
    server.reload_with("idgen.worker_pool", "");
    server.wait_for(PATIENCE, "the keeper to connect", || proxy.accepted() > before);
    (proxy, server)
}

/// Regression test: the keeper missed a signal during its wait for an answer, and then slept without a pool.
#[test]
fn server_stops_while_it_releases_the_worker_id_of_a_removed_pool() {
    let coordinator = coordinator(builder(), 4, "1 min");
    let (_proxy, server) = releasing_in_vain(&coordinator);
    let began = std::time::Instant::now();
    server.stop(Stop::Fast);
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

#[test]
fn server_leases_from_a_pool_that_is_set_again_during_the_release() {
    let coordinator = coordinator(builder(), 4, "1 min");
    let (proxy, server) = releasing_in_vain(&coordinator);
    server.reload_with("idgen.worker_pool", POOL);
    proxy.resume_forwarding();
    Worker::wait_for_state(&server, "leased");
}

#[test]
fn reload_during_a_renewal_keeps_the_term() {
    assert_keeps_the_term(|server, _| server.reload());
}

#[test]
fn end_of_the_keeper_during_a_renewal_keeps_the_term() {
    assert_keeps_the_term(|_, keeper| end(keeper));
}

fn assert_keeps_the_term(interrupt: impl FnOnce(&Cluster, i32)) {
    let (coordinator, server) = coordinator_and_server(4, "6 s");
    let before = Worker::wait_for_state(&server, "leased");
    let mut other = coordinator.client();
    let mut blocking = other.transaction().expect("a transaction");
    blocking.execute("LOCK idgen.worker_id IN EXCLUSIVE MODE", &[]).expect("a lock");
    let waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'idgen.worker_id'::regclass)";
    let mut watch = coordinator.client();
    coordinator.wait_for(PATIENCE, "a renewal under way", || value(&mut watch, waiting));
    interrupt(&server, before.keeper.expect("a keeper"));
    blocking.commit().expect("a commit");
    let after = Worker::wait_until(&server, "renewals", |worker| worker.renewals > before.renewals + 1);
    assert_eq!((after.changes, after.from_us), (1, before.from_us));
    assert!(!server.log().contains("is lost"), "{}", server.log());
}

#[test]
fn worker_id_set_by_hand_returns_when_the_pool_is_removed_between_keepers() {
    let coordinator = coordinator(builder(), 4, "1 min");
    let proxy = Proxy::on_socket(&coordinator);
    let conninfo = proxy.conninfo();
    let server = pooled(&conninfo).conf("idgen.worker_id", "3").start_with_extension();
    Worker::wait_for_state(&server, "leased");
    proxy.stop_forwarding();
    server.restart_by(Stop::Immediate);
    let keeper = Worker::wait_until(&server, "a keeper", |worker| worker.keeper.is_some()).keeper;
    end(keeper.expect("waited for"));
    server.reload_with("idgen.worker_pool", "");
    assert_eq!(Worker::wait_for_state(&server, "set").worker_id, Some(3));
}
