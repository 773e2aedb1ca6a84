//! What becomes of the worker id when the keeper is told to end.

use std::thread;

use idgen_testkit::sql::{PATIENCE, value};
use idgen_testkit::{Cluster, Proxy, Stop};

use super::faults::end;
use super::{Worker, coordinator};
use crate::{POOL, builder, pooled};

/// How many terms have not been given back.
fn held(coordinator: &Cluster) -> i64 {
    value(&mut coordinator.client(), "SELECT sum(depth) FROM idgen.lease")
}

#[test]
fn a_server_that_is_stopped_in_the_middle_of_a_renewal_gives_its_worker_id_back_smoke() {
    let coordinator = coordinator(builder(), 4, "3 s");
    let proxy = Proxy::on_socket(&coordinator);
    let server = pooled(&proxy.connect_string("postgres", "postgres")).start_with_extension();
    Worker::wait_for_state(&server, "leased");
    proxy.stop_forwarding();
    let before = proxy.accepted();
    server.wait_for(PATIENCE, "a renewal under way", || proxy.accepted() > before);
    assert_eq!(held(&coordinator), 1);
    thread::scope(|scope| {
        let stopping = scope.spawn(|| server.stop(Stop::Fast));
        server.wait_for(PATIENCE, "the stop", || server.log().contains("received fast shutdown request"));
        proxy.go_on();
        stopping.join().expect("it stops");
    });
    assert_eq!(held(&coordinator), 0);
}

#[test]
fn a_server_that_is_stopped_does_not_wait_long_for_a_silent_coordinator() {
    let coordinator = coordinator(builder(), 4, "1 min");
    let proxy = Proxy::on_socket(&coordinator);
    let server = pooled(&proxy.connect_string("postgres", "postgres")).start_with_extension();
    Worker::wait_for_state(&server, "leased");
    proxy.stop_forwarding();
    let began = std::time::Instant::now();
    server.stop(Stop::Fast);
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    assert_eq!(held(&coordinator), 1);
}

#[test]
fn a_keeper_that_is_terminated_alone_keeps_the_term() {
    let coordinator = coordinator(builder(), 4, "1 min");
    let server = pooled(&coordinator.connect_string("postgres", "postgres")).start_with_extension();
    let keeper = Worker::wait_for_state(&server, "leased").keeper.expect("it has leased");
    end(keeper);
    Worker::wait_until(&server, "another keeper", |worker| worker.keeper.is_some_and(|pid| pid != keeper));
    assert_eq!(held(&coordinator), 1);
    assert_eq!(Worker::of(&mut server.client()).changes, 1);
}

/// A server with a lease, a proxy over which its coordinator is silent now, and no pool any more: its keeper gives the worker id
/// back, in vain.
fn giving_back_in_vain(coordinator: &Cluster) -> (Proxy, Cluster) {
    let proxy = Proxy::on_socket(coordinator);
    let server = pooled(&proxy.connect_string("postgres", "postgres")).start_with_extension();
    Worker::wait_for_state(&server, "leased");
    proxy.stop_forwarding();
    let before = proxy.accepted();
    server.set_conf("idgen.worker_pool", "");
    server.reload();
    server.wait_for(PATIENCE, "the keeper to connect", || proxy.accepted() > before);
    (proxy, server)
}

/// The signal came while the keeper waited for an answer, and then it slept with no pool: the stop never ended.
#[test]
fn a_server_whose_pool_was_removed_stops_while_its_worker_id_is_given_back() {
    let coordinator = coordinator(builder(), 4, "1 min");
    let (_proxy, server) = giving_back_in_vain(&coordinator);
    let began = std::time::Instant::now();
    server.stop(Stop::Fast);
    assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
}

#[test]
fn a_pool_that_is_set_again_while_the_worker_id_is_given_back_is_leased_from() {
    let coordinator = coordinator(builder(), 4, "1 min");
    let (proxy, server) = giving_back_in_vain(&coordinator);
    server.set_conf("idgen.worker_pool", POOL);
    server.reload();
    proxy.go_on();
    Worker::wait_for_state(&server, "leased");
}

#[test]
fn a_reload_in_the_middle_of_a_renewal_loses_no_term() {
    let coordinator = coordinator(builder(), 4, "6 s");
    let server = pooled(&coordinator.connect_string("postgres", "postgres")).start_with_extension();
    let before = Worker::wait_for_state(&server, "leased");
    let mut other = coordinator.client();
    let mut blocking = other.transaction().expect("a transaction");
    blocking.execute("LOCK idgen.worker_number IN EXCLUSIVE MODE", &[]).expect("a lock");
    let waiting =
        "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'idgen.worker_number'::regclass)";
    let mut watch = coordinator.client();
    coordinator.wait_for(PATIENCE, "a renewal under way", || value(&mut watch, waiting));
    server.reload();
    blocking.commit().expect("it ends");
    let after = Worker::wait_until(&server, "a renewal", |worker| worker.renewals > before.renewals);
    assert_eq!((after.changes, after.from_us), (1, before.from_us));
    assert!(!server.log().contains("is lost"), "{}", server.log());
}

#[test]
fn a_worker_id_set_by_hand_is_used_again_when_the_pool_goes_between_two_keepers() {
    let coordinator = coordinator(builder(), 4, "1 min");
    let proxy = Proxy::on_socket(&coordinator);
    let conninfo = proxy.connect_string("postgres", "postgres");
    let server = pooled(&conninfo).conf("idgen.worker_id", "3").start_with_extension();
    Worker::wait_for_state(&server, "leased");
    proxy.stop_forwarding();
    server.stop(Stop::Immediate);
    server.start_again();
    let keeper = Worker::wait_until(&server, "a keeper", |worker| worker.keeper.is_some()).keeper;
    end(keeper.expect("it was awaited"));
    server.set_conf("idgen.worker_pool", "");
    server.reload();
    assert_eq!(Worker::wait_for_state(&server, "set").number, Some(3));
}
