//! What becomes of the worker id when the keeper is told to end.

use std::thread;

use idgen_cluster_tests::sql::{PATIENCE, value};
use idgen_cluster_tests::{Cluster, Proxy, Stop};

use crate::faults::end;
use crate::{Worker, builder, coordinator, pooled};

/// How many terms have not been given back.
fn held(coordinator: &Cluster) -> i64 {
    value(&mut coordinator.client(), "SELECT sum(depth) FROM idgen.lease")
}

#[test]
fn a_server_that_is_stopped_in_the_middle_of_a_renewal_gives_its_worker_id_back() {
    let coordinator = coordinator(builder(), 4, "3 s");
    let proxy = Proxy::on_socket(&coordinator);
    let server = pooled(&proxy.connect_string("postgres", "postgres")).start_with_extension();
    Worker::await_state(&server, "leased");
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
    Worker::await_state(&server, "leased");
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
    let keeper = Worker::await_state(&server, "leased").keeper.expect("it has leased");
    end(keeper);
    Worker::await_that(&server, "another keeper", |worker| worker.keeper.is_some_and(|pid| pid != keeper));
    assert_eq!(held(&coordinator), 1);
    assert_eq!(Worker::of(&mut server.client()).changes, 1);
}
