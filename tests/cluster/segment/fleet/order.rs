//! One line in order: each value is asked for.

use idgen_testkit::Cluster;
use idgen_testkit::ids::last;
use idgen_testkit::sql::value;

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
