//! One line in order: each value is asked for.

use idgen_testkit::ids::last;
use idgen_testkit::sql::{ids, value};
use idgen_testkit::{Cluster, rounds};

use super::{attached, coordinator};

#[test]
fn values_that_are_asked_for_one_by_one_are_in_one_order() {
    let coordinator = coordinator(Cluster::builder());
    let servers = [0, 1, 2].map(|_| attached(&coordinator.conninfo(), "10 seconds"));
    let mut clients = servers.each_ref().map(|server| {
        server.execute("SELECT segment_alter('t', step => 1, min_step => 1, max_step => 1)");
        server.client()
    });
    let mut drawn: Vec<i64> = Vec::new();
    for turn in 0..60 {
        drawn.push(value(&mut clients[turn * 7 % 3], "SELECT segment_next('t')"));
        assert_eq!(last(&drawn), drawn.len() as i64, "in turn {turn}");
    }
}

/// A value that no session has asked for would be drawn later, after higher ones of other servers.
#[test]
fn sessions_that_wait_together_leave_no_value_behind() {
    let coordinator = coordinator(Cluster::builder());
    let server = attached(&coordinator.conninfo(), "10 seconds");
    server.execute("SELECT segment_alter('t', step => 1, min_step => 1, max_step => 1)");
    let mut clients = [(); 6].map(|()| server.client());
    for round in 0..rounds(100, 2000) {
        std::thread::scope(|scope| {
            // Some ask while others are served.
            for client in &mut clients {
                scope.spawn(|| ids(client, "SELECT segment_next('t') FROM generate_series(1, 3)"));
            }
        });
        assert_eq!(crate::remaining(&mut clients[0]), 0, "in round {round}");
    }
}
